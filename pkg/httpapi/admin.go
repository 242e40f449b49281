package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/lucius-project/lucius/api"
)

// RetryOutbox is POST /v1/admin/outbox/retry.
func (e *endpoints) RetryOutbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict,
		func(ctx context.Context, request api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
			exchangeOf(ctx).object = rowsOf(&request)
			if err := e.guard.filtered(ctx, request.TenantID, request.JobID); err != nil {
				return api.OutboxRetryResult{}, err
			}
			result, err := e.admin.RetryOutbox(ctx, request)
			result.Skipped = listed(result.Skipped)
			return result, err
		})
}

// rowsOf names the rows of an operator's retry, for the record: by their ids or
// their job, else by nothing. Of many ids the first are named.
func rowsOf(request *api.OutboxRetryRequest) string {
	const named = 8
	if len(request.OutboxIDs) <= named {
		return cmp.Or(request.JobID, strings.Join(request.OutboxIDs, ","))
	}
	return fmt.Sprintf("%d rows, such as %s", len(request.OutboxIDs), strings.Join(request.OutboxIDs[:named], ","))
}

// ListOutbox is GET /v1/admin/outbox.
func (e *endpoints) ListOutbox(w http.ResponseWriter, r *http.Request, params api.ListOutboxParams) {
	if params.State != nil && !params.State.Valid() {
		e.respond.problem(w, r, invalid("parameter state must be PENDING, SENT or FAILED_FINAL", nil))
		return
	}
	pagedOf(e, w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, page Page) (api.OutboxPage, error) {
		found, err := e.admin.Outbox(ctx, params, page)
		found.Outbox = listed(found.Outbox)
		return found, err
	})
}

// ListStuck is GET /v1/admin/stuck.
func (e *endpoints) ListStuck(w http.ResponseWriter, r *http.Request) {
	found, err := e.admin.Stuck(r.Context())
	found.Stuck = listed(found.Stuck)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// StallWork is POST /v1/admin/work/{workId}:stall.
func (e *endpoints) StallWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.optional, on(workID, e.work.Stall))
}

// RequeueWork is POST /v1/admin/work/{workId}:requeue.
func (e *endpoints) RequeueWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.optional, on(workID, e.work.Requeue))
}
