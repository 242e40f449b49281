package statemachine_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// stage is a story whose first step has reached a certain state.
type stage struct {
	name  string
	reach func(t *testing.T) *story
	live  bool // a worker may hold the attempt
}

func stages() []stage {
	return []stage{
		{"not published", newStory, false},
		{"held back from the pull queue", func(t *testing.T) *story { return heldStory(t, statemachine.BusQueue) }, false},
		{"sent", func(t *testing.T) *story { return newStory(t).after((*story).published) }, true},
		{"waiting in the pull queue", queueStory, false},
		{"claimed", func(t *testing.T) *story { return queueStory(t).after((*story).claimed) }, true},
		{"running", func(t *testing.T) *story { return newStory(t).after((*story).ack) }, true},
		{"running from the pull queue", func(t *testing.T) *story {
			return queueStory(t).after((*story).claimed, (*story).ack)
		}, true},
		{"waiting for a retry", func(t *testing.T) *story {
			return newStory(t).after((*story).ack, func(s *story) statemachine.Event {
				return s.result(statemachine.ResultFailedRetry)
			})
		}, false},
	}
}

// after makes and applies the events one by one; each must change the job.
func (s *story) after(events ...func(*story) statemachine.Event) *story {
	s.t.Helper()
	for _, event := range events {
		s.does(event(s))
	}
	return s
}

func TestCancel_InEachState(t *testing.T) {
	t.Parallel()
	for _, stage := range stages() {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			s := stage.reach(t)
			s.does(statemachine.Cancel{})
			s.answers(statemachine.Cancel{}, statemachine.Duplicate, "")
			if !stage.live {
				s.is(statemachine.JobCancelled, cancelled, cancelled)
				s.answers(statemachine.Resume{}, statemachine.Refused, statemachine.CodeIllegalTransition)
				return
			}
			s.is(statemachine.JobCancelling)
			s.does(s.result(statemachine.ResultSucceeded))
			s.is(statemachine.JobCancelled, succeeded, cancelled)
			if s.agg.Job.FinalOutput != nil || s.agg.Job.ErrorCode != statemachine.ErrorCancelled {
				t.Errorf("output %s, error %q", s.agg.Job.FinalOutput, s.agg.Job.ErrorCode)
			}
		})
	}
}

func TestCancel_EndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		end  func(s *story)
		step statemachine.StepState
	}{
		{"by FAILED_FINAL", func(s *story) { s.does(s.result(statemachine.ResultFailedFinal)) }, failed},
		{"by FAILED_RETRY", func(s *story) { s.does(s.result(statemachine.ResultFailedRetry)) }, cancelled},
		{"by its deadline", func(s *story) { s.later(time.Hour); s.does(statemachine.DeadlinePassed{}) }, cancelled},
		{"by an operator's stall", func(s *story) { s.does(statemachine.Stall{StepID: "one", AttemptNo: 1}) }, cancelled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.does(s.ack())
			s.does(statemachine.Cancel{})
			test.end(s)
			s.is(statemachine.JobCancelled, test.step, cancelled)
		})
	}
}

// The worker of a step that was cancelled learns that the step is over, not that a newer
// attempt has replaced its own.
func TestCancel_TheLastPairIsRefusedAsTooLate(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.published())
	ack, beat, result := s.ack(), s.heartbeat(), s.result(statemachine.ResultSucceeded)
	s.does(statemachine.Cancel{})
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{})
	s.is(statemachine.JobCancelled, cancelled, cancelled)
	for _, late := range []statemachine.Event{ack, beat, result} {
		s.answers(late, statemachine.Refused, statemachine.CodeIllegalTransition)
	}
	result.Pair.LeaseID = "guessed"
	s.answers(result, statemachine.Refused, statemachine.CodeStaleAttempt)
}

func TestCancel_OfAnEndedJob(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.result(statemachine.ResultFailedFinal))
	s.answers(statemachine.Cancel{}, statemachine.Refused, statemachine.CodeIllegalTransition)
	s.answers(statemachine.Pause{}, statemachine.Refused, statemachine.CodeIllegalTransition)
}

func TestPause_InEachState(t *testing.T) {
	t.Parallel()
	for _, stage := range stages() {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			s := stage.reach(t)
			before, started := s.ack(), s.agg.Job.Started
			s.does(statemachine.Pause{})
			s.answers(statemachine.Pause{}, statemachine.Duplicate, "")
			want := statemachine.JobDispatching
			if started {
				want = statemachine.JobInProgress
			}
			if stage.live {
				s.is(statemachine.JobPausing)
				s.does(statemachine.Resume{})
				s.is(want)
				return
			}
			s.is(statemachine.JobPaused, waiting)
			s.wakes(statemachine.WakeNone, 0)
			if !started {
				s.answers(before, statemachine.Refused, statemachine.CodeStaleAttempt)
			}
			s.does(statemachine.DeadlinePassed{})
			s.is(statemachine.JobPaused, waiting)
			s.later(time.Hour)
			s.does(statemachine.Resume{})
			published := dispatching
			if s.bus == statemachine.BusQueue {
				published = awaiting
			}
			s.is(want, published)
			if s.agg.Steps[0].AttemptNo != 2 || s.agg.Steps[0].Spent.Ack+s.agg.Steps[0].Spent.Dispatch != 0 {
				t.Errorf("attempt %d, spent %+v", s.agg.Steps[0].AttemptNo, s.agg.Steps[0].Spent)
			}
		})
	}
}

func TestPause_LetsTheLiveAttemptFinish(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	s.does(statemachine.Pause{})
	s.does(s.result(statemachine.ResultSucceeded))
	s.is(statemachine.JobPaused, succeeded, pending)
	s.does(statemachine.Resume{})
	s.is(statemachine.JobInProgress, succeeded, dispatching)
	s.does(statemachine.Pause{})
	s.does(statemachine.Resume{})
	s.does(s.ack())
	s.does(statemachine.Pause{})
	s.does(s.result(statemachine.ResultSucceeded))
	s.is(statemachine.JobSucceeded, succeeded, succeeded)
}

func TestPause_ALateResultCountsWhilePaused(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.does(s.ack())
	result := s.result(statemachine.ResultSucceeded)
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{})
	s.does(statemachine.Pause{})
	s.is(statemachine.JobPaused, waiting)
	s.does(result)
	s.is(statemachine.JobPaused, succeeded, pending)
	s.does(statemachine.Cancel{})
	s.is(statemachine.JobCancelled, succeeded, cancelled)
}
