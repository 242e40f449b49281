package statemachine_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Short names of the states.
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

// A step's output is its RESULT's output_ref, or else its result_ref: the next step's
// input, and the job's final output.
func TestStory_AnOutputIsTheOutputRefFirst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ output, result, input, final string }{
		"both references":       {`{"uri":"o"}`, `{"uri":"r"}`, `{"uri":"o"}`, `{"uri":"o"}`},
		"the directive's again": {`{"uri":"out"}`, `{"uri":"r"}`, `{"uri":"out"}`, `{"uri":"out"}`},
		"an output_ref alone":   {`{"uri":"o"}`, "", `{"uri":"o"}`, `{"uri":"o"}`},
		"a result_ref alone":    {"", `{"uri":"r"}`, `{"uri":"r"}`, `{"uri":"r"}`},
		"neither":               {"", "", `{"uri":"in"}`, `{"uri":"out"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			succeed := func() {
				t.Helper()
				done := s.result(statemachine.ResultSucceeded)
				done.OutputRef, done.ResultRef = []byte(test.output), []byte(test.result)
				s.does(done)
			}
			// The output of an attempt that is repeated is ignored.
			again := s.result(statemachine.ResultFailedRetry)
			again.OutputRef, again.ResultRef = []byte(`{"uri":"half"}`), []byte(`{"uri":"half"}`)
			s.does(again)
			if got := string(s.agg.Steps[0].OutputRef); got != `{"uri":"out"}` {
				t.Errorf("the retry is to write to %s", got)
			}
			s.later(time.Hour)
			s.does(statemachine.DeadlinePassed{})
			succeed()
			if got := string(s.agg.Steps[1].InputRef); got != test.input {
				t.Errorf("the next step's input is %s, want %s", got, test.input)
			}
			succeed()
			if got := string(s.agg.Job.FinalOutput); got != test.final {
				t.Errorf("final output is %s, want %s", got, test.final)
			}
		})
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
	unheard := result
	unheard.Pair.AttemptNo = 99
	s.answers(unheard, statemachine.Refused, statemachine.CodeStaleAttempt)
}

func TestStory_ALateResultEndsTheStepOnce(t *testing.T) {
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

// The newest progress stays until the attempt ends, even if a later heartbeat has none.
func TestStory_ProgressIsShownWhileTheAttemptRuns(t *testing.T) {
	t.Parallel()
	s := queueStory(t)
	says := func(want string) {
		t.Helper()
		if got, _ := json.Marshal(s.agg.Steps[0].Progress); string(got) != want {
			t.Errorf("the step shows %s, want %s", got, want)
		}
	}
	beat := func(progress *statemachine.Progress) {
		t.Helper()
		s.does(statemachine.Heartbeat{StepID: "one", Pair: s.pair(), Progress: progress})
	}
	s.does(s.claimed())
	s.does(statemachine.ClaimExtended{StepID: "one", Pair: s.pair(), Progress: &statemachine.Progress{Message: "fetching"}})
	says(`{"message":"fetching"}`)
	beat(nil) // It implies the ACK.
	says(`{"message":"fetching"}`)
	beat(&statemachine.Progress{Fraction: .25, Message: "x" + strings.Repeat("é", 128)})
	says(`{"fraction":0.25,"message":"x` + strings.Repeat("é", 127) + `"}`)
	beat(nil)
	says(`{"fraction":0.25,"message":"x` + strings.Repeat("é", 127) + `"}`)
	s.does(s.result(statemachine.ResultFailedRetry))
	says("null")
	s.later(time.Minute)
	s.does(statemachine.DeadlinePassed{})
	beat(&statemachine.Progress{Fraction: 1}) // Of the next attempt, with its ACK.
	says(`{"fraction":1}`)
	s.does(s.result(statemachine.ResultSucceeded))
	says("null")
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

// Every delay is multiplied by a factor in [1-Jitter, 1+Jitter], except one that a worker
// asks for.
func TestStory_TheJitterSpreadsEachDelay(t *testing.T) {
	t.Parallel()
	retried := func(s *story) statemachine.Event { return s.result(statemachine.ResultFailedRetry) }
	asked := func(s *story) statemachine.Event {
		result := s.result(statemachine.ResultFailedRetry)
		result.RetryAfter = 7 * time.Second
		return result
	}
	rejected := func(s *story) statemachine.Event {
		return statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1}
	}
	passed := func(*story) statemachine.Event { return statemachine.DeadlinePassed{} }
	stalled := func(*story) statemachine.Event { return statemachine.Stall{StepID: "one", AttemptNo: 1} }
	begun := []func(*story) statemachine.Event{(*story).published, (*story).ack}
	dueAt := func(s *story) time.Time { return s.agg.Outbox.DueAt }
	retryAt := func(s *story) time.Time { return s.agg.Steps[0].NextAttemptAt }
	for _, test := range []struct {
		name  string
		after []func(*story) statemachine.Event
		event func(*story) statemachine.Event
		at    func(*story) time.Time
		delay time.Duration
		exact bool
	}{
		{"a rejected publish", nil, rejected, dueAt, time.Minute, false},
		{"an ACK timeout", begun[:1], passed, retryAt, time.Minute, false},
		{"a RESULT", begun, retried, retryAt, 30 * time.Second, false},
		{"a RESULT that asks for a delay", begun, asked, retryAt, 7 * time.Second, true},
		{"a stall", begun, stalled, retryAt, 30 * time.Second, false},
	} {
		for random, share := range map[float64]float64{0: 0.8, 0.25: 0.9, 0.5: 1, 0.75: 1.1} {
			s := newStory(t)
			for _, event := range test.after {
				s.does(event(s))
			}
			s.later(30 * time.Second)
			in := env(s.now, "fresh", s.bus, false)
			in.Jitter, in.Random = 0.2, random
			d, err := statemachine.Decide(s.agg, test.event(s), in)
			if err != nil || d.Outcome != statemachine.Applied {
				t.Fatalf("%s: %s, %v", test.name, d.Outcome, err)
			}
			s.agg = d.After
			want := time.Duration(float64(test.delay) * share)
			if test.exact {
				want = test.delay
			}
			if got := test.at(s).Sub(s.now); got != want {
				t.Errorf("%s: %s by the random number %g, want %s", test.name, got, random, want)
			}
		}
	}
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
	s.later(20 * time.Second)
	s.does(statemachine.ClaimExtended{StepID: "one", Pair: s.pair()})
	s.later(11 * time.Second)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobDispatching, awaiting)
	s.wakes(statemachine.WakeTimer, 19*time.Second)
}

// A heartbeat makes no deadline earlier: the job's timer is not due before.
func TestStory_AHeartbeatKeepsALongerGrace(t *testing.T) {
	t.Parallel()
	s := queueStory(t)
	s.does(statemachine.Claimed{StepID: "one", Pair: s.pair(), Lease: 10 * time.Second})
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{Outage: s.now})
	s.wakes(statemachine.WakeTimer, 30*time.Second)
	s.does(statemachine.ClaimExtended{StepID: "one", Pair: s.pair()})
	if left := s.step().LeaseExpiresAt.Sub(s.now); left != 30*time.Second {
		t.Errorf("%s are left", left)
	}
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

// An outage of a topic or of the reply topics gives a grace period only to workers that
// could not be reached or could not report.
func TestStory_AnOutageOfTheBusGivesAGrace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event func(s *story) statemachine.DeadlinePassed
		// The state after an attempt without an ACK, and after a running one.
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

// away is an ongoing outage of the topic.
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
	d := statemachine.NewDirective(&s.agg.Job, &s.agg.Steps[0], s.agg.Outbox, nil, "")
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
		"lease_expires_at", "input_ref", "workspace_ref", "output_ref", "payload", "mode", "lane", "routing_key_used", "correlation_id",
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
}

// Its job, step and row yield the example of Option B, 11.4, to which we add the service,
// which names the directive's workers, and the end of the lease.
func TestDirective_EqualsTheExampleOfTheSpecification(t *testing.T) {
	t.Parallel()
	const example = `{
		"type": "DIRECTIVE", "jobId": "job_123", "tenant_id": "tenant_a", "stepId": "step_01",
		"protocol_id": "doc_ingest_v1", "step_type": "OCR", "attempt_no": 1, "lease_id": "9a7c...",
		"input_ref": {"uri": "s3://.../input.pdf"}, "workspace_ref": {"uri": "s3://.../workspace/"},
		"output_ref": {"uri": "s3://.../output.json"}, "payload": {"language": "en"},
		"mode": "DEFAULT", "lane": 4, "routing_key_used": "tenant_a", "correlation_id": "corr-123",
		"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	}`
	job := &statemachine.Job{
		ID: "job_123", TenantID: "tenant_a", ProtocolID: "doc_ingest_v1", WorkspaceRef: []byte(`{"uri":"s3://.../workspace/"}`),
		CorrelationID: "corr-123", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
	}
	step := &statemachine.Step{
		ID: "step_01", Type: "OCR", Service: "ocr", InputRef: []byte(`{"uri":"s3://.../input.pdf"}`),
		Product: statemachine.Product{OutputRef: []byte(`{"uri":"s3://.../output.json"}`)},
	}
	row := &statemachine.Outbox{
		AttemptNo: 1, LeaseID: "9a7c...", Bus: statemachine.BusQueue,
		Routing: statemachine.Routing{ResolvedMode: statemachine.ModeDefault, Lane: 4, RoutingKeyUsed: "tenant_a"},
	}
	directive := statemachine.NewDirective(job, step, row, []byte(`{"language":"en"}`), job.Traceparent)
	body, err := directive.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var got, want map[string]any
	if err := errors.Join(json.Unmarshal(body, &got), json.Unmarshal([]byte(example), &want)); err != nil {
		t.Fatal(err)
	}
	want["service"], want["lease_expires_at"] = "ocr", nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("directive (-specification +got):\n%s", diff)
	}
}

// A directive is composed before its publish, so it names the earliest end of the lease.
// Each attempt has a different one; a directive in the pull queue has none.
func TestDirective_NamesTheEarliestEndOfItsLease(t *testing.T) {
	t.Parallel()
	expires := func(s *story) *string {
		return statemachine.NewDirective(&s.agg.Job, &s.agg.Steps[0], s.agg.Outbox, nil, "").LeaseExpiresAt
	}
	is := func(when string, s *story, want time.Time) {
		t.Helper()
		got := expires(s)
		if got == nil {
			t.Fatalf("%s: it has no end", when)
		}
		if at, err := time.Parse(time.RFC3339Nano, *got); err != nil || !at.Equal(want) {
			t.Errorf("%s: it ends at %s (%v), want %s", when, *got, err, want)
		}
	}
	s := newStory(t)
	is("accepted", s, start.Add(policy().AckTimeout))
	s.does(statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1, Reason: "malformed"})
	s.later(time.Hour)
	s.does(statemachine.DispatchClaimed{})
	is("after a rejection", s, start.Add(time.Hour+policy().AckTimeout))
	s.later(time.Minute)
	s.does(s.published())
	if sent := s.agg.Steps[0].LeaseExpiresAt; sent.Before(start.Add(time.Hour + policy().AckTimeout)) {
		t.Errorf("the lease ends at %s, before its directive says", sent)
	}
	if got := expires(queueStory(t)); got != nil {
		t.Errorf("in the pull queue it ends at %s", *got)
	}
}

// The limits on accepted references and payloads bound the size of directives.
func TestDirective_TakesNoMoreRoomThanItsParts(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage("{\"a\":\"<&>'\u2028\u2029\\u003c\"}")
	body, err := (&statemachine.Directive{InputRef: raw, WorkspaceRef: raw, OutputRef: raw, Payload: raw}).Bytes()
	if err != nil || strings.Count(string(body), string(raw)) != 4 {
		t.Errorf("%s became %s, %v", raw, body, err)
	}
}
