package lucius_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestARefusedClaimEndsTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("claim", 400, lucius.Problem{
			Code: lucius.ProblemCodeInvalidEnvelope, Errors: []lucius.Violation{{Pointer: "/owner", Message: "is too long"}},
		})
		err := q.worker(succeed).Run(t.Context())
		const want = "lucius worker: the server answered 400 invalid_envelope; /owner: is too long"
		if !lucius.HasCode(err, lucius.ProblemCodeInvalidEnvelope) || err.Error() != want {
			t.Errorf("error %v", err)
		}
	})
}

// Its handlers have the grace, as at a stop.
func TestARefusedClaimDoesNotWaitForSlowHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		claims := 0
		q.script = func(c *call) (int, any, bool) {
			if c.Verb == "claim" {
				claims++
			}
			return 401, lucius.Problem{Code: lucius.ProblemCodeUnauthenticated}, c.Verb == "claim" && claims > 1
		}
		q.enqueue("w1")
		begun := time.Now()
		err := q.worker(lasting(time.Hour)).Run(t.Context())
		if !lucius.HasCode(err, lucius.ProblemCodeUnauthenticated) || time.Since(begun) > time.Minute {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		if failed := q.only("fail").Body; failed.Error.Code != "worker_stopped" || !failed.Retryable {
			t.Errorf("%+v", failed)
		}
	})
}

// A worker whose token can be replaced waits for that, unless the server never accepted one.
func TestAClaimIsRepeatedUntilTheTokenIsReplaced(t *testing.T) {
	t.Parallel()
	for name, accepted := range map[string]time.Duration{"never": 0, "once": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.script = func(c *call) (int, any, bool) {
					return 401, lucius.Problem{Code: lucius.ProblemCodeUnauthenticated},
						c.Verb == "claim" && c.At >= accepted && c.At < time.Minute
				}
				cfg := q.config()
				var err error
				cfg.Client, err = lucius.NewClient(lucius.ClientConfig{
					URL: "http://server.test", HTTPClient: &http.Client{Transport: q},
					TokenSource: func(context.Context) (string, error) { return "t", nil },
				})
				if err != nil {
					t.Fatal(err)
				}
				w := lucius.NewWorker(cfg)
				w.Handle("OCR", succeed)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				time.AfterFunc(90*time.Second, func() { q.enqueue("w1") })
				err = w.Run(ctx)
				if refused := lucius.HasCode(err, lucius.ProblemCodeUnauthenticated); refused != (accepted == 0) || !refused && err != nil {
					t.Errorf("the worker ended with %v", err)
				}
				if n := len(q.made("complete")); n != min(1, int(accepted.Seconds())) {
					t.Errorf("%d items are done", n)
				}
				time.Sleep(time.Hour) // The item is queued.
			})
		})
	}
}

// While the server restarts, a proxy answers in its place. The first claim may have a wrong URL.
func TestAClaimOutlastsTheAnswersOfAProxy(t *testing.T) {
	t.Parallel()
	for _, status := range []int{302, 403, 404} {
		for name, since := range map[string]time.Duration{"from the start": 0, "later": time.Second} {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					q := newQueue(t)
					q.script = func(c *call) (int, any, bool) {
						return status, "no route", c.Verb == "claim" && c.At >= since && c.At < time.Minute
					}
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					time.AfterFunc(90*time.Second, func() { q.enqueue("w1") })
					err := q.worker(succeed).Run(ctx)
					if (err != nil) != (since == 0) || len(q.made("complete")) != min(1, int(since.Seconds())) {
						t.Errorf("the worker ended with %v and did %+v", err, q.made("complete"))
					}
					time.Sleep(time.Hour) // The item is queued.
				})
			})
		}
	}
}

// A server that shuts down answers a claim at once, with nothing.
func TestEmptyClaimsDoNotFollowEachOtherAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(*call) (int, any, bool) { return 200, lucius.ClaimedWork{}, true }
		stop := start(t, q.worker(succeed))
		time.Sleep(10*time.Second + time.Millisecond)
		if n := len(q.made("claim")); n != 22 {
			t.Errorf("%d claims in 10s, want one each half second after the first", n)
		}
		stop()
	})
}
