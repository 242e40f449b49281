package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// ListJobWebhooks is GET /v1/jobs/{jobId}/webhooks.
func (e *endpoints) ListJobWebhooks(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	rows, err := e.Ledger.Webhooks(r.Context(), jobID)
	found, err := e.webhooks(r.Context(), rows, err)
	e.respond.answer(w, r, http.StatusOK, api.WebhookPage{Webhooks: found}, err)
}

// ListWebhooks is GET /v1/admin/webhooks.
func (e *endpoints) ListWebhooks(w http.ResponseWriter, r *http.Request, params api.ListWebhooksParams) {
	pagedOf(e, w, r, params.TenantID, params.Limit, params.PageToken,
		func(ctx context.Context, limit int, after string) (api.WebhookPage, error) {
			rows, next, err := e.Ledger.Undelivered(ctx, textOf(params.TenantID), limit, after)
			found, err := e.webhooks(ctx, rows, err)
			return api.WebhookPage{Webhooks: found, NextPageToken: pageToken(next)}, err
		})
}

// ReplayWebhook is POST /v1/admin/webhooks/{webhookId}:replay.
func (e *endpoints) ReplayWebhook(w http.ResponseWriter, r *http.Request, webhookID api.WebhookID) {
	serve(e, w, r, e.bodies.optional, func(ctx context.Context, _ api.ControlRequest) (api.Webhook, error) {
		row, replayed, err := e.Ledger.ReplayWebhook(ctx, webhookID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
			return api.Webhook{}, &problem.Error{Code: problem.NotFound, Detail: "There is no such webhook.", Err: err}
		case err != nil:
			return api.Webhook{}, ledger.Problem(err)
		case !replayed:
			return api.Webhook{}, problem.Newf(problem.IllegalTransition, "The webhook is already waiting for an attempt.")
		}
		found, err := e.webhooks(ctx, []ledger.WebhookRow{*row}, nil)
		if err != nil {
			return api.Webhook{}, err
		}
		return found[0], nil
	})
}

// webhooks encodes webhooks, unless err is set.
func (e *endpoints) webhooks(ctx context.Context, rows []ledger.WebhookRow, err error) ([]api.Webhook, error) {
	if err != nil {
		return nil, ledger.Problem(err)
	}
	found := make([]api.Webhook, len(rows))
	for i := range rows {
		job, err := e.Ledger.Job(ctx, rows[i].JobID)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		found[i] = webhookOf(&rows[i], job.Job.State)
	}
	return found, nil
}

// webhookOf encodes a webhook.
func webhookOf(row *ledger.WebhookRow, state statemachine.JobState) api.Webhook {
	out := api.Webhook{
		WebhookID: row.ID(), JobID: row.JobID, TenantID: row.TenantID, URL: row.URL, Event: webhookEvent(state),
		State: api.WebhookState(row.State), Attempts: row.Attempts, LastStatus: int32(row.LastStatus), LastError: row.LastError,
		CreatedAt: api.NewTime(row.CreatedAt), UpdatedAt: api.NewTime(row.UpdatedAt),
	}
	if row.State == ledger.WebhookPending {
		out.NextAttemptAt = api.NewTime(row.NextAttemptAt)
	}
	return out
}

// webhookEvent returns the event that a webhook announces.
func webhookEvent(state statemachine.JobState) string {
	if state == statemachine.JobFailedFinal {
		return "job.failed"
	}
	return "job." + strings.ToLower(string(state))
}
