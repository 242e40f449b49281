package contracttest

import (
	"fmt"
	"maps"
	"strings"
)

// Report lists the operations and status codes of a contract that were seen.
type Report struct {
	operations []Operation
	seen       map[Pair]int
}

// Report returns the pairs seen so far.
func (c *Contract) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Report{operations: c.Operations(), seen: maps.Clone(c.seen)}
}

// Missing returns the documented pairs that were not seen, in the order of
// [Contract.Operations].
func (r Report) Missing() []Pair {
	var missing []Pair
	for _, operation := range r.operations {
		for _, status := range operation.Statuses {
			if pair := (Pair{operation.ID, status}); r.seen[pair] == 0 {
				missing = append(missing, pair)
			}
		}
	}
	return missing
}

// Seen returns how many documented pairs were seen, and how many there are.
func (r Report) Seen() (seen, documented int) {
	for _, operation := range r.operations {
		documented += len(operation.Statuses)
	}
	return documented - len(r.Missing()), documented
}

// String has a line for each operation: its id, its method and path, and each of its
// status codes, in parentheses if it was not seen. The last line is the sum.
func (r Report) String() string {
	var text strings.Builder
	for _, operation := range r.operations {
		fmt.Fprintf(&text, "%-17s %-4s %-38s", operation.ID, operation.Method, operation.Path)
		for _, status := range operation.Statuses {
			if r.seen[Pair{operation.ID, status}] > 0 {
				fmt.Fprintf(&text, "  %d ", status)
			} else {
				fmt.Fprintf(&text, " (%d)", status)
			}
		}
		text.WriteByte('\n')
	}
	seen, documented := r.Seen()
	fmt.Fprintf(&text, "%d operations; %d of %d documented pairs of operation and status code were exercised\n",
		len(r.operations), seen, documented)
	return text.String()
}
