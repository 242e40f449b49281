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
	"github.com/lucius-project/lucius/pkg/problem"
)

// lasting is a handler that takes so long, or until its context ends.
func lasting(d time.Duration) func(context.Context, api.Directive) (json.RawMessage, error) {
	return func(ctx context.Context, _ api.Directive) (json.RawMessage, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func TestALongStepIsKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t) // leases of a minute
		stop := run(t, q.config(lasting(70*time.Second)))
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
		if err := stop(); err != nil {
			t.Error(err)
		}
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
		stop := run(t, q.config(lasting(20*time.Second+10*time.Millisecond)))
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
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Nobody waits for the result any more, so the handler may stop early. What it
// says then ends the step.
func TestACancelledJobStopsItsHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		requested := true
		q.script = once("heartbeat", 200, api.WorkItem{Rev: 3, Directive: json.RawMessage(`{}`), CancelRequested: &requested})
		stop := run(t, q.config(lasting(time.Hour)))
		q.enqueue("w1")
		time.Sleep(21 * time.Second)
		got := q.only("fail")
		if got.Body.Retryable || got.Body.Error.Code != "cancelled" || got.At != 20*time.Second {
			t.Errorf("after %s: %+v, %+v", got.At, got.Body, got.Body.Error)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The result of an attempt that is another's must not be reported: the other
// worker's counts.
func TestALostLeaseStopsTheHandlerAndIsNotReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("heartbeat", 409, api.Problem{Code: problem.NotOwner})
		var cause error
		stop := run(t, q.config(func(ctx context.Context, d api.Directive) (json.RawMessage, error) {
			_, cause = lasting(time.Hour)(ctx, d)
			return nil, nil
		}))
		q.enqueue("w1")
		time.Sleep(time.Minute)
		synctest.Wait()
		var refused *worker.RefusedError
		if !errors.Is(cause, worker.ErrLeaseLost) || !errors.As(cause, &refused) || refused.Code != problem.NotOwner {
			t.Errorf("the handler's context ended with %v", cause)
		}
		if n := len(q.made("complete")) + len(q.made("fail")); n > 0 {
			t.Errorf("%d reports of an attempt that is another's", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
