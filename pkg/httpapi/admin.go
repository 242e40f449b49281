package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
)

// RetryOutbox is POST /v1/admin/outbox/retry.
func (e *endpoints) RetryOutbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict,
		func(ctx context.Context, request api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
			result, err := e.admin.RetryOutbox(ctx, request)
			result.Skipped = listed(result.Skipped)
			return result, err
		})
}

// StallWork is POST /v1/admin/work/{workId}:stall.
func (e *endpoints) StallWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.optional, on(workID, e.work.Stall))
}

// RequeueWork is POST /v1/admin/work/{workId}:requeue.
func (e *endpoints) RequeueWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.optional, on(workID, e.work.Requeue))
}
