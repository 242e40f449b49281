package lucius_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// The time between heartbeats follows from the server's clock alone.
func TestALongStepIsKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t) // leases of a minute
		stop := start(t, q.worker(lasting(70*time.Second)))
		q.enqueue("w1")
		time.Sleep(2 * time.Minute)
		beats := q.made("heartbeat")
		if len(beats) != 3 {
			t.Fatalf("%d heartbeats, want one each 20s", len(beats))
		}
		for i, beat := range beats {
			if at := time.Duration(i+1) * 20 * time.Second; beat.At != at {
				t.Errorf("heartbeat after %s, want %s", beat.At, at)
			}
		}
		if rev := q.only("complete").Body.ExpectedRev; rev != 6 {
			t.Errorf("completed at rev %d, want 6: each heartbeat raised it", rev)
		}
		stop()
	})
}

// Progress is shown soon, but each heartbeat is a write.
func TestProgressIsSentSoonAndNotTooOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(func(_ context.Context, task *lucius.Task) (any, error) {
			for page := range 12 {
				task.Progress(float64(page)/10, "pages") // The last one is cut to 1.
				time.Sleep(1100 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			return nil, nil
		}))
		q.enqueue("w1")
		time.Sleep(2 * time.Minute)
		want := []struct {
			at       time.Duration
			fraction float64
		}{{0, 0}, {5 * time.Second, 0.4}, {10 * time.Second, 0.9}, {15 * time.Second, 1}, {35 * time.Second, -1}, {55 * time.Second, -1}}
		beats := q.made("heartbeat")
		if len(beats) != len(want) {
			t.Fatalf("heartbeats %+v", beats)
		}
		for i, beat := range beats {
			switch progress := beat.Body.Progress; {
			case beat.At != want[i].at || (progress == nil) != (want[i].fraction < 0):
				t.Errorf("heartbeat %d after %s: %+v", i, beat.At, progress)
			case progress != nil && (progress.Fraction != want[i].fraction || progress.Message != "pages"):
				t.Errorf("heartbeat %d: %+v, want %v", i, progress, want[i].fraction)
			}
		}
		stop()
	})
}

// The server may have taken a heartbeat whose answer is lost; only its repeat
// tells the rev that the completion has to name.
func TestALostHeartbeatIsSettledBeforeTheReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			return 0, nil, c.Verb == "heartbeat" && c.At < 25*time.Second
		}
		stop := start(t, q.worker(lasting(20*time.Second+10*time.Millisecond)))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		beats := q.made("heartbeat")
		if len(beats) < 2 {
			t.Fatalf("heartbeats: %+v", beats)
		}
		for _, beat := range beats {
			if beat.Body.RequestID != beats[0].Body.RequestID {
				t.Errorf("a repeated heartbeat has another request id: %+v", beats)
			}
		}
		if complete := q.only("complete"); complete.Body.ExpectedRev != 4 || complete.At < 25*time.Second {
			t.Errorf("completed after %s at rev %d, want rev 4 after 25s", complete.At, complete.Body.ExpectedRev)
		}
		stop()
	})
}

// What the handler says after its context ended is reported by the reason of that end.
func TestWhatTheServerAsksForEndsTheHandler(t *testing.T) {
	t.Parallel()
	yes := true
	for name, test := range map[string]struct {
		answer    lucius.WorkItem
		cause     error
		code      string
		retryable bool
	}{
		"cancel": {lucius.WorkItem{Rev: 3, CancelRequested: &yes, PauseRequested: &yes}, lucius.ErrCancelled, "cancelled", false},
		"pause":  {lucius.WorkItem{Rev: 3, PauseRequested: &yes}, lucius.ErrPaused, "paused", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				test.answer.Directive = json.RawMessage(`{}`)
				q.script = once("heartbeat", 200, test.answer)
				var cause error
				stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
					_, cause = lasting(time.Hour)(ctx, task)
					return nil, cause
				}))
				q.enqueue("w1")
				time.Sleep(21 * time.Second)
				got := q.only("fail")
				if got.Body.Retryable != test.retryable || got.Body.Error.Code != test.code || got.At != 20*time.Second || !errors.Is(cause, test.cause) {
					t.Errorf("after %s, because %v: %+v, %+v", got.At, cause, got.Body, got.Body.Error)
				}
				stop()
			})
		})
	}
}

// The result of an attempt that is another's must not be reported: the other
// worker's counts.
func TestALostLeaseStopsTheHandlerAndIsNotReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("heartbeat", 409, lucius.Problem{Code: lucius.ProblemCodeNotOwner})
		var cause error
		stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
			_, cause = lasting(time.Hour)(ctx, task)
			return nil, nil
		}))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !errors.Is(cause, lucius.ErrLeaseLost) || !lucius.HasCode(cause, lucius.ProblemCodeNotOwner) {
			t.Errorf("the handler's context ended with %v", cause)
		}
		if n := len(q.made("complete")) + len(q.made("fail")); n > 0 {
			t.Errorf("%d reports of an attempt that is another's", n)
		}
		stop()
	})
}

func TestAStoppedWorkerFinishesWhatItHasInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(lasting(5*time.Second)))
		q.enqueue("w1")
		time.Sleep(time.Second)
		stop()
		if at := q.only("complete").At; at != 5*time.Second {
			t.Errorf("completed after %s", at)
		}
		if now := time.Since(q.begun); now != 5*time.Second {
			t.Errorf("the worker ended after %s, its work after 5s", now)
		}
	})
}

// Another worker gets the step at once, and not after the lease.
func TestWorkThatTheGraceCutsShortIsGivenToAnotherWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(lasting(time.Hour)))
		q.enqueue("w1")
		time.Sleep(time.Second)
		stop()
		got := q.only("fail")
		if got.At != 11*time.Second || !got.Body.Retryable || got.Body.RetryAfter != 1 || got.Body.Error.Code != "worker_stopped" ||
			got.Body.Error.Message != lucius.ErrStopped.Error() {
			t.Errorf("after %s: %+v, %+v", got.At, got.Body, got.Body.Error)
		}
	})
}

// A server that is away must not keep a worker from stopping.
func TestAReportEndsSoonAfterTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) { return 0, nil, c.Verb == "complete" }
		stop := start(t, q.worker(succeed))
		q.enqueue("w1")
		time.Sleep(time.Second)
		stop()
		if now := time.Since(q.begun); now != 13*time.Second {
			t.Errorf("the worker ended after %s, want the 10s of grace and 2s more", now)
		}
	})
}

// A claim that is cut off may have been carried out. Its repeat under the same
// request id finds what it took, so that the work does not wait for its lease
// to run out.
func TestACutOffClaimLeavesNothingClaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			if c.Verb == "claim" && c.Body.WaitSeconds == 0 {
				q.enqueue("w1") // as if the first had taken it
			}
			return 0, nil, false
		}
		stop := start(t, q.worker(succeed))
		time.Sleep(time.Second)
		stop()
		claims := q.made("claim")
		if len(claims) != 2 || claims[0].Body.RequestID != claims[1].Body.RequestID {
			t.Errorf("claims %+v, want two under one request id", claims)
		}
		if q.only("complete").WorkID != "w1" {
			t.Error("what the claim took was not done")
		}
	})
}

// Nor does a stopped worker wait for a server that is away.
func TestStoppingWithoutAServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(*call) (int, any, bool) { return 0, nil, true }
		stop := start(t, q.worker(succeed))
		time.Sleep(time.Second)
		stop()
		if now := time.Since(q.begun); now > 3*time.Second {
			t.Errorf("the worker ended after %s", now)
		}
	})
}
