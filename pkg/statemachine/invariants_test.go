package statemachine_test

import (
	"cmp"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// violations returns the invariants that a decision violates in that environment.
func violations(before *statemachine.Aggregate, d *statemachine.Decision, env statemachine.Env) []string {
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
	report(after.Job.Parked && (after.Job.State != statemachine.JobQueued || after.Job.AttemptsTotal > 0), "a job that has begun is parked")
	report(after.Job.State == statemachine.JobQueued && !after.Job.Parked, "a job is QUEUED and waits for no date")
	report(after.Job.AttemptsTotal > 0 && before.Job.AttemptsTotal == 0 && after.Job.NotBefore.After(env.Now), "a job began before its date")
	report(after.Job.ErrorCode == statemachine.ErrorExpired && (after.Job.Started || after.Job.NotAfter.After(env.Now)), "a job expired too early")
	if expiry := after.Expiry(); !expiry.IsZero() {
		report(!d.Light && d.Wake.Kind != statemachine.WakeDispatch && (d.Wake.At.IsZero() || d.Wake.At.After(expiry)), "nothing looks at the job when it expires")
	}
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
		report(step.Spent.Free > statemachine.FreeAttempts, "step %d has had %d attempts without spending", i, step.Spent.Free)
		holds := step.State == statemachine.StepDispatching || step.State == statemachine.StepAwaitingAck ||
			step.State == statemachine.StepInProgress
		report(holds && step.LeaseID == "", "step %d is %s without a lease", i, step.State)
		report(holds && step.Throttled, "step %d is %s, and its latest attempt was throttled", i, step.State)
		report(step.State == statemachine.StepDispatching && step.ClaimLease != 0, "step %d has the lease of a claim before", i)
		reported := step.State == statemachine.StepInProgress && step.UpdatedAt.Equal(env.Now)
		report(reported && step.LeaseExpiresAt.After(env.Now.Add(min(step.Policy.Lease, cmp.Or(step.ClaimLease, step.Policy.Lease)))),
			"step %d, which asked for a lease of %s, has one until %s, and now is %s", i, step.ClaimLease, step.LeaseExpiresAt, env.Now)
	}
	if row := after.Outbox; row != nil {
		report(row.State != statemachine.OutboxPending && !row.DueAt.IsZero(), "the outbox row is %s and due", row.State)
	}
	report(running > 1, "%d steps are in progress", running)
	report(total != after.Job.AttemptsTotal, "attempts_total is %d, the steps have %d", after.Job.AttemptsTotal, total)
	if i, ok := after.Active(); ok && !after.Job.State.Terminal() {
		step := &after.Steps[i]
		row := after.Outbox != nil && after.Outbox.State == statemachine.OutboxPending
		report(row != (step.State == statemachine.StepDispatching), "step is %s, row pending: %t", step.State, row)
		unclaimed := step.State == statemachine.StepAwaitingAck && step.LeaseExpiresAt.IsZero()
		if unclaimed {
			row := after.Outbox
			report(row.Bus != statemachine.BusQueue || row.State != statemachine.OutboxSent,
				"the %s row on %s has no ACK deadline", row.State, row.Bus)
		}
		at, queued := after.Queued()
		report(queued != unclaimed || queued && at != i, "queued is %t of step %d, unclaimed %t of step %d", queued, at, unclaimed, i)
		report(statemachine.NextWake(after).Kind == statemachine.WakeNone &&
			after.Job.State != statemachine.JobPaused && !unclaimed, "nothing will look at the job again")
	}
	waits := after.Waiting(env.Now, &statemachine.Surroundings{})
	report((waits.Reason == "") != after.Job.State.Terminal() || (waits.Detail == "") != (waits.Reason == ""),
		"a job that is %s waits for %q (%s)", after.Job.State, waits.Reason, waits.Detail)
	report(waits.Since.After(env.Now) || waits.Reason != "" && waits.Since.Before(after.Job.CreatedAt),
		"it waits since %s, and now is %s", waits.Since, env.Now)
	report(d.Ended != after.Job.State.Terminal(), "ended is %t, the job %s", d.Ended, after.Job.State)
	return append(out, busViolations(before, d, env)...)
}

// busViolations returns the rules of the two buses that the decision violates. A new row is
// made for the bus of the process. Unless it must wait, this change publishes it in the
// pull queue, and the process's relay on Service Bus. A row changes its bus only with a new
// pair, and not once it is settled.
func busViolations(before *statemachine.Aggregate, d *statemachine.Decision, env statemachine.Env) []string {
	var out []string
	old, row := before.Outbox, d.After.Outbox
	switch {
	case row == nil:
	case old == nil || old.ID != row.ID:
		prompt, queue := env.Prompt(statemachine.Target{}), env.Bus == statemachine.BusQueue
		if d.Added != row || d.Dispatch != row || row.Bus != env.Bus {
			out = append(out, fmt.Sprintf("a new row on %s by a process of %s", row.Bus, env.Bus))
		}
		if sent := row.State == statemachine.OutboxSent; sent != (prompt && queue) || d.Hot != (prompt && !queue) {
			out = append(out, fmt.Sprintf("a new row on %s is sent: %t, hot: %t; prompt is %t", row.Bus, sent, d.Hot, prompt))
		}
	case old.State.Terminal():
		if !reflect.DeepEqual(old, row) {
			out = append(out, fmt.Sprintf("a row that was %s was changed", old.State))
		}
	case old.Bus != row.Bus:
		if row.AttemptNo <= old.AttemptNo || row.LeaseID == old.LeaseID || d.Dispatch != row {
			out = append(out, "a row went to another bus with its old pair")
		}
	}
	return out
}

// TestDecide_RandomLivesKeepTheInvariants applies random events to a job at random times,
// and also checks that a repeat of an applied callback is always a duplicate.
func TestDecide_RandomLivesKeepTheInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := newStory(t)
		if rapid.Bool().Draw(r, "queue") {
			s = queueStory(t)
		}
		if rapid.Bool().Draw(r, "dated") {
			s = datedStory(t, s.bus, time.Hour, 3*time.Hour)
		}
		type applied struct {
			event statemachine.Event
			kind  string
		}
		var repeats []applied
		for range rapid.IntRange(1, 60).Draw(r, "length") {
			s.later(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(r, "wait")))
			s.held = rapid.Bool().Draw(r, "held")
			if rapid.IntRange(0, 9).Draw(r, "deployment") == 0 {
				s.bus = map[statemachine.Bus]statemachine.Bus{
					statemachine.BusQueue: statemachine.BusServiceBus, statemachine.BusServiceBus: statemachine.BusQueue,
				}[s.bus]
			}
			events := lifeOf(s)
			i := rapid.IntRange(0, len(events)-1).Draw(r, "event")
			before := s.agg
			d := s.applyEvent(events[i])
			if d.Outcome == statemachine.Applied {
				for _, broken := range violations(&before, &d, env(s.now, "", s.bus, s.held)) {
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
				if d := s.applyEvent(repeat.event); d.Outcome != statemachine.Duplicate {
					r.Fatalf("the repeat of an applied %s is %s: %s", repeat.kind, d.Outcome, d.Reason)
				}
			}
		}
	})
}

// lifeOf returns the events that may happen to the story's job now.
func lifeOf(s *story) []statemachine.Event {
	events := []statemachine.Event{
		statemachine.DeadlinePassed{}, statemachine.DeadlinePassed{Outage: s.now}, statemachine.DispatchClaimed{},
		statemachine.Cancel{}, statemachine.Pause{}, statemachine.Resume{}, statemachine.Resume{}, statemachine.Retry{},
		statemachine.Reschedule{NotBefore: &later, NotAfter: &latest}, statemachine.Reschedule{NotBefore: &date, NotAfter: &time.Time{}},
		statemachine.Stall{StepID: s.step().ID, AttemptNo: s.step().AttemptNo},
		statemachine.Prioritize{Class: statemachine.ClassBulk}, statemachine.Prioritize{},
		s.ack(), s.ack(), s.heartbeat(), s.result(statemachine.ResultSucceeded), s.result(statemachine.ResultFailedRetry),
		s.result(statemachine.ResultFailedFinal), s.throttled(time.Minute), s.stopped(time.Second), s.claimed(),
		statemachine.ClaimExtended{StepID: s.step().ID, Pair: s.pair()},
		statemachine.Claimed{StepID: s.step().ID, Pair: s.pair(), Lease: time.Minute},
		statemachine.Ack{StepID: s.step().ID, Pair: s.pair(), Lease: time.Minute},
	}
	if s.agg.Outbox != nil {
		events = append(events, s.published(), statemachine.PublishRejected{
			OutboxID: s.agg.Outbox.ID, AttemptNo: s.agg.Outbox.AttemptNo, Reason: "refused",
		})
	}
	return events
}
