package serving

import (
	"context"
	"errors"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// webhooksPort serves the webhooks to HTTP.
type webhooksPort struct{ ledger *ledger.Ledger }

func (a webhooksPort) OfJob(ctx context.Context, jobID string) (api.WebhookPage, error) {
	found, err := a.ledger.Webhooks(ctx, jobID)
	return a.page(ctx, found, "", err)
}

func (a webhooksPort) Undelivered(ctx context.Context, params api.ListWebhooksParams, page httpapi.Page,
) (api.WebhookPage, error) {
	after, err := placeOf(page.Token)
	if err != nil {
		return api.WebhookPage{}, err
	}
	found, next, err := a.ledger.Undelivered(ctx, textOf(params.TenantID), page.Limit, after)
	return a.page(ctx, found, next, err)
}

func (a webhooksPort) Replay(ctx context.Context, webhookID string, _ api.ControlRequest) (api.Webhook, error) {
	found, replayed, err := a.ledger.ReplayWebhook(ctx, webhookID)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound):
		return api.Webhook{}, &problem.Error{Code: problem.NotFound, Detail: "There is no such webhook.", Err: err}
	case err != nil:
		return api.Webhook{}, ledger.Problem(err)
	case !replayed:
		return api.Webhook{}, problem.Newf(problem.IllegalTransition, "The webhook waits for an attempt already.")
	}
	out, err := a.page(ctx, []ledger.WebhookRow{*found}, "", nil)
	if err != nil {
		return api.Webhook{}, err
	}
	return out.Webhooks[0], nil
}

// page is a page of webhooks on the wire.
func (a webhooksPort) page(ctx context.Context, found []ledger.WebhookRow, next string, err error,
) (api.WebhookPage, error) {
	if err != nil {
		return api.WebhookPage{}, ledger.Problem(err)
	}
	out := api.WebhookPage{NextPageToken: pageToken(next)}
	for i := range found {
		job, err := a.ledger.Job(ctx, found[i].JobID)
		if err != nil {
			return api.WebhookPage{}, ledger.Problem(err)
		}
		out.Webhooks = append(out.Webhooks, webhookOf(&found[i], job.Job.State))
	}
	return out, nil
}

// webhookOf is a webhook on the wire.
func webhookOf(w *ledger.WebhookRow, state statemachine.JobState) api.Webhook {
	out := api.Webhook{
		WebhookID: w.ID(), JobID: w.JobID, TenantID: w.TenantID, URL: w.URL, Event: webhookEvent(state),
		State: api.WebhookState(w.State), Attempts: w.Attempts, LastStatus: int32(w.LastStatus), LastError: w.LastError,
		CreatedAt: api.NewTime(w.CreatedAt), UpdatedAt: api.NewTime(w.UpdatedAt),
	}
	if w.State == ledger.WebhookPending {
		out.NextAttemptAt = api.NewTime(w.NextAttemptAt)
	}
	return out
}

// webhookEvent is what a webhook announces.
func webhookEvent(state statemachine.JobState) string {
	if state == statemachine.JobFailedFinal {
		return "job.failed"
	}
	return "job." + strings.ToLower(string(state))
}
