package statemachine_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// throttled returns the RESULT of a worker whose service wants no more work for so long.
func (s *story) throttled(after time.Duration) statemachine.Result {
	result := s.result(statemachine.ResultFailedRetry)
	result.Throttled, result.RetryAfter = statemachine.ThrottleService, after
	return result
}

// A step without any retry left goes on after a throttled attempt, at exactly the time that the
// service named.
func TestThrottle_SpendsNoBudget(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.agg.Steps[0].Policy.Execution, s.agg.Steps[0].Policy.MaxAttempts = nil, 1
	for n := range statemachine.FreeAttempts {
		s.does(s.ack())
		s.does(s.throttled(7 * time.Second))
		s.is(statemachine.JobInProgress, waiting)
		s.wakes(statemachine.WakeTimer, 7*time.Second)
		if step := s.step(); !step.Throttled || step.Spent != (statemachine.Spent{Free: n + 1}) {
			t.Fatalf("attempt %d was throttled: %t, spent %+v", n+1, step.Throttled, step.Spent)
		}
		s.later(7 * time.Second)
		s.does(statemachine.DeadlinePassed{})
		if s.step().Throttled {
			t.Fatal("the next dispatch leaves the step throttled")
		}
	}
	s.does(s.ack())
	s.does(s.throttled(7 * time.Second))
	s.is(statemachine.JobFailedFinal, failed, pending)
}

// Each throttled attempt beyond the free ones spends the execution budget, also in between other
// failures, and is still due at the time that the service named.
func TestThrottle_SpendsTheExecutionBudgetInTheEnd(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.agg.Steps[0].Spent.Free = statemachine.FreeAttempts - 1
	s.agg.Steps[0].Policy.Execution = []time.Duration{time.Minute, time.Minute}
	for i, want := range []statemachine.Spent{
		{Free: statemachine.FreeAttempts},
		{Free: statemachine.FreeAttempts, Execution: 1},
		{Free: statemachine.FreeAttempts, Execution: 2},
	} {
		s.does(s.ack())
		s.does(s.throttled(time.Second))
		s.wakes(statemachine.WakeTimer, time.Second)
		if step := s.step(); step.Spent != want || !step.Throttled {
			t.Fatalf("after throttled attempt %d: spent %+v, throttled %t", i, step.Spent, step.Throttled)
		}
		s.later(time.Second)
		s.does(statemachine.DeadlinePassed{})
	}
	s.does(s.ack())
	s.does(s.throttled(time.Second))
	s.is(statemachine.JobFailedFinal, failed, pending)
}

// A throttled RESULT after its deadline has spent the budget already: like any late failure it
// changes nothing.
func TestThrottle_OfALateResultChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	s.later(20 * time.Minute)
	s.does(statemachine.DeadlinePassed{})
	late := s.throttled(time.Hour)
	s.does(late)
	if step := s.step(); !s.last.Light || step.Throttled || step.Spent != (statemachine.Spent{Execution: 1}) {
		t.Errorf("light %t, throttled %t, spent %+v", s.last.Light, step.Throttled, step.Spent)
	}
	s.answers(late, statemachine.Duplicate, "")
}

// A throttled attempt is held like any other: cancel and pause end the job, not the throttle.
func TestThrottle_OfAJobThatIsToStop(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ask  statemachine.Event
		job  statemachine.JobState
		step statemachine.StepState
	}{
		"cancelling": {statemachine.Cancel{}, statemachine.JobCancelled, statemachine.StepCancelled},
		"pausing":    {statemachine.Pause{}, statemachine.JobPaused, waiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.does(s.ack())
			s.does(test.ask)
			s.does(s.throttled(time.Minute))
			s.is(test.job, test.step)
		})
	}
}

// stopped returns the RESULT of a worker that ends the attempt because it stops.
func (s *story) stopped(after time.Duration) statemachine.Result {
	result := s.result(statemachine.ResultFailedRetry)
	result.ErrorCode, result.RetryAfter = statemachine.ErrorWorkerStopped, after
	return result
}

// A step survives more restarts of its workers than it has retries. A worker that names no delay
// gets the first one.
func TestWorkerStop_SpendsNoBudget(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.agg.Steps[0].Policy.Execution = []time.Duration{30 * time.Second, 2 * time.Minute}
	s.agg.Steps[0].Policy.MaxAttempts = 2
	for n := range statemachine.FreeAttempts {
		after, wait := time.Second, time.Second
		if n == 1 {
			after, wait = 0, 30*time.Second
		}
		s.does(s.ack())
		s.does(s.stopped(after))
		s.is(statemachine.JobInProgress, waiting)
		s.wakes(statemachine.WakeTimer, wait)
		if step := s.step(); step.Throttled || step.Spent != (statemachine.Spent{Free: n + 1}) {
			t.Fatalf("stop %d: throttled %t, spent %+v", n+1, step.Throttled, step.Spent)
		}
		s.later(wait)
		s.does(statemachine.DeadlinePassed{})
	}
	s.does(s.ack())
	s.does(s.stopped(time.Second))
	if step := s.step(); step.State != waiting || step.Spent != (statemachine.Spent{Free: statemachine.FreeAttempts, Execution: 1}) {
		t.Errorf("beyond the free attempts: step is %s, spent %+v", step.State, step.Spent)
	}
}

// A step that must not run twice fails: the worker that stopped may have done a part of it.
func TestWorkerStop_FailsAStepWithoutRetries(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]statemachine.Policy{
		"no delay":    {Execution: []time.Duration{}},
		"one attempt": {Execution: []time.Duration{time.Minute}, MaxAttempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.agg.Steps[0].Policy = policy.Or(s.agg.Steps[0].Policy)
			s.does(s.ack())
			s.does(s.stopped(time.Second))
			s.is(statemachine.JobFailedFinal, failed, pending)
		})
	}
}
