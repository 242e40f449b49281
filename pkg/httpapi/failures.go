package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// ListFailures is GET /v1/admin/failures.
func (e *endpoints) ListFailures(w http.ResponseWriter, r *http.Request, params api.ListFailuresParams) {
	if err := e.guard.authorizeTenant(r.Context(), textOf(params.TenantID)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	report, err := e.Failures.Groups(r.Context(), upkeep.FailureFilter{
		TenantID: textOf(params.TenantID), RequestType: textOf(params.RequestType),
		CreatedAfter: timeOf(params.CreatedAfter), CreatedBefore: timeOf(params.CreatedBefore),
	})
	found := api.FailureList{Groups: make([]api.FailureGroup, len(report.Groups)), Truncated: report.Truncated}
	for i := range report.Groups {
		group := &report.Groups[i]
		found.Groups[i] = api.FailureGroup{
			StepType: group.StepType, ErrorCode: group.ErrorCode, Count: group.Count,
			FirstAt: api.NewTime(group.FirstAt), LastAt: api.NewTime(group.LastAt),
			SampleJobIds: append([]string{}, group.SampleJobIDs...),
		}
	}
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// CreateRetry is POST /v1/admin/retries.
func (e *endpoints) CreateRetry(w http.ResponseWriter, r *http.Request, params api.CreateRetryParams) {
	ctx := r.Context()
	var request api.RetryRequest
	if err := e.bodies.strict(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	if err := e.guard.authorizeTenant(ctx, request.TenantID); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	key, err := commands.HeaderKey(textOf(params.IdempotencyKey))
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	op, err := e.Failures.Create(ctx, e.guard.keyOf(ctx, key, request.TenantID), upkeep.BulkRequest{
		JobIDs: request.JobIDs,
		Filter: upkeep.FailureFilter{
			TenantID: request.TenantID, RequestType: request.RequestType, StepType: request.StepType, ErrorCode: request.ErrorCode,
			CreatedAfter: request.CreatedAfter.Time, CreatedBefore: request.CreatedBefore.Time,
		},
		From: ledger.RerunFrom(request.From), Limit: int(request.Limit), RatePerSecond: request.RatePerSecond,
		Reason: request.Reason, Actor: string(api.ActorOperator),
	})
	if err == nil {
		requestStateOf(ctx).object = op.ID
		e.log.InfoContext(ctx, "retry operation begun", "retry_id", op.ID, "matched", op.Matched, "reason", request.Reason,
			"request_id", requestStateOf(ctx).id)
	}
	e.respond.answer(w, r, http.StatusAccepted, retryOf(&op, nil), err)
}

// GetRetry is GET /v1/admin/retries/{retryId}.
func (e *endpoints) GetRetry(w http.ResponseWriter, r *http.Request, retryID api.RetryID, params api.GetRetryParams) {
	paged(e, w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, after string) (api.Retry, error) {
		found, err := e.Failures.Get(ctx, retryID, limit, after)
		retry := retryOf(&found.Operation, found.Items)
		retry.NextPageToken = pageToken(found.Next)
		return retry, err
	})
}

// CancelRetry is POST /v1/admin/retries/{retryId}:cancel.
func (e *endpoints) CancelRetry(w http.ResponseWriter, r *http.Request, retryID api.RetryID) {
	serve(e, w, r, e.bodies.optional, func(ctx context.Context, request api.ControlRequest) (api.Retry, error) {
		op, err := e.Failures.Cancel(ctx, retryID)
		if err == nil {
			e.log.InfoContext(ctx, "retry operation cancelled", "retry_id", op.ID, "reason", request.Reason,
				"request_id", requestStateOf(ctx).id)
		}
		return retryOf(&op, nil), err
	})
}

// retryOf encodes an operation with some of its items.
func retryOf(op *upkeep.Operation, items []upkeep.Item) api.Retry {
	out := api.Retry{
		RetryID: op.ID, State: api.RetryState(op.State), From: api.RerunFrom(op.From), Matched: op.Matched,
		Done: op.Done(), Rerun: op.Rerun, Skipped: op.Skipped, Failed: op.Failed, RatePerSecond: op.RatePerSecond,
		Reason: op.Reason, CreatedAt: api.NewTime(op.CreatedAt), UpdatedAt: api.NewTime(op.UpdatedAt),
		Items: make([]api.RetryItem, len(items)),
	}
	for i, item := range items {
		out.Items[i] = api.RetryItem{
			JobID: item.JobID, Outcome: api.RetryItemOutcome(item.Outcome), NewJobID: item.NewJobID, Detail: item.Detail,
		}
	}
	return out
}
