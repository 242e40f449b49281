package statemachine_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// violations are the invariants that an applied decision breaks.
func violations(before *statemachine.Aggregate, d *statemachine.Decision) []string {
	var out []string
	report := func(broken bool, format string, args ...any) {
		if broken {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	after := &d.After
	report(before.Job.State.Terminal(), "a job that had ended was changed")
	report(!d.Light && after.Job.Rev != before.Job.Rev+1, "rev went from %d to %d", before.Job.Rev, after.Job.Rev)
	report(d.Light && after.Job.Rev != before.Job.Rev, "a light change raised rev")
	report(after.Job.State == statemachine.JobFailedFinal && after.Job.ErrorCode == "", "the job failed without a code")
	running, total := 0, 0
	for i := range after.Steps {
		step, old := &after.Steps[i], &before.Steps[i]
		total += step.AttemptNo
		if step.State == statemachine.StepInProgress {
			running++
		}
		report(old.State.Terminal() && !reflect.DeepEqual(old, step), "step %d had ended and was changed", i)
		report(step.AttemptNo < old.AttemptNo, "attempt_no of step %d fell", i)
		report(i > 0 && step.State != statemachine.StepPending && step.State != statemachine.StepCancelled &&
			after.Steps[i-1].State != statemachine.StepSucceeded, "step %d began before step %d had succeeded", i, i-1)
		report(step.Spent.Dispatch > len(step.Policy.Dispatch)+1 || step.Spent.Ack > len(step.Policy.Ack)+1 ||
			step.Spent.Execution > len(step.Policy.Execution)+1, "step %d overspent: %+v", i, step.Spent)
		holds := step.State == statemachine.StepDispatching || step.State == statemachine.StepAwaitingAck ||
			step.State == statemachine.StepInProgress
		report(holds && step.LeaseID == "", "step %d is %s without a lease", i, step.State)
	}
	report(running > 1, "%d steps are in progress", running)
	report(total != after.Job.AttemptsTotal, "attempts_total is %d, the steps have %d", after.Job.AttemptsTotal, total)
	if i, ok := after.Active(); ok && !after.Job.State.Terminal() {
		step := &after.Steps[i]
		row := after.Outbox != nil && after.Outbox.State == statemachine.OutboxPending
		report(row != (step.State == statemachine.StepDispatching), "step is %s, row pending: %t", step.State, row)
		unclaimed := step.State == statemachine.StepAwaitingAck && step.LeaseExpiresAt.IsZero()
		report(statemachine.NextWake(after).Kind == statemachine.WakeNone &&
			after.Job.State != statemachine.JobPaused && !unclaimed, "nobody will look at the job again")
	}
	report(d.Ended != after.Job.State.Terminal(), "ended is %t, the job %s", d.Ended, after.Job.State)
	return out
}

// TestDecide_RandomLivesKeepTheInvariants lets random events happen to a job,
// at random times, and checks that an applied callback is a duplicate for ever
// after.
func TestDecide_RandomLivesKeepTheInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := newStory(t)
		type applied struct {
			event statemachine.Event
			kind  string
		}
		var repeats []applied
		for range rapid.IntRange(1, 60).Draw(r, "length") {
			s.later(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(r, "wait")))
			events := lifeOf(s)
			i := rapid.IntRange(0, len(events)-1).Draw(r, "event")
			before := s.agg
			d := s.bring(events[i])
			if d.Outcome == statemachine.Applied {
				for _, broken := range violations(&before, &d) {
					r.Fatalf("%T: %s", events[i], broken)
				}
				if _, ok := events[i].(statemachine.Result); ok {
					repeats = append(repeats, applied{events[i], "RESULT"})
				}
				if _, ok := events[i].(statemachine.Ack); ok {
					repeats = append(repeats, applied{events[i], "ACK"})
				}
			}
			for _, repeat := range repeats {
				if d := s.bring(repeat.event); d.Outcome != statemachine.Duplicate {
					r.Fatalf("the repeat of an applied %s is %s: %s", repeat.kind, d.Outcome, d.Reason)
				}
			}
		}
	})
}

// lifeOf are the events that may happen to the story's job now.
func lifeOf(s *story) []statemachine.Event {
	events := []statemachine.Event{
		statemachine.DeadlinePassed{}, statemachine.DeadlinePassed{Outage: s.now}, statemachine.Taken{},
		statemachine.Cancel{}, statemachine.Pause{}, statemachine.Resume{}, statemachine.Resume{}, statemachine.Retry{},
		statemachine.Stall{StepID: s.step().ID, AttemptNo: s.step().AttemptNo},
		s.ack(), s.ack(), s.heartbeat(), s.result(statemachine.ResultSucceeded), s.result(statemachine.ResultFailedRetry),
		s.result(statemachine.ResultFailedFinal), statemachine.Claimed{StepID: s.step().ID, Pair: s.pair()},
		statemachine.ClaimExtended{StepID: s.step().ID, Pair: s.pair(), By: s.now.Add(time.Minute)},
	}
	if s.agg.Outbox != nil {
		events = append(events, s.published(), statemachine.PublishRejected{
			OutboxID: s.agg.Outbox.ID, AttemptNo: s.agg.Outbox.AttemptNo, Reason: "refused",
		})
	}
	return events
}
