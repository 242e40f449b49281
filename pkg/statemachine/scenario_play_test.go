package statemachine_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// scenario is the state of playing a file.
type scenario struct {
	agg    statemachine.Aggregate
	now    time.Time
	leases int
	bus    statemachine.Bus
	// given are the rows of the attempts that were dispatched, by names such as one#1, each
	// as it was then.
	given   map[string]statemachine.Outbox
	history []statemachine.Transition
	verbs   map[string]bool
}

// play runs the scenario of that text and returns it with the expected text: its own lines,
// and below each event its effects. The error names the file and the line.
func play(path, text string) (*scenario, string, error) {
	s := &scenario{now: start, given: map[string]statemachine.Outbox{}, verbs: map[string]bool{}}
	if !saysWhy(text) {
		return nil, "", fmt.Errorf("%s:1: a scenario opens with a paragraph, in comment lines, of why it matters", path)
	}
	var out strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			continue // an effect in the previous version
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		became, err := s.line(strings.Fields(line))
		if err != nil {
			return nil, "", fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		for _, row := range became {
			out.WriteString("    " + row + "\n")
		}
	}
	if s.agg.Job.Rev == 0 {
		return nil, "", fmt.Errorf("%s: nothing happens to a job", path)
	}
	return s, out.String(), nil
}

// saysWhy reports whether the text opens with a paragraph of full sentences.
func saysWhy(text string) bool {
	paragraph, _, _ := strings.Cut(text, "\n\n")
	for line := range strings.SplitSeq(paragraph, "\n") {
		if !strings.HasPrefix(line, "# ") {
			return false
		}
	}
	return len(strings.Fields(paragraph)) > 20 && strings.HasSuffix(paragraph, ".")
}

// line executes one line: it makes the job, or applies an event to it.
func (s *scenario) line(fields []string) ([]string, error) {
	if len(s.agg.Steps) == 0 {
		return nil, s.job(fields)
	}
	if strings.HasPrefix(fields[0], "+") {
		if err := s.wait(fields[0]); err != nil {
			return nil, err
		}
		fields = fields[1:]
	}
	if len(fields) == 0 {
		return nil, errors.New("nothing happens at that time")
	}
	verb, ok := verbs[fields[0]]
	if !ok {
		return nil, fmt.Errorf("unknown event %q", fields[0])
	}
	s.verbs[fields[0]] = true
	a := s.args(verb.takes+" held bus", fields[1:])
	event, bus := verb.event(a), a.bus(s.bus)
	if a.err != nil {
		return nil, a.err
	}
	return s.applyEvent(event, bus, a.says("held"))
}

// wait advances to a time such as +1m30s.
func (s *scenario) wait(until string) error {
	a := &args{said: map[string]string{"until": until}}
	now := a.clock("until")
	if now.Before(s.now) {
		a.wrong("%s lies in the past", until)
	}
	s.now = now
	return a.err
}

// job makes the job from its steps' names, its bus, and the differences from [policy].
func (s *scenario) job(fields []string) error {
	ids := fields[1:]
	if i := slices.IndexFunc(ids, func(word string) bool { return strings.Contains(word, "=") }); i >= 0 {
		ids = ids[:i]
	}
	if fields[0] != "job" || len(ids) == 0 {
		return fmt.Errorf("%q is no job with its steps", strings.Join(fields, " "))
	}
	a := s.args("bus not-before not-after timeout dispatch ack execution max-attempts", fields[1+len(ids):])
	s.bus = a.bus(statemachine.BusServiceBus)
	p := policy()
	p.Timeout = a.duration("timeout")
	p.Dispatch = a.delays("dispatch", p.Dispatch)
	p.Ack = a.delays("ack", p.Ack)
	p.Execution = a.delays("execution", p.Execution)
	if a.says("max-attempts") {
		p.MaxAttempts = a.number(a.said["max-attempts"])
	}
	s.agg.Job = statemachine.Job{ID: "job", State: statemachine.JobQueued, InputRef: []byte(`{"uri":"input"}`)}
	s.agg.Job.NotBefore, s.agg.Job.NotAfter = a.clock("not-before"), a.clock("not-after")
	for i, id := range ids {
		s.agg.Steps = append(s.agg.Steps, statemachine.Step{
			ID: id, Index: i, State: statemachine.StepPending, Policy: p, Input: statemachine.InputPrevious,
		})
	}
	return a.err
}

// applyEvent applies the event to the job, in a process of that bus, and notes its effects.
func (s *scenario) applyEvent(event statemachine.Event, bus statemachine.Bus, held bool) ([]string, error) {
	s.leases++
	before := clone(s.agg)
	in := env(s.now, fmt.Sprint("lease-", s.leases), bus, held)
	d, err := statemachine.Decide(s.agg, event, in)
	if err != nil {
		return nil, err
	}
	if d.Outcome != statemachine.Applied {
		if !reflect.DeepEqual(before, d.After) {
			return nil, fmt.Errorf("it is %s, and changed the job", d.Outcome)
		}
		return []string{outcomeRow(&d)}, nil
	}
	if broken := violations(&before, &d, in); len(broken) > 0 {
		return nil, errors.New(strings.Join(broken, "; "))
	}
	s.agg = d.After
	s.history = append(s.history, d.History...)
	if row := d.Dispatch; row != nil {
		s.given[fmt.Sprintf("%s#%d", row.StepID, row.AttemptNo)] = *row
	}
	return appliedRows(&d), nil
}
