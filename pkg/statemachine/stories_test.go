package statemachine_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The states, short.
const (
	dispatching = statemachine.StepDispatching
	awaiting    = statemachine.StepAwaitingAck
	running     = statemachine.StepInProgress
	waiting     = statemachine.StepFailedRetry
	succeeded   = statemachine.StepSucceeded
	failed      = statemachine.StepFailedFinal
	cancelled   = statemachine.StepCancelled
	pending     = statemachine.StepPending
)

func TestStory_AJobWalksThroughItsSteps(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.is(statemachine.JobDispatching, dispatching, pending)
	s.wakes(statemachine.WakeTimer, 15*time.Second)
	s.does(s.published())
	s.is(statemachine.JobDispatching, awaiting, pending)
	s.wakes(statemachine.WakeTimer, 30*time.Second)
	s.does(s.ack())
	s.is(statemachine.JobInProgress, running, pending)
	s.wakes(statemachine.WakeTimer, 15*time.Minute)
	s.does(s.result(statemachine.ResultSucceeded))
	s.is(statemachine.JobInProgress, succeeded, dispatching)
	if got := string(s.agg.Steps[1].InputRef); got != `{"uri":"r-one"}` {
		t.Errorf("the second step's input is %s", got)
	}
	s.does(s.published())
	s.does(s.ack())
	s.does(s.result(statemachine.ResultSucceeded))
	s.is(statemachine.JobSucceeded, succeeded, succeeded)
	s.wakes(statemachine.WakeNone, 0)
	if got := string(s.agg.Job.FinalOutput); got != `{"uri":"r-two"}` {
		t.Errorf("final output is %s", got)
	}
	if s.agg.Job.Rev != 7 || s.agg.Job.AttemptsTotal != 2 {
		t.Errorf("rev %d, %d attempts", s.agg.Job.Rev, s.agg.Job.AttemptsTotal)
	}
}

func TestStory_AFastWorkerBeatsTheRelaysMark(t *testing.T) {
	t.Parallel()
	t.Run("with its ACK", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		mark := s.published()
		s.does(s.ack())
		s.is(statemachine.JobInProgress, running)
		s.answers(mark, statemachine.Duplicate, "")
	})
	t.Run("with its RESULT", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		mark, ack, result := s.published(), s.ack(), s.result(statemachine.ResultSucceeded)
		s.does(result)
		s.is(statemachine.JobInProgress, succeeded, dispatching)
		s.answers(mark, statemachine.Duplicate, "")
		s.answers(ack, statemachine.Duplicate, "")
		s.answers(result, statemachine.Duplicate, "")
	})
}

func TestStory_AStaleWorkerAfterAnAckTimeout(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.published())
	ack, beat, result := s.ack(), s.heartbeat(), s.result(statemachine.ResultSucceeded)
	s.later(30 * time.Second)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobDispatching, waiting)
	s.wakes(statemachine.WakeTimer, time.Minute)
	s.answers(ack, statemachine.Refused, statemachine.CodeStaleAttempt)
	s.answers(beat, statemachine.Refused, statemachine.CodeStaleAttempt)
	s.later(time.Minute)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobDispatching, dispatching)
	s.answers(result, statemachine.Refused, statemachine.CodeStaleAttempt)
	if s.last.Fenced == nil || s.last.Fenced.AttemptNo != 1 {
		t.Errorf("the stale RESULT is not recorded: %+v", s.last.Fenced)
	}
	unheard := result
	unheard.Pair.AttemptNo = 99
	s.answers(unheard, statemachine.Refused, statemachine.CodeStaleAttempt)
	if s.last.Fenced != nil {
		t.Error("a number that was never given out is recorded")
	}
}

func TestStory_ALateResultIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	for _, status := range []statemachine.ResultStatus{statemachine.ResultSucceeded, statemachine.ResultFailedFinal} {
		s := newStory(t)
		s.does(s.published())
		s.does(s.ack())
		result := s.result(status)
		s.later(15 * time.Minute)
		s.does(statemachine.DeadlinePassed{})
		s.is(statemachine.JobInProgress, waiting)
		s.does(result)
		if status == statemachine.ResultSucceeded {
			s.is(statemachine.JobInProgress, succeeded, dispatching)
		} else {
			s.is(statemachine.JobFailedFinal, failed, pending)
		}
	}
}

func TestStory_ALateFailureIsRememberedAndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.published())
	s.does(s.ack())
	late := s.result(statemachine.ResultFailedRetry)
	s.later(15 * time.Minute)
	s.does(statemachine.DeadlinePassed{})
	rev := s.agg.Job.Rev
	s.does(late)
	if !s.last.Light || s.agg.Job.Rev != rev {
		t.Error("a late FAILED_RETRY changed the job")
	}
	s.answers(late, statemachine.Duplicate, "")
}

func TestStory_AFailureKeepsItsCodeOrIsNamedAfterItsStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []statemachine.ResultStatus{statemachine.ResultFailedRetry, statemachine.ResultFailedFinal} {
		for _, given := range []string{"corrupt_pdf", ""} {
			s := newStory(t)
			s.does(s.published())
			result := s.result(status)
			result.ErrorCode = given
			s.does(result)
			want := status.ErrorCode(given)
			if got := s.agg.Steps[0].LastErrorCode; got != want || want == "" || given != "" && want != given {
				t.Errorf("%s with the code %q is %q, want %q", status, given, got, want)
			}
		}
	}
	if got := statemachine.ResultSucceeded.ErrorCode(""); got != "" {
		t.Errorf("a success has the code %q", got)
	}
}

func TestStory_AContradictionIsRefused(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	first, other := s.result(statemachine.ResultFailedRetry), s.result(statemachine.ResultSucceeded)
	s.does(first)
	s.answers(other, statemachine.Refused, statemachine.CodeContradictoryResult)
	refs := first
	refs.ResultRef = []byte(`{"uri":"another"}`)
	s.answers(refs, statemachine.Duplicate, "")
}

func TestStory_BudgetsRunOut(t *testing.T) {
	t.Parallel()
	t.Run("of ACK timeouts", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		for _, delay := range []time.Duration{time.Minute, 5 * time.Minute} {
			s.does(s.published())
			s.later(30 * time.Second)
			s.does(statemachine.DeadlinePassed{})
			s.is(statemachine.JobDispatching, waiting)
			s.wakes(statemachine.WakeTimer, delay)
			s.later(delay)
			s.does(statemachine.DeadlinePassed{})
		}
		s.does(s.published())
		s.later(30 * time.Second)
		s.does(statemachine.DeadlinePassed{})
		s.is(statemachine.JobFailedFinal, failed, pending)
		if s.agg.Job.ErrorCode != statemachine.ErrorAckTimeout || s.agg.Steps[0].AttemptNo != 3 {
			t.Errorf("%s after %d attempts", s.agg.Job.ErrorCode, s.agg.Steps[0].AttemptNo)
		}
	})
	t.Run("of rejected publishes", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		reject := func() statemachine.Event {
			return statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: s.agg.Outbox.AttemptNo, Reason: "malformed"}
		}
		old := s.pair()
		s.does(reject())
		s.is(statemachine.JobDispatching, dispatching)
		s.wakes(statemachine.WakeDispatch, time.Minute)
		s.answers(statemachine.DispatchClaimed{}, statemachine.Refused, statemachine.CodeNotDue)
		s.later(time.Minute)
		s.does(statemachine.DispatchClaimed{})
		if s.pair() == old || s.last.Dispatch == nil || s.agg.Outbox.AttemptNo != 2 {
			t.Error("the retry carries the old pair")
		}
		s.answers(statemachine.Ack{StepID: "one", Pair: old}, statemachine.Refused, statemachine.CodeStaleAttempt)
		s.does(reject())
		s.is(statemachine.JobFailedFinal, failed, pending)
		if s.agg.Job.ErrorCode != statemachine.ErrorDispatchExhausted || s.agg.Outbox.State != statemachine.OutboxFailedFinal {
			t.Errorf("%s, row %s", s.agg.Job.ErrorCode, s.agg.Outbox.State)
		}
	})
	t.Run("at once by a permanent rejection", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		s.does(statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1, Permanent: true, Reason: "too large"})
		s.is(statemachine.JobFailedFinal, failed, pending)
	})
	t.Run("by the cap over all causes", func(t *testing.T) {
		t.Parallel()
		s := newStory(t)
		s.agg.Steps[0].Policy.MaxAttempts = 1
		s.does(s.ack())
		s.does(s.result(statemachine.ResultFailedRetry))
		s.is(statemachine.JobFailedFinal, failed, pending)
	})
}

func TestStory_AHeartbeatKeepsALongStepAliveUntilItsTimeout(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.agg.Steps[0].Policy.Timeout = 40 * time.Minute
	s.does(s.ack())
	for range 3 {
		s.later(10 * time.Minute)
		s.does(s.heartbeat())
	}
	if got := s.agg.Steps[0].LeaseExpiresAt; !got.Equal(start.Add(40 * time.Minute)) {
		t.Errorf("the lease reaches to %s, past the step's timeout", got)
	}
	s.later(10 * time.Minute)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobInProgress, waiting)
	if s.agg.Steps[0].LastErrorCode != statemachine.ErrorStepTimeout || s.agg.Steps[0].Spent.Execution != 1 {
		t.Errorf("%s, spent %+v", s.agg.Steps[0].LastErrorCode, s.agg.Steps[0].Spent)
	}
}

func TestStory_RetryAfterReplacesTheBackoff(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	result := s.result(statemachine.ResultFailedRetry)
	result.RetryAfter = 7 * time.Second
	s.does(result)
	s.wakes(statemachine.WakeTimer, 7*time.Second)
}

func TestStory_OperatorsSpendNothing(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	s.does(statemachine.Stall{StepID: "one", AttemptNo: 1})
	s.is(statemachine.JobInProgress, waiting)
	s.does(statemachine.Retry{})
	s.is(statemachine.JobInProgress, dispatching)
	if s.agg.Steps[0].Spent != (statemachine.Spent{}) || s.agg.Steps[0].AttemptNo != 2 {
		t.Errorf("spent %+v, attempt %d", s.agg.Steps[0].Spent, s.agg.Steps[0].AttemptNo)
	}
}

func TestStory_APulledDirectiveWaitsForItsWorker(t *testing.T) {
	t.Parallel()
	s := queueStory(t)
	s.is(statemachine.JobDispatching, awaiting)
	s.wakes(statemachine.WakeNone, 0)
	s.later(24 * time.Hour)
	s.does(s.claimed())
	s.wakes(statemachine.WakeTimer, 30*time.Second)
	s.answers(s.claimed(), statemachine.Refused, statemachine.CodeIllegalTransition)
	s.does(statemachine.ClaimExtended{StepID: "one", Pair: s.pair(), By: s.now.Add(time.Minute)})
	s.later(31 * time.Second)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobDispatching, awaiting)
	s.wakes(statemachine.WakeTimer, 29*time.Second)
}

func TestStory_AnOutageGivesAGrace(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.published())
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{Outage: s.now})
	s.is(statemachine.JobDispatching, awaiting)
	s.wakes(statemachine.WakeTimer, 30*time.Second)
	s.does(s.ack())
	s.is(statemachine.JobInProgress, running)
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{Outage: s.now})
	s.wakes(statemachine.WakeTimer, 5*time.Minute)
}

// An outage of a topic, or of the way back, gives a grace to those alone who could
// not be reached or could not report.
func TestStory_AnOutageOfTheBusGivesAGrace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event func(s *story) statemachine.DeadlinePassed
		// What becomes of an attempt without an ACK, and of one that runs.
		unacknowledged, run statemachine.StepState
	}{
		"its topic": {func(s *story) statemachine.DeadlinePassed { return away(s, "topic1") }, awaiting, statemachine.StepFailedRetry},
		"another topic": {
			func(s *story) statemachine.DeadlinePassed { return away(s, "topic2") },
			statemachine.StepFailedRetry, statemachine.StepFailedRetry,
		},
		"the way back": {
			func(s *story) statemachine.DeadlinePassed { return statemachine.DeadlinePassed{Replies: s.now} }, awaiting, running,
		},
		"long ago": {
			func(s *story) statemachine.DeadlinePassed {
				return statemachine.DeadlinePassed{Replies: s.now.Add(-59 * time.Minute)}
			},
			statemachine.StepFailedRetry, statemachine.StepFailedRetry,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.agg.Steps[0].Routing.Topic = "topic1"
			s.does(s.published())
			s.later(time.Hour)
			s.does(test.event(s))
			s.is(statemachine.JobDispatching, test.unacknowledged)

			s = newStory(t)
			s.agg.Steps[0].Routing.Topic = "topic1"
			s.does(s.published())
			s.does(s.ack())
			s.later(time.Hour)
			s.does(test.event(s))
			s.is(statemachine.JobInProgress, test.run)
		})
	}
}

// away is an outage of the topic that goes on.
func away(s *story, topic string) statemachine.DeadlinePassed {
	end := s.now
	return statemachine.DeadlinePassed{Topic: func(name string) time.Time {
		if name == topic {
			return end
		}
		return time.Time{}
	}}
}

func TestStory_ErrorTextsAreCut(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	result := s.result(statemachine.ResultFailedFinal)
	result.ErrorCode = strings.Repeat("c", 1000)
	result.ErrorMessage = strings.Repeat("é", 1000)
	s.does(result)
	if len(s.agg.Job.ErrorCode) != 128 || len(s.agg.Job.ErrorMessage) != 1024 || !utf8.ValidString(s.agg.Job.ErrorMessage) {
		t.Errorf("kept a code of %d bytes and a message of %d", len(s.agg.Job.ErrorCode), len(s.agg.Job.ErrorMessage))
	}
}

func TestDirective_HoldsEveryField(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	d := statemachine.NewDirective(&s.agg.Job, &s.agg.Steps[0], s.agg.Outbox, nil)
	body, err := d.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"type", "jobId", "stepId", "tenant_id", "protocol_id", "step_type", "service", "attempt_no", "lease_id",
		"input_ref", "workspace_ref", "output_ref", "payload", "mode", "lane", "routing_key_used", "correlation_id",
		"traceparent",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s is missing", name)
		}
		delete(fields, name)
	}
	if len(fields) > 0 {
		t.Errorf("unknown fields %v", fields)
	}
	redacted, err := statemachine.WithoutLease(body)
	if err != nil || strings.Contains(string(redacted), s.agg.Outbox.LeaseID) {
		t.Errorf("without its lease the directive is %s (%v)", redacted, err)
	}
}

// The way in bounds references and payloads for the directive that they become.
func TestDirective_TakesNoMoreRoomThanItsParts(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage("{\"a\":\"<&>'\u2028\u2029\\u003c\"}")
	body, err := (&statemachine.Directive{InputRef: raw, WorkspaceRef: raw, OutputRef: raw, Payload: raw}).Bytes()
	if err != nil || strings.Count(string(body), string(raw)) != 4 {
		t.Errorf("%s became %s, %v", raw, body, err)
	}
}
