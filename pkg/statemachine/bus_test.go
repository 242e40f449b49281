package statemachine_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// In the pull queue, the change that makes an attempt publishes it: the row is
// SENT in the revision that inserts it, the job needs no wake, and no relay.
func TestQueue_TheCommitPublishes(t *testing.T) {
	t.Parallel()
	for name, makes := range map[string]func(*story){
		"an accept": func(*story) {},
		"the next step": func(s *story) {
			s.after((*story).claimed, (*story).ack)
			s.does(s.result(statemachine.ResultSucceeded))
		},
		"a retry that is due": func(s *story) {
			s.after((*story).claimed, (*story).ack)
			s.does(s.result(statemachine.ResultFailedRetry))
			s.later(time.Hour)
			s.does(statemachine.DeadlinePassed{})
		},
		"an operator's retry": func(s *story) {
			s.after((*story).claimed)
			s.does(statemachine.Stall{StepID: "one", AttemptNo: 1})
			s.does(statemachine.Retry{StepID: "one"})
		},
		"a resume": func(s *story) {
			s.does(statemachine.Pause{})
			s.does(statemachine.Resume{})
		},
	} {
		t.Run("by "+name, func(t *testing.T) {
			t.Parallel()
			s := queueStory(t)
			makes(s)
			i, queued := s.agg.Queued()
			if !queued || s.agg.Steps[i].State != awaiting {
				t.Fatalf("nothing is queued, the step is %s", s.step().State)
			}
			row, d := s.agg.Outbox, &s.last
			if d.Added != row || d.Dispatch != row || d.Replaced != nil || row.State != statemachine.OutboxSent || !row.SentAt.Equal(s.now) {
				t.Errorf("added %+v, replaced %+v, directive of %+v", d.Added, d.Replaced, d.Dispatch)
			}
			if d.Hot {
				t.Error("the row is given to the relay")
			}
			s.wakes(statemachine.WakeNone, 0)
		})
	}
}

// A row that must wait stays PENDING with an entry for any relay, on either bus, whichever
// event made it.
func TestOutbox_AHeldRowWaitsInTheDispatchSchedule(t *testing.T) {
	t.Parallel()
	for _, bus := range []statemachine.Bus{statemachine.BusQueue, statemachine.BusServiceBus} {
		t.Run(string(bus), func(t *testing.T) {
			t.Parallel()
			s := heldStory(t, bus)
			s.is(statemachine.JobDispatching, dispatching)
			s.wakes(statemachine.WakeDispatch, 0)
			if row := s.agg.Outbox; row.State != statemachine.OutboxPending || row.Bus != bus || s.last.Hot {
				t.Errorf("row %s on %s, hot %t", row.State, row.Bus, s.last.Hot)
			}
			if _, queued := s.agg.Queued(); queued {
				t.Error("the attempt is offered already")
			}
			s.later(time.Hour)
			s.does(s.published())
			s.is(statemachine.JobDispatching, awaiting)
			if bus == statemachine.BusQueue {
				s.wakes(statemachine.WakeNone, 0)
				return
			}
			s.wakes(statemachine.WakeTimer, 30*time.Second)
		})
	}
}

// On Service Bus a callback proves the publish. In the pull queue only a claim
// gives a worker the pair, and no claim takes a row that is PENDING.
func TestQueue_AnAttemptThatIsNotOfferedTakesNoReport(t *testing.T) {
	t.Parallel()
	reports := func(s *story) map[string]statemachine.Event {
		return map[string]statemachine.Event{
			"a claim": s.claimed(), "an ACK": s.ack(), "a heartbeat": s.heartbeat(),
			"a success":           s.result(statemachine.ResultSucceeded),
			"a retryable failure": s.result(statemachine.ResultFailedRetry),
			"a final failure":     s.result(statemachine.ResultFailedFinal),
		}
	}
	for name := range reports(queueStory(t)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := heldStory(t, statemachine.BusQueue)
			s.answers(reports(s)[name], statemachine.Refused, statemachine.CodeIllegalTransition)
			s.is(statemachine.JobDispatching, dispatching)
			if name == "a claim" {
				return // Service Bus has no claims.
			}
			s = heldStory(t, statemachine.BusServiceBus)
			s.does(reports(s)[name])
		})
	}
}

// An attempt that waits in the pull queue would wait forever after a deployment has
// switched to Service Bus.
func TestBus_AQueuedAttemptIsDispatchedAgainOnTheOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		held bool
		wake statemachine.WakeKind
		due  time.Duration
	}{
		"at once": {false, statemachine.WakeTimer, 15 * time.Second},
		"held":    {true, statemachine.WakeDispatch, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := queueStory(t)
			old, offered := s.pair(), s.agg.Outbox
			s.later(time.Hour)
			s.does(statemachine.DeadlinePassed{})
			if s.pair() != old {
				t.Error("a process of the pull queue withdrew it")
			}
			s.bus, s.held = statemachine.BusServiceBus, test.held
			s.does(statemachine.DeadlinePassed{})
			s.is(statemachine.JobDispatching, dispatching)
			s.wakes(test.wake, test.due)
			row, step := s.agg.Outbox, s.step()
			if row.ID == offered.ID || row.Bus != statemachine.BusServiceBus || row.AttemptNo != 2 || offered.State != statemachine.OutboxSent {
				t.Errorf("row %+v after %+v", row, offered)
			}
			if step.Spent != (statemachine.Spent{}) || s.pair() == old {
				t.Errorf("spent %+v, pair %+v", step.Spent, s.pair())
			}
			s.answers(statemachine.Claimed{StepID: "one", Pair: old}, statemachine.Refused, statemachine.CodeStaleAttempt)
		})
	}
}

// A claimed attempt stays with its worker, whatever bus the process publishes to.
func TestBus_AClaimedAttemptStaysWithItsWorker(t *testing.T) {
	t.Parallel()
	s := queueStory(t)
	s.does(s.claimed())
	s.bus = statemachine.BusServiceBus
	s.later(29 * time.Second)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobDispatching, awaiting)
	s.wakes(statemachine.WakeTimer, time.Second)
	s.does(statemachine.ClaimExtended{StepID: "one", Pair: s.pair()})
	s.does(s.ack())
	s.does(s.result(statemachine.ResultSucceeded))
	s.is(statemachine.JobInProgress, succeeded, dispatching)
	if s.agg.Outbox.Bus != statemachine.BusServiceBus {
		t.Errorf("the next step goes out by %s", s.agg.Outbox.Bus)
	}
}

// A relay of another bus gives a PENDING row a new pair before it publishes it,
// so that the mark of a publish on the old bus does not count for the new one.
func TestBus_ARelayRefencesARowOfAnother(t *testing.T) {
	t.Parallel()
	for _, from := range []statemachine.Bus{statemachine.BusQueue, statemachine.BusServiceBus} {
		t.Run("of "+string(from), func(t *testing.T) {
			t.Parallel()
			s := heldStory(t, from)
			s.does(statemachine.DispatchClaimed{})
			if s.agg.Outbox.AttemptNo != 1 || s.last.Dispatch != nil {
				t.Fatalf("a relay of its own bus made attempt %d", s.agg.Outbox.AttemptNo)
			}
			mark, ack, id := s.published(), s.ack(), s.agg.Outbox.ID
			to := statemachine.BusServiceBus
			if from == to {
				to = statemachine.BusQueue
			}
			s.bus = to
			s.answers(statemachine.DispatchClaimed{}, statemachine.Refused, statemachine.CodeNotDue)
			s.later(15 * time.Second)
			s.does(statemachine.DispatchClaimed{OutboxID: id})
			row, step := s.agg.Outbox, s.step()
			if row.ID != id || row.Bus != to || row.AttemptNo != 2 || row.State != statemachine.OutboxPending || s.last.Dispatch != row {
				t.Errorf("row %+v", row)
			}
			if row.LeaseID != step.LeaseID || row.AttemptNo != step.AttemptNo || step.Spent != (statemachine.Spent{}) {
				t.Errorf("row %+v of step %+v", row, step)
			}
			s.wakes(statemachine.WakeDispatch, 15*time.Second)
			s.answers(mark, statemachine.Duplicate, "")
			s.answers(ack, statemachine.Refused, statemachine.CodeStaleAttempt)
			s.does(s.published())
			if got, queued := s.step().LeaseExpiresAt, to == statemachine.BusQueue; got.IsZero() != queued {
				t.Errorf("on %s the deadline is %s", to, got)
			}
		})
	}
}

// A row that was rejected and is then taken by another bus gets one new pair, not
// two.
func TestBus_ARejectedRowOfAnotherBusIsRefencedOnce(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1, Reason: "malformed"})
	s.bus = statemachine.BusQueue
	s.later(time.Minute)
	s.does(statemachine.DispatchClaimed{})
	if row := s.agg.Outbox; row.AttemptNo != 2 || row.Rejected || row.Bus != statemachine.BusQueue {
		t.Errorf("row %+v", row)
	}
	if s.step().Spent != (statemachine.Spent{Dispatch: 1}) {
		t.Errorf("spent %+v", s.step().Spent)
	}
}

func TestEnv_PromptIsAskedOncePerNewRow(t *testing.T) {
	t.Parallel()
	s := untold(t, statemachine.BusQueue)
	s.agg.Job.ProtocolID = "protocol_a"
	s.agg.Steps[0].Routing.Lane = 7
	s.agg.Steps[0].Service = "ocr"
	var asked []statemachine.Target
	decide := func(event statemachine.Event) {
		t.Helper()
		e := env(s.now, "lease-1", s.bus, false)
		e.Prompt = func(target statemachine.Target) bool {
			asked = append(asked, target)
			return true
		}
		d, err := statemachine.Decide(s.agg, event, e)
		if err != nil || d.Outcome != statemachine.Applied {
			t.Fatalf("%T: %v %s", event, err, d.Reason)
		}
		s.agg = d.After
	}
	decide(statemachine.Accept{})
	if want := (statemachine.Target{TenantID: "tenant_a", ProtocolID: "protocol_a", Lane: 7, Service: "ocr"}); len(asked) != 1 || asked[0] != want {
		t.Errorf("asked about %+v, want %+v", asked, want)
	}
	decide(s.claimed())
	decide(s.ack())
	decide(s.heartbeat())
	if len(asked) != 1 {
		t.Errorf("asked %d times, for one row", len(asked))
	}
}

// Without Prompt every new row waits for a relay.
func TestEnv_PromptIsOptional(t *testing.T) {
	t.Parallel()
	for _, bus := range []statemachine.Bus{statemachine.BusQueue, statemachine.BusServiceBus} {
		s := untold(t, bus)
		d, err := statemachine.Decide(s.agg, statemachine.Accept{}, statemachine.Env{Now: s.now, LeaseID: "lease", Bus: bus})
		if err != nil {
			t.Fatal(err)
		}
		if d.Hot || d.Added.State != statemachine.OutboxPending || d.Wake.Kind != statemachine.WakeDispatch {
			t.Errorf("on %s the row is %s, hot %t, wake %d", bus, d.Added.State, d.Hot, d.Wake.Kind)
		}
	}
}
