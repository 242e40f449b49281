package linearizability

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rowCount is the number of rows of a partition.
const rowCount = 3

// partition is the state of a partition: for each row the number written last,
// or 0 if the row is absent. Each number is written only once.
type partition [rowCount]int64

// call is a client's request.
type call struct {
	partition int
	row       int     // Of a read of one row; -1 reads all of them.
	writes    []write // Of a batch; empty for a read.
}

// write is one op of a batch.
type write struct {
	verb tablestore.Verb
	row  int
	// expected is the number of the version that the op's ETag names.
	expected int64
	number   int64
}

// answer is the result of a call.
type answer struct {
	outcome outcome
	seen    partition // Of a read.
}

// outcome is one of the port's outcomes.
type outcome uint8

const (
	done outcome = iota + 1
	conflict
	unknown
	notTaken
)

// String returns the outcome's name.
func (o outcome) String() string {
	return [...]string{"", "done", "conflict", "unknown", "not taken"}[o]
}

// apply returns the state after the batch, and whether its preconditions hold.
func (p partition) apply(writes []write) (partition, bool) {
	next := p
	for _, w := range writes {
		there := p[w.row]
		switch w.verb {
		case tablestore.Insert:
			if there != 0 {
				return p, false
			}
		case tablestore.Replace, tablestore.Delete:
			if there == 0 || there != w.expected {
				return p, false
			}
		case tablestore.Put, tablestore.Discard, tablestore.Clear: // The model clears nothing.
		}
		next[w.row] = w.number
		if w.verb == tablestore.Delete || w.verb == tablestore.Discard {
			next[w.row] = 0
		}
	}
	return next, true
}

// step returns the possible states after the call, given its answer; none if
// the answer is impossible.
func (p partition) step(c *call, a *answer) []any {
	if len(c.writes) == 0 {
		if a.outcome != done || p.shows(c, a) {
			return []any{p}
		}
		return nil
	}
	next, held := p.apply(c.writes)
	switch {
	case a.outcome == notTaken, a.outcome == conflict && !held:
		return []any{p}
	case a.outcome == unknown && held:
		return []any{p, next}
	case a.outcome == unknown:
		return []any{p}
	case a.outcome == done && held:
		return []any{next}
	default:
		return nil
	}
}

// shows reports whether a read in this state may return that answer.
func (p partition) shows(c *call, a *answer) bool {
	if c.row < 0 {
		return a.seen == p
	}
	return a.seen[c.row] == p[c.row]
}

// model returns the model of a store, with each partition checked by itself.
func model() porcupine.Model {
	sequential := porcupine.NondeterministicModel{
		Partition: byPartition,
		Init:      func() []any { return []any{partition{}} },
		Step: func(state, input, output any) []any {
			c, a := input.(call), output.(answer)
			return state.(partition).step(&c, &a)
		},
		Equal:             func(a, b any) bool { return a.(partition) == b.(partition) },
		DescribeOperation: func(input, output any) string { return describe(input.(call), output.(answer)) },
	}
	return sequential.ToModel()
}

// byPartition splits a history: calls on different partitions are independent.
func byPartition(history []porcupine.Operation) [][]porcupine.Operation {
	var parts [][]porcupine.Operation
	for _, operation := range history {
		n := operation.Input.(call).partition
		for len(parts) <= n {
			parts = append(parts, nil)
		}
		parts[n] = append(parts[n], operation)
	}
	return parts
}

// describe formats a call with its answer.
func describe(c call, a answer) string {
	if len(c.writes) == 0 {
		return fmt.Sprintf("read %d: %v %s", c.row, a.seen, a.outcome)
	}
	words := make([]string, len(c.writes))
	for i, w := range c.writes {
		words[i] = fmt.Sprintf("%s row %d (of %d) = %d", w.verb, w.row, w.expected, w.number)
	}
	return strings.Join(words, ", ") + ": " + a.outcome.String()
}
