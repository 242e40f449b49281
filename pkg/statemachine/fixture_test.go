package statemachine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// start is when each story begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// story is a live job with a clock and a supply of lease ids.
type story struct {
	t      testing.TB
	agg    statemachine.Aggregate
	now    time.Time
	leases int
	last   statemachine.Decision
	// The bus of the process that applies the next event, and whether it holds new
	// rows back.
	bus  statemachine.Bus
	held bool
}

// policy has short lists, so that budgets can be exhausted.
func policy() statemachine.Policy {
	return statemachine.Policy{
		AckTimeout: 30 * time.Second, Lease: 15 * time.Minute,
		Dispatch:    []time.Duration{time.Minute},
		Ack:         []time.Duration{time.Minute, 5 * time.Minute},
		Execution:   []time.Duration{30 * time.Second},
		MaxAttempts: 10,
	}
}

// newStory accepts a job of two steps with Service Bus.
func newStory(t *testing.T) *story {
	t.Helper()
	s := untold(t, statemachine.BusServiceBus)
	s.does(statemachine.Accept{})
	return s
}

// queueStory accepts a job of two steps with the pull queue.
func queueStory(t *testing.T) *story {
	t.Helper()
	s := untold(t, statemachine.BusQueue)
	s.does(statemachine.Accept{})
	return s
}

// heldStory accepts a job of two steps whose first row must wait.
func heldStory(t *testing.T, bus statemachine.Bus) *story {
	t.Helper()
	s := untold(t, bus)
	s.held = true
	s.does(statemachine.Accept{})
	s.held = false
	return s
}

// datedStory accepts a job of two steps that may begin, and expires, after that much time.
func datedStory(t testing.TB, bus statemachine.Bus, begins, expires time.Duration) *story {
	t.Helper()
	s := untold(t, bus)
	s.agg.Job.NotBefore, s.agg.Job.NotAfter = start.Add(begins), start.Add(expires)
	s.does(statemachine.Accept{})
	return s
}

// untold returns the story of a job of two steps before its accept.
func untold(t testing.TB, bus statemachine.Bus) *story {
	t.Helper()
	s := &story{t: t, now: start, bus: bus}
	s.agg.Job = statemachine.Job{
		ID: "job", TenantID: "tenant_a", State: statemachine.JobQueued,
		InputRef: []byte(`{"uri":"in"}`), OutputRef: []byte(`{"uri":"out"}`),
	}
	for i, id := range []string{"one", "two"} {
		s.agg.Steps = append(s.agg.Steps, statemachine.Step{
			ID: id, Index: i, State: statemachine.StepPending, Policy: policy(), Input: statemachine.InputPrevious,
			Product: statemachine.Product{OutputRef: s.agg.Job.OutputRef},
		})
	}
	return s
}

// applyEvent applies an event to the job.
func (s *story) applyEvent(event statemachine.Event) statemachine.Decision {
	s.t.Helper()
	s.leases++
	d, err := statemachine.Decide(s.agg, event, env(s.now, fmt.Sprint("lease-", s.leases), s.bus, s.held))
	if err != nil {
		s.t.Fatalf("%T: %v", event, err)
	}
	s.agg, s.last = d.After, d
	return d
}

// does applies an event, which must change the job.
func (s *story) does(event statemachine.Event) {
	s.t.Helper()
	if d := s.applyEvent(event); d.Outcome != statemachine.Applied {
		s.t.Fatalf("%T is %s: %s %s", event, d.Outcome, d.Code, d.Reason)
	}
}

// answers applies an event, which must change nothing.
func (s *story) answers(event statemachine.Event, outcome statemachine.Outcome, code statemachine.Code) {
	s.t.Helper()
	if d := s.applyEvent(event); d.Outcome != outcome || d.Code != code {
		s.t.Errorf("%T is %s %s (%s), want %s %s", event, d.Outcome, d.Code, d.Reason, outcome, code)
	}
}

// is checks the states of the job and its steps.
func (s *story) is(job statemachine.JobState, steps ...statemachine.StepState) {
	s.t.Helper()
	if s.agg.Job.State != job {
		s.t.Errorf("job is %s, want %s", s.agg.Job.State, job)
	}
	for i, want := range steps {
		if s.agg.Steps[i].State != want {
			s.t.Errorf("step %d is %s, want %s", i, s.agg.Steps[i].State, want)
		}
	}
}

// wakes checks the next wake, from now.
func (s *story) wakes(kind statemachine.WakeKind, in time.Duration) {
	s.t.Helper()
	want := statemachine.Wake{Kind: kind}
	if kind != statemachine.WakeNone {
		want.At = s.now.Add(in)
	}
	if s.last.Wake != want {
		s.t.Errorf("wakes %+v, want %+v", s.last.Wake, want)
	}
}

func (s *story) later(d time.Duration) { s.now = s.now.Add(d) }

// step returns the active step, or else the last one.
func (s *story) step() *statemachine.Step {
	if i, ok := s.agg.Active(); ok {
		return &s.agg.Steps[i]
	}
	return &s.agg.Steps[len(s.agg.Steps)-1]
}

func (s *story) pair() statemachine.Pair {
	return statemachine.Pair{AttemptNo: s.step().AttemptNo, LeaseID: s.step().LeaseID}
}

func (s *story) published() statemachine.Event {
	return statemachine.Published{OutboxID: s.agg.Outbox.ID, AttemptNo: s.agg.Outbox.AttemptNo}
}

func (s *story) claimed() statemachine.Event {
	return statemachine.Claimed{StepID: s.step().ID, Pair: s.pair()}
}

func (s *story) ack() statemachine.Event {
	return statemachine.Ack{StepID: s.step().ID, Pair: s.pair()}
}

func (s *story) heartbeat() statemachine.Event {
	return statemachine.Heartbeat{StepID: s.step().ID, Pair: s.pair()}
}

func (s *story) result(status statemachine.ResultStatus) statemachine.Result {
	return statemachine.Result{
		StepID: s.step().ID, Pair: s.pair(), Status: status, Product: statemachine.Product{ResultRef: []byte(`{"uri":"r-` + s.step().ID + `"}`)},
	}
}

// env returns the environment of a decision by a process of that bus, which publishes all
// new rows at once or holds them all back.
func env(now time.Time, leaseID string, bus statemachine.Bus, held bool) statemachine.Env {
	return statemachine.Env{
		Now: now, LeaseID: leaseID, Hold: 15 * time.Second, Bus: bus,
		Prompt: func(statemachine.Target) bool { return !held },
	}
}
