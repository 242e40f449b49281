package workqueue_test

import (
	"context"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// A worker whose service throttles it spends no retry, and closes the service once: the repeat of
// its request, and one of a worker that no longer has the item, close nothing.
func TestFail_OfAThrottledItemClosesTheServiceOnce(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		b := setup(t, split)
		var closed []statemachine.Closure
		b.Queue = workqueue.New(workqueue.Config{
			Ledger: b.ledger.Ledger, Store: b.store, Mirror: b.mirror,
			Closer: func(_ context.Context, c statemachine.Closure) { closed = append(closed, c) },
		})
		b.work()
		item := b.claim(t, "w1", "c1", 1, true)[0].Item
		failure := workqueue.Failure{
			Retryable: true, Code: "HTTP_429", RetryAfter: time.Hour, Throttled: statemachine.ThrottleService,
			EveryTenant: func(service string) bool { return service == "ocr" },
		}
		ctx := ledger.WithCaller(t.Context(), "ocr-worker")
		if _, err := b.Fail(ctx, item.WorkID, by("w2", "f0", item), failure); err == nil {
			t.Error("another worker may fail the item")
		}
		for range 2 {
			failed, err := b.Fail(ctx, item.WorkID, by("w1", "f1", item), failure)
			if err != nil || failed.Item.Status != statemachine.StatusFailed {
				t.Fatalf("%+v, %v", failed.Item, err)
			}
		}
		if _, err := b.Fail(ctx, item.WorkID, by("w1", "f2", item), failure); err == nil {
			t.Error("the item can fail twice")
		}
		step := b.step(item.JobID)
		if step.Spent != (statemachine.Spent{Free: 1}) || !step.Throttled {
			t.Errorf("throttled %t, spent %+v", step.Throttled, step.Spent)
		}
		if len(closed) != 1 || !closed[0].Until.Equal(step.NextAttemptAt) || closed[0].Service != "ocr" || closed[0].TenantID != "" ||
			closed[0].Actor != "ocr-worker" {
			t.Errorf("closed %+v", closed)
		}
	}
}

// Other failures close nothing.
func TestFail_ClosesNothingUnlessThrottled(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	b.Queue = workqueue.New(workqueue.Config{
		Ledger: b.ledger.Ledger, Store: b.store, Mirror: b.mirror,
		Closer: func(_ context.Context, c statemachine.Closure) { t.Errorf("closed %+v", c) },
	})
	for id, failure := range map[string]workqueue.Failure{
		"later": {Retryable: true, RetryAfter: time.Hour},
		"never": {Throttled: statemachine.ThrottleService, RetryAfter: time.Hour},
	} {
		b.work()
		item := b.claim(t, "w1", "claim "+id, 1, true)[0].Item
		_, err := b.Fail(t.Context(), item.WorkID, by("w1", "fail "+id, item), failure)
		musttest.NoError(t, err)
	}
}
