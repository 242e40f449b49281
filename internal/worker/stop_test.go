package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/worker"
)

func TestAStoppedWorkerFinishesWhatItHasInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := run(t, q.config(lasting(5*time.Second)))
		q.enqueue("w1")
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if at := q.only("complete").At; at != 5*time.Second {
			t.Errorf("completed after %s", at)
		}
		if now := time.Since(q.begun); now != 5*time.Second {
			t.Errorf("the worker ended after %s, its work after 5s", now)
		}
	})
}

func TestTheTimeOfGraceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var cause error
		stop := run(t, q.config(func(ctx context.Context, d api.Directive) (json.RawMessage, error) {
			_, cause = lasting(time.Hour)(ctx, d)
			return nil, cause
		}))
		q.enqueue("w1")
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if now := time.Since(q.begun); !errors.Is(cause, worker.ErrStopped) || now != 11*time.Second {
			t.Errorf("the handler was stopped by %v after %s", cause, now)
		}
	})
}

// A server that is away must not keep a worker from stopping.
func TestAReportEndsWithTheTimeOfGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) { return 0, nil, c.Verb == "complete" }
		stop := run(t, q.config(succeed))
		q.enqueue("w1")
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if now := time.Since(q.begun); now != 11*time.Second {
			t.Errorf("the worker ended after %s, want the 10s of grace", now)
		}
	})
}

// A claim that is cut off may have been carried out. Its repeat under the same
// request id finds what it took, so that the work does not wait for its lease
// to run out.
func TestACutOffClaimLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			if c.Verb == "claim" && c.Body.WaitSeconds == 0 {
				q.enqueue("w1") // as if the first had taken it
			}
			return 0, nil, false
		}
		stop := run(t, q.config(succeed))
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
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
		stop := run(t, q.config(succeed))
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if now := time.Since(q.begun); now > 3*time.Second {
			t.Errorf("the worker ended after %s", now)
		}
	})
}
