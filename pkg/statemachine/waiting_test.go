package statemachine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// waits returns what the story's job waits for.
func (s *story) waits(around statemachine.Surroundings) statemachine.Waiting {
	return s.agg.Waiting(s.now, &around)
}

// at returns the time that long after the start of the story.
func at(d time.Duration) time.Time { return start.Add(d) }

// Each story ends ten minutes after its start, in a state with a different reason.
func TestWaiting_EachReason(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	paused := &statemachine.ScopePause{
		Scope: statemachine.Scope{Kind: "service", Value: "ocr"}, State: statemachine.ScopePaused, Actor: "ops-1",
		Reason: "OCR is down", CreatedAt: at(4 * minute),
	}
	expiring := new(*paused)
	expiring.Actor, expiring.Until = "", at(11*minute)
	ramping := &statemachine.ScopePause{
		State: statemachine.ScopeRamping, Actor: "ops-1", Reason: "a rest", CreatedAt: at(-minute),
		ResumedAt: at(10 * minute), Ramp: minute,
	}
	circuit := &statemachine.OpenCircuit{Name: "topic-1", Reason: "topic is disabled", Since: at(3 * minute), Until: at(10*minute + 5*time.Second)}
	limit := &statemachine.StartLimit{ID: "service:ocr", Reason: "vendor quota", Until: at(11 * minute)}
	full := &statemachine.StartLimit{ID: "service:ocr", Reason: "sessions", MaxRunning: 40}
	closed := &statemachine.StartLimit{ID: "service:ocr", Actor: "w-7", Reason: "quota", Closed: true, Until: at(11 * minute)}
	limited := statemachine.Blocker{Type: statemachine.BlockerLimit, ID: "service:ocr"}
	pause, held := statemachine.Blocker{Type: statemachine.BlockerPause, ID: "service:ocr"}, statemachine.Blocker{Type: statemachine.BlockerWork, ID: "w"}
	running := func(s *story) {
		s.does(s.claimed())
		s.later(minute)
		s.does(s.ack())
	}
	for name, test := range map[string]struct {
		bus    statemachine.Bus
		held   bool // at the accept
		tell   func(s *story)
		around statemachine.Surroundings
		want   statemachine.Waiting
	}{
		"paused by a client": {
			bus: statemachine.BusQueue, tell: func(s *story) { s.does(statemachine.Pause{}) },
			// A pause by scope holds back only directives.
			around: statemachine.Surroundings{Pause: paused, Polled: at(-time.Hour)},
			want:   statemachine.Waiting{Reason: "job_paused", Detail: "the job is paused, and goes on when it is resumed"},
		},
		"until fewer run than a limit allows": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Limit: full, Polled: at(-time.Hour)},
			want: statemachine.Waiting{
				Reason: "at_capacity", BlockedBy: limited, Detail: "as many attempts run as limit service:ocr allows, 40: sessions",
			},
		},
		"until a limit has a start left": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Limit: limit, Polled: at(-time.Hour)},
			want: statemachine.Waiting{
				Reason: "rate_limited", Until: at(11 * minute), BlockedBy: limited,
				Detail: "limit service:ocr has no start left; the next comes at 2026-01-02T03:15:05.000Z: vendor quota",
			},
		},
		"until a service opens": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Limit: closed},
			want: statemachine.Waiting{
				Reason: "rate_limited", Until: at(11 * minute), BlockedBy: limited,
				Detail: "service:ocr is closed by w-7, and opens at 2026-01-02T03:15:05.000Z: quota",
			},
		},
		"a closed service under a pause": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Limit: closed, Pause: expiring},
			want: statemachine.Waiting{
				Reason: "scope_paused", Since: at(4 * minute), Until: at(11 * minute),
				Detail: "paused, resumes at 2026-01-02T03:15:05.000Z: OCR is down", BlockedBy: pause,
			},
		},
		"until a service on Service Bus opens": {
			bus: statemachine.BusServiceBus, held: true, around: statemachine.Surroundings{Limit: closed},
			want: statemachine.Waiting{
				Reason: "rate_limited", Until: at(11 * minute), BlockedBy: limited,
				Detail: "service:ocr is closed by w-7, and opens at 2026-01-02T03:15:05.000Z: quota",
			},
		},
		"until a pause expires": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Pause: expiring},
			want: statemachine.Waiting{
				Reason: "scope_paused", Since: at(4 * minute), Until: at(11 * minute),
				Detail: "paused, resumes at 2026-01-02T03:15:05.000Z: OCR is down", BlockedBy: pause,
			},
		},
		"a row under a pause": {
			bus: statemachine.BusQueue, held: true, around: statemachine.Surroundings{Pause: paused},
			want: statemachine.Waiting{Reason: "scope_paused", Since: at(4 * minute), Detail: "paused by ops-1: OCR is down", BlockedBy: pause},
		},
		"a row under a ramp": {
			bus: statemachine.BusServiceBus, held: true, around: statemachine.Surroundings{Pause: ramping, Circuit: circuit},
			want: statemachine.Waiting{
				Reason: "scope_paused", Until: at(11 * minute), Detail: "the pause by ops-1 ramps up until 2026-01-02T03:15:05.000Z",
				BlockedBy: statemachine.Blocker{Type: statemachine.BlockerPause, ID: "all"},
			},
		},
		"a queued directive under a pause": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Pause: paused, Polled: at(-time.Hour)},
			want: statemachine.Waiting{Reason: "scope_paused", Since: at(4 * minute), Detail: "paused by ops-1: OCR is down", BlockedBy: pause},
		},
		"a queued directive under a ramp": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Pause: ramping},
			want: statemachine.Waiting{Reason: "queued", Detail: "attempt 1 waits for a worker of service ocr, step type OCR"},
		},
		"bulk work": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				s.does(statemachine.Prioritize{Class: statemachine.ClassBulk})
			},
			want: statemachine.Waiting{Reason: "queued", Detail: "attempt 1 waits for a worker of service ocr, step type OCR, as bulk work"},
		},
		"a directive in a worker's hands under a pause": {
			bus: statemachine.BusQueue, tell: running, around: statemachine.Surroundings{Pause: paused},
			want: statemachine.Waiting{
				Reason: "silent", Since: at(8*minute + 30*time.Second), Until: at(16 * minute), BlockedBy: held,
				Detail: "worker-1 runs attempt 1 and has sent no heartbeat since 2026-01-02T03:05:05.000Z; the lease ends at 2026-01-02T03:20:05.000Z",
			},
		},
		"a row of a topic that is out of service": {
			bus: statemachine.BusServiceBus, around: statemachine.Surroundings{Circuit: circuit},
			want: statemachine.Waiting{
				Reason: "circuit_open", Since: at(3 * minute), Until: circuit.Until,
				Detail:    "circuit topic-1 is open: topic is disabled; a relay tries again at 2026-01-02T03:14:10.000Z",
				BlockedBy: statemachine.Blocker{Type: statemachine.BlockerCircuit, ID: "topic-1"},
			},
		},
		"a row for the pull queue": {
			bus: statemachine.BusQueue, held: true, around: statemachine.Surroundings{Circuit: circuit},
			want: statemachine.Waiting{Reason: "publishing", Detail: "attempt 1 is to be published"},
		},
		"a row that a slow store holds up": {
			bus: statemachine.BusServiceBus, around: statemachine.Surroundings{Slow: at(5 * minute)},
			want: statemachine.Waiting{
				Reason: "publishing",
				Detail: "attempt 1 is to be published; the store is slow: calls of it take too long since 2026-01-02T03:09:05.000Z",
			},
		},
		"a lease that a slow store does not matter to yet": {
			bus: statemachine.BusQueue, tell: running, around: statemachine.Surroundings{Slow: at(5 * minute)},
			want: statemachine.Waiting{
				Reason: "silent", Since: at(8*minute + 30*time.Second), Until: at(16 * minute), BlockedBy: held,
				Detail: "worker-1 runs attempt 1 and has sent no heartbeat since 2026-01-02T03:05:05.000Z; the lease ends at 2026-01-02T03:20:05.000Z",
			},
		},
		"a row that the bus rejected": {
			bus: statemachine.BusServiceBus, tell: func(s *story) {
				s.later(9*minute + 30*time.Second)
				s.does(statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1, Reason: "malformed"})
			},
			// Gates after the delay do not matter yet.
			around: statemachine.Surroundings{Pause: paused, Circuit: circuit},
			want: statemachine.Waiting{
				Reason: "backoff", Since: at(9*minute + 30*time.Second), Until: at(10*minute + 30*time.Second),
				Detail: "dispatch retry 1 of 1 at 2026-01-02T03:14:35.000Z after publish_rejected",
			},
		},
		"a row that the bus rejected, after its delay": {
			bus: statemachine.BusServiceBus, tell: func(s *story) {
				s.does(statemachine.PublishRejected{OutboxID: s.agg.Outbox.ID, AttemptNo: 1, Reason: "malformed"})
			},
			around: statemachine.Surroundings{Pause: paused},
			want:   statemachine.Waiting{Reason: "scope_paused", Since: at(4 * minute), Detail: "paused by ops-1: OCR is down", BlockedBy: pause},
		},
		"queued, and no worker polls": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Polled: at(9*minute - time.Millisecond)},
			want: statemachine.Waiting{
				Reason: "no_worker", Since: at(9*minute - time.Millisecond),
				Detail: "no worker has polled for service ocr, step type OCR since 2026-01-02T03:13:04.999Z",
			},
		},
		"queued, and a worker polled a minute ago": {
			bus: statemachine.BusQueue, around: statemachine.Surroundings{Polled: at(9 * minute)},
			want: statemachine.Waiting{Reason: "queued", Detail: "attempt 1 waits for a worker of service ocr, step type OCR"},
		},
		"claimed": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				s.later(9*minute + 40*time.Second)
				s.does(s.claimed())
			},
			want: statemachine.Waiting{
				Reason: "delivered", Since: at(9*minute + 40*time.Second), Until: at(10*minute + 10*time.Second), BlockedBy: held,
				Detail: "attempt 1 was delivered to worker-1, and its ACK is due by 2026-01-02T03:14:15.000Z",
			},
		},
		"published": {
			bus: statemachine.BusServiceBus, tell: func(s *story) {
				s.later(9*minute + 40*time.Second)
				s.does(s.published())
			},
			around: statemachine.Surroundings{Pause: paused, Circuit: circuit},
			want: statemachine.Waiting{
				Reason: "delivered", Since: at(9*minute + 40*time.Second), Until: at(10*minute + 10*time.Second),
				Detail: "attempt 1 was sent to topic topic-1; whether a worker has it is not known; its ACK is due by 2026-01-02T03:14:15.000Z",
			},
		},
		"running": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(minute + 30*time.Second)
				s.does(s.heartbeat()) // Half of the lease ago.
			},
			want: statemachine.Waiting{
				Reason: "running", Since: at(minute), Until: at(17*minute + 30*time.Second),
				Detail: "a worker runs attempt 1 and was last heard of at 2026-01-02T03:06:35.000Z",
			},
		},
		"silent, after an outage": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				s.agg.Steps[0].Policy.Lease = 6 * minute
				running(s)
				s.later(7 * minute)
				s.does(statemachine.DeadlinePassed{Outage: s.now.Add(time.Second)})
			},
			want: statemachine.Waiting{
				Reason: "silent", Since: at(4 * minute), Until: at(10*minute + time.Second),
				Detail: "a worker runs attempt 1 and has sent no heartbeat since 2026-01-02T03:05:05.000Z; the lease ends at 2026-01-02T03:14:06.000Z",
			},
		},
		"before the next attempt": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(8*minute + 45*time.Second)
				failed := s.result(statemachine.ResultFailedRetry)
				failed.ErrorCode = "TIMEOUT"
				s.does(failed)
			},
			around: statemachine.Surroundings{Pause: paused},
			want: statemachine.Waiting{
				Reason: "backoff", Since: at(9*minute + 45*time.Second), Until: at(10*minute + 15*time.Second),
				Detail: "execution retry 1 of 1 at 2026-01-02T03:14:20.000Z after TIMEOUT",
			},
		},
		"before the next attempt, after an operator took the attempt": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(8*minute + 45*time.Second)
				s.does(statemachine.Stall{StepID: s.step().ID, AttemptNo: 1})
			},
			want: statemachine.Waiting{
				Reason: "backoff", Since: at(9*minute + 45*time.Second), Until: at(10*minute + 15*time.Second),
				Detail: "an operator ended attempt 1; the next is at 2026-01-02T03:14:20.000Z and spends no retry",
			},
		},
		"before the next attempt, after the worker stopped": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(8*minute + 45*time.Second)
				s.does(s.stopped(time.Second))
			},
			want: statemachine.Waiting{
				Reason: "backoff", Since: at(9*minute + 45*time.Second), Until: at(9*minute + 46*time.Second),
				Detail: "the worker of attempt 1 stopped; the next is at 2026-01-02T03:13:51.000Z and spends no retry",
			},
		},
		"until the service that throttled it takes work again": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(8*minute + 45*time.Second)
				s.does(s.throttled(time.Minute))
			},
			around: statemachine.Surroundings{Pause: paused},
			want: statemachine.Waiting{
				Reason: "rate_limited", Since: at(9*minute + 45*time.Second), Until: at(10*minute + 45*time.Second),
				Detail: "service ocr throttled attempt 1; the next is at 2026-01-02T03:14:50.000Z and spends no retry",
			},
		},
		"until then, after more throttled attempts than are free": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				s.agg.Steps[0].Spent.Free = statemachine.FreeAttempts
				running(s)
				s.later(8*minute + 45*time.Second)
				s.does(s.throttled(time.Minute))
			},
			want: statemachine.Waiting{
				Reason: "rate_limited", Since: at(9*minute + 45*time.Second), Until: at(10*minute + 45*time.Second),
				Detail: "service ocr throttled attempt 1; the next is at 2026-01-02T03:14:50.000Z, as execution retry 1 of 1",
			},
		},
		"paused while the service throttles it": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(minute)
				s.does(s.throttled(time.Hour))
				s.does(statemachine.Pause{})
			},
			want: statemachine.Waiting{
				Reason: "job_paused", Since: at(2 * minute), Detail: "the job is paused, and goes on when it is resumed",
			},
		},
		"being cancelled": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				running(s)
				s.later(minute)
				s.does(statemachine.Cancel{})
			},
			around: statemachine.Surroundings{Pause: paused},
			want: statemachine.Waiting{
				Reason: "cancelling", Since: at(2 * minute), Until: at(16 * minute), BlockedBy: held,
				Detail: "the job is cancelled once worker-1 ends attempt 1; the lease ends at 2026-01-02T03:20:05.000Z",
			},
		},
		"being paused": {
			bus: statemachine.BusQueue, tell: func(s *story) {
				s.does(s.claimed())
				s.does(statemachine.Pause{})
				s.later(minute)
				s.does(s.ack()) // The job is still pausing.
			},
			want: statemachine.Waiting{Reason: "pausing", Until: at(16 * minute), Detail: "the job is paused once a worker ends attempt 1; the lease ends at 2026-01-02T03:20:05.000Z"},
		},
		"ended": {bus: statemachine.BusQueue, tell: func(s *story) { s.does(statemachine.Cancel{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := untold(t, test.bus)
			s.agg.Steps[0].Service, s.agg.Steps[0].Type = "ocr", "OCR"
			s.agg.Steps[0].Routing.Topic = "topic-1"
			s.held = test.held
			s.does(statemachine.Accept{})
			if test.tell != nil {
				test.tell(s)
			}
			if test.want.BlockedBy == held { // The ledger writes both.
				s.agg.Steps[0].WorkID, s.agg.Steps[0].Owner = "w", "worker-1"
			}
			s.now = at(10 * minute)
			if test.want.Since.IsZero() && test.want.Reason != "" {
				test.want.Since = start
			}
			if diff := cmp.Diff(test.want, s.waits(test.around)); diff != "" {
				t.Errorf("it waits for (-want +got):\n%s", diff)
			}
		})
	}
}

// Each cause has its own retries: those of another cause do not add to them, but the cap
// over all causes may take some.
func TestWaiting_CountsTheRetriesOfItsCause(t *testing.T) {
	t.Parallel()
	const ack, execution = statemachine.CauseAck, statemachine.CauseExecution
	for name, test := range map[string]struct {
		most     int
		failures []statemachine.Cause
		want     []string // of each failure; that of the last one, which ends the job, is empty
	}{
		"one cause": {10, []statemachine.Cause{execution, execution, execution}, []string{"execution retry 1 of 2", "execution retry 2 of 2", ""}},
		"two causes": {
			10,
			[]statemachine.Cause{ack, execution, ack, execution, ack, ack},
			[]string{"ack retry 1 of 3", "execution retry 1 of 2", "ack retry 2 of 3", "execution retry 2 of 2", "ack retry 3 of 3", ""},
		},
		"the cap ends it first": {3, []statemachine.Cause{ack, ack, ack}, []string{"ack retry 1 of 2", "ack retry 2 of 2", ""}},
		"the cap, after another cause": {
			3, []statemachine.Cause{execution, ack, ack}, []string{"execution retry 1 of 2", "ack retry 1 of 1", ""},
		},
		"no cap": {0, []statemachine.Cause{ack}, []string{"ack retry 1 of 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.agg.Steps[0].Policy = statemachine.Policy{
				AckTimeout: time.Minute, Lease: time.Minute, MaxAttempts: test.most,
				Ack: []time.Duration{time.Second, time.Second, time.Second}, Execution: []time.Duration{time.Second, time.Second},
			}
			for i, cause := range test.failures {
				s.does(s.published())
				if cause == execution {
					s.does(s.ack())
				}
				s.later(time.Minute)
				s.does(statemachine.DeadlinePassed{})
				got, _, _ := strings.Cut(s.waits(statemachine.Surroundings{}).Detail, " at ")
				if got != test.want[i] {
					t.Errorf("failure %d: it waits for %q, want %q", i+1, got, test.want[i])
				}
				if test.want[i] != "" {
					s.later(time.Second)
					s.does(statemachine.DeadlinePassed{})
				}
			}
		})
	}
}

// A later change that leaves the job waiting for the same thing does not restart the wait.
func TestWaiting_SinceIsWhenTheWaitBegan(t *testing.T) {
	t.Parallel()
	s := queueStory(t)
	s.does(s.claimed())
	s.does(s.ack())
	s.later(time.Hour)
	s.does(statemachine.DeadlinePassed{})
	late := s.result(statemachine.ResultSucceeded)
	s.does(statemachine.Pause{})
	since := s.now
	for _, event := range []statemachine.Event{statemachine.DeadlinePassed{}, late} {
		s.later(time.Minute)
		s.does(event)
		if got := s.waits(statemachine.Surroundings{}); !got.Since.Equal(since) || !s.agg.Job.UpdatedAt.After(since) {
			t.Errorf("%T: it waits since %s, and the job was updated at %s", event, got.Since, s.agg.Job.UpdatedAt)
		}
	}
	s.does(statemachine.Resume{})
	if got := s.waits(statemachine.Surroundings{}); got.Reason != "queued" || !got.Since.Equal(s.now) {
		t.Errorf("after the resume: %+v", got)
	}
}
