package sim

import (
	"fmt"
	"hash"
	"hash/fnv"
	"strconv"
	"time"
)

// traceTail is how many lines a trace keeps.
const traceTail = 80

// trace is the sequence of calls: a hash of all, and the last ones.
type trace struct {
	hash  hash.Hash64
	text  []byte // the text of the last line, to reuse its memory
	lines [traceTail]line
	n     int
	log   func(string)
}

// line is one step of the driver.
type line struct {
	at      time.Duration
	actor   string
	what    string
	detail  string
	fault   Fault
	outcome string
}

func newTrace() *trace { return &trace{hash: fnv.New64a()} }

// add adds one step.
func (t *trace) add(l line) {
	text := strconv.AppendInt(t.text[:0], int64(l.at), 10)
	for _, part := range [...]string{l.actor, l.what, l.detail, string(l.fault), l.outcome} {
		text = append(append(text, '|'), part...)
	}
	t.text = append(text, '\n')
	_, _ = t.hash.Write(t.text)
	t.lines[t.n%traceTail] = l
	t.n++
	if t.log != nil {
		t.log(l.String())
	}
}

// tail returns the last lines, oldest first.
func (t *trace) tail() []string {
	var out []string
	for i := max(0, t.n-traceTail); i < t.n; i++ {
		out = append(out, t.lines[i%traceTail].String())
	}
	return out
}

// String formats the line as text.
func (l line) String() string {
	const width = 300
	detail := l.detail
	if len(detail) > width {
		detail = detail[:width] + "…"
	}
	return fmt.Sprintf("%12s %-16s %-8s %s [%s] %s", l.at, l.actor, l.what, detail, l.fault, l.outcome)
}
