package lucius_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
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

// The server may have taken a heartbeat whose answer is lost: the report waits for none,
// and the server tells the rev that it has to name.
func TestAReportWaitsForNoHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			if c.Verb == "heartbeat" {
				_, _ = q.move(c)
				return 0, nil, true
			}
			return 0, nil, false
		}
		stop := start(t, q.worker(lasting(20*time.Second+10*time.Millisecond)))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		if beats := q.made("heartbeat"); len(beats) != 1 {
			t.Errorf("heartbeats: %+v", beats)
		}
		made := q.made("complete")
		if len(made) != 2 || made[1].Body.ExpectedRev != 4 || made[1].At != 20*time.Second+10*time.Millisecond {
			t.Errorf("completions %+v, want a second one at rev 4 at once", made)
		}
		stop()
	})
}

func TestAHeartbeatIsRepeatedUnderItsRequestID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			return 0, nil, c.Verb == "heartbeat" && c.At < 25*time.Second
		}
		stop := start(t, q.worker(lasting(30*time.Second)))
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
		if complete := q.only("complete"); complete.Body.ExpectedRev != 4 {
			t.Errorf("completed at rev %d, want 4", complete.Body.ExpectedRev)
		}
		stop()
	})
}

// A token that has expired says nothing about the attempt: the handler goes on, and what it did
// is reported once the token is replaced.
func TestARefusedTokenIsNoLostLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for verb, handler := range map[string]lucius.Handler{
			"complete": lasting(30 * time.Second),
			"fail": func(context.Context, *lucius.Task) (any, error) {
				time.Sleep(30 * time.Second)
				return nil, errors.New("no page")
			},
		} {
			q := newQueue(t)
			q.script = func(c *call) (int, any, bool) {
				return 401, lucius.Problem{Code: lucius.ProblemCodeUnauthenticated}, c.Verb != "claim" && c.At < 50*time.Second
			}
			stop := start(t, q.worker(handler))
			q.enqueue("w1")
			time.Sleep(2 * time.Minute)
			if beats := q.made("heartbeat"); len(beats) < 2 {
				t.Errorf("heartbeats %+v, want more", beats)
			}
			made := q.made(verb)
			if first, last := made[0], made[len(made)-1]; first.At != 30*time.Second || last.At < 50*time.Second ||
				last.Body.RequestID != first.Body.RequestID {
				t.Errorf("reports %+v, want one from 30s until the token is accepted", made)
			}
			stop()
		}
	})
}

// A handler with a long lease hears within half a minute that its job is cancelled.
func TestLongLeasesHaveHeartbeatsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.lease = time.Hour
		stop := start(t, q.worker(lasting(time.Minute+time.Second)))
		q.enqueue("w1")
		time.Sleep(2 * time.Minute)
		if beats := q.made("heartbeat"); len(beats) != 2 {
			t.Errorf("%d heartbeats in a minute, want 2", len(beats))
		}
		stop()
	})
}

// What a handler returns after it saw the cancellation ends the step.
func TestACancelledJobEndsTheHandlersContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		yes := true
		cancelled := q.item("w1", 3)
		cancelled.CancelRequested = &yes
		q.script = once("heartbeat", 200, cancelled)
		var cause error
		stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
			_, cause = lasting(time.Hour)(ctx, task)
			return nil, cause
		}))
		q.enqueue("w1")
		time.Sleep(21 * time.Second)
		stop()
		got := q.only("fail")
		if got.Body.Retryable || got.Body.Error.Code != "cancelled" || got.At != 20*time.Second || !errors.Is(cause, lucius.ErrCancelled) {
			t.Errorf("after %s, because %v: %+v, %+v", got.At, cause, got.Body, got.Body.Error)
		}
	})
}

// A pause ends no work: each heartbeat asks, and the handler decides.
func TestAHandlerHearsThatItsJobIsPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		yes := true
		q.script = func(c *call) (int, any, bool) {
			if c.Verb != "heartbeat" {
				return 0, nil, false
			}
			item := q.item("w1", 3)
			item.PauseRequested = &yes
			return 200, item, true
		}
		stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
			<-task.PauseRequested()
			return lasting(30*time.Second)(ctx, task)
		}))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		if complete := q.only("complete"); complete.At != 50*time.Second {
			t.Errorf("completed after %s, want 30s after the first heartbeat", complete.At)
		}
		stop()
	})
}

// The server decides what becomes of an attempt whose worker could not reach it: the handler
// goes on beyond its lease, and its result is sent until the server answers.
func TestAServerThatIsAwayEndsNoWork(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		status int
		body   any
	}{
		"no answer":                  {0, nil},
		"a refused token":            {401, lucius.Problem{Code: lucius.ProblemCodeUnauthenticated}},
		"a proxy's page":             {404, "no route"},
		"a proxy's redirection":      {302, ""},
		"a server that is too busy":  {429, lucius.Problem{Code: lucius.ProblemCodeRateLimited}},
		"a server that shuts down":   {503, lucius.Problem{}},
		"another program's response": {200, "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t) // leases of a minute
				q.script = func(c *call) (int, any, bool) {
					return answer.status, answer.body, c.Verb != "claim" && c.At < 30*time.Minute
				}
				var ended error
				stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
					_, ended = lasting(10*time.Minute)(ctx, task)
					return nil, ended
				}))
				q.enqueue("w1")
				time.Sleep(time.Hour)
				stop()
				beats, made := q.made("heartbeat"), q.made("complete")
				if len(beats) < 100 || ended != nil {
					t.Errorf("%d heartbeats, and the handler ended with %v", len(beats), ended)
				}
				if first, last := made[0], made[len(made)-1]; first.At != 10*time.Minute || last.At < 30*time.Minute ||
					last.At > 30*time.Minute+3*time.Second || last.Body.RequestID != first.Body.RequestID {
					t.Errorf("the result was sent from %s to %s", first.At, last.At)
				}
			})
		})
	}
}

// An answer to a repeated heartbeat shows the item as it is now.
func TestAnItemThatWasTakenIsLost(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*lucius.WorkItem){
		"stalled":       func(item *lucius.WorkItem) { item.Lease = nil },
		"claimed again": func(item *lucius.WorkItem) { item.Attempt++ },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				taken := q.item("w1", 9)
				spoil(&taken)
				q.script = once("heartbeat", 200, taken)
				var cause error
				stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
					_, cause = lasting(time.Hour)(ctx, task)
					return nil, nil
				}))
				q.enqueue("w1")
				time.Sleep(time.Minute)
				stop()
				if made := q.made("complete"); !errors.Is(cause, lucius.ErrLeaseLost) || len(made) != 0 {
					t.Errorf("the handler's context ended with %v, reported %+v", cause, made)
				}
			})
		})
	}
}

// A proxy may ask for more patience than the lease has.
func TestAHeartbeatDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.retryAfter = "60"
		q.script = once("heartbeat", 503, lucius.Problem{})
		stop := start(t, q.worker(lasting(50*time.Second)))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		stop()
		if beats := q.made("heartbeat"); len(beats) < 2 || beats[1].At != 30*time.Second {
			t.Errorf("heartbeats %+v, want a second one after a sixth of the lease", beats)
		}
	})
}

// The answer to a repeated heartbeat is that to the first, from which its lease counts.
func TestALeaseCountsFromTheFirstTryOfItsHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var extended lucius.WorkItem // At 20 s, for a minute.
		q.script = func(c *call) (int, any, bool) {
			switch {
			case c.Verb != "heartbeat":
				return 0, nil, false
			case extended.Lease == nil:
				extended = q.item("w1", 4)
			case c.Body.ExpectedRev == 3 && c.At > 50*time.Second:
				return 200, extended, true
			}
			return 0, nil, true
		}
		stop := start(t, q.worker(lasting(70*time.Second)))
		q.enqueue("w1")
		time.Sleep(2 * time.Minute)
		stop()
		beats := q.made("heartbeat")
		next := slices.IndexFunc(beats, func(c call) bool { return c.Body.RequestID != beats[0].Body.RequestID })
		if next < 0 || beats[next].At > 65*time.Second {
			t.Errorf("the next heartbeat is later than a third of what is left of the lease until 80s: %+v", beats[next:])
		}
	})
}

// A claim whose answer is lost is answered again as at first: the lease did not begin with that.
func TestALeaseCountsFromTheFirstTryOfItsClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.enqueue("w1")
		var claimed []lucius.WorkItem // At 0 s, for a minute.
		answered := false
		q.script = func(c *call) (int, any, bool) {
			switch {
			case c.Verb != "claim" || answered:
				return 0, nil, false
			case claimed == nil:
				claimed, q.queued = []lucius.WorkItem{q.queued[0]}, nil
				claimed[0].Lease, claimed[0].UpdatedAt = q.item("w1", 3).Lease, q.item("w1", 3).UpdatedAt
			case c.At > 50*time.Second:
				answered = true
				return 200, lucius.ClaimedWork{Items: claimed}, true
			}
			return 0, nil, true
		}
		stop := start(t, q.worker(lasting(70*time.Second)))
		time.Sleep(3 * time.Minute)
		stop()
		if beats := q.made("heartbeat"); len(beats) == 0 || beats[0].At > time.Minute {
			t.Errorf("the first heartbeat comes after the end of the lease at 60s: %+v", beats)
		}
	})
}

// JSON has no such number, and a request has a limit. A heartbeat that the server refuses
// would mean a lost lease.
func TestProgressIsMadeFitForAHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
			task.Progress(math.NaN(), "nothing of nothing"+strings.Repeat("é", 600))
			return lasting(time.Minute)(ctx, task)
		}))
		q.enqueue("w1")
		time.Sleep(2 * time.Minute)
		stop()
		if shown := q.made("heartbeat")[0].Body.Progress; shown.Fraction != 0 || len(shown.Message) != 1000 || len(q.made("complete")) != 1 {
			t.Errorf("progress %+v, %d completions", shown, len(q.made("complete")))
		}
	})
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
			if c.Verb == "claim" && c.Body.WaitSeconds == 0 && len(q.made("claim")) > 1 {
				q.enqueue("w1") // as if the one before had taken it
			}
			return 0, nil, false
		}
		stop := start(t, q.worker(succeed))
		time.Sleep(time.Second)
		stop()
		claims := q.made("claim")[1:] // The first does not wait.
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
