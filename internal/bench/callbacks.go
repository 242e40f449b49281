package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// callBackAll reports on delivered items concurrently.
func callBackAll(ctx context.Context, w *workers, items []item) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range items {
		group.Go(func() error {
			if err := callBack(ctx, w, &items[i]); err != nil {
				return err
			}
			w.done(&items[i])
			return nil
		})
	}
	return group.Wait()
}

// callBack reports on a delivered item as a platform service does: it acknowledges the
// directive, and then reports success.
func callBack(ctx context.Context, w *workers, item *item) error {
	d := &item.Directive
	err := w.client.post(ctx, "/v1/callbacks/ack", api.AckCallback{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
		CorrelationID: d.CorrelationID, Timestamp: api.NewTime(time.Now()),
	}, nil)
	if err != nil {
		return err
	}
	return w.client.post(ctx, "/v1/callbacks/result", api.ResultCallback{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
		CorrelationID: d.CorrelationID, Timestamp: api.NewTime(time.Now()),
		Status: api.ResultStatusSucceeded, ResultRef: resultRef,
	}, nil)
}
