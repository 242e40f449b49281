package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
)

// ListJobWebhooks is GET /v1/jobs/{jobId}/webhooks.
func (e *endpoints) ListJobWebhooks(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	found, err := e.webhooks.OfJob(r.Context(), jobID)
	found.Webhooks = listed(found.Webhooks)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// ListWebhooks is GET /v1/admin/webhooks.
func (e *endpoints) ListWebhooks(w http.ResponseWriter, r *http.Request, params api.ListWebhooksParams) {
	pagedOf(e, w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, page Page) (api.WebhookPage, error) {
		found, err := e.webhooks.Undelivered(ctx, params, page)
		found.Webhooks = listed(found.Webhooks)
		return found, err
	})
}

// ReplayWebhook is POST /v1/admin/webhooks/{webhookId}:replay.
func (e *endpoints) ReplayWebhook(w http.ResponseWriter, r *http.Request, webhookID api.WebhookID) {
	serve(e, w, r, e.bodies.optional, on(webhookID, e.webhooks.Replay))
}
