package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/envelope"
)

// ListFailures is GET /v1/admin/failures.
func (e *endpoints) ListFailures(w http.ResponseWriter, r *http.Request, params api.ListFailuresParams) {
	if err := e.guard.named(r.Context(), textOf(params.TenantID)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	found, err := e.failures.Groups(r.Context(), params)
	found.Groups = listed(found.Groups)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// CreateRetry is POST /v1/admin/retries.
func (e *endpoints) CreateRetry(w http.ResponseWriter, r *http.Request, params api.CreateRetryParams) {
	var request api.RetryRequest
	if err := e.bodies.strict(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	if err := e.guard.named(r.Context(), request.TenantID); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	key, err := envelope.HeaderKey(textOf(params.IdempotencyKey))
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	key = e.guard.keyOf(r.Context(), key, request.TenantID)
	retry, err := e.failures.CreateRetry(r.Context(), key, request)
	exchangeOf(r.Context()).object = retry.RetryID
	e.answerRetry(w, r, http.StatusAccepted, retry, err)
}

// GetRetry is GET /v1/admin/retries/{retryId}.
func (e *endpoints) GetRetry(w http.ResponseWriter, r *http.Request, retryID api.RetryID, params api.GetRetryParams) {
	paged(e, w, r, params.Limit, params.PageToken, func(ctx context.Context, page Page) (api.Retry, error) {
		retry, err := e.failures.Retry(ctx, retryID, page)
		retry.Items = listed(retry.Items)
		return retry, err
	})
}

// CancelRetry is POST /v1/admin/retries/{retryId}:cancel.
func (e *endpoints) CancelRetry(w http.ResponseWriter, r *http.Request, retryID api.RetryID) {
	var request api.ControlRequest
	if err := e.bodies.optional(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	retry, err := e.failures.CancelRetry(r.Context(), retryID, request)
	e.answerRetry(w, r, http.StatusOK, retry, err)
}

// answerRetry answers with the operation.
func (e *endpoints) answerRetry(w http.ResponseWriter, r *http.Request, status int, retry api.Retry, err error) {
	retry.Items = listed(retry.Items)
	e.respond.answer(w, r, status, retry, err)
}
