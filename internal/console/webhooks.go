package console

import (
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// webhooksPage lists the webhooks that were not delivered.
type webhooksPage struct {
	Tenant   tenantFilter
	Webhooks []api.Webhook
	More     string
}

func webhooks(r *request) (view, error) {
	tenant := r.tenant(api.GrantRoleRead)
	list, err := call[api.WebhookPage](r.api.ListWebhooks(r.Context(), &api.ListWebhooksParams{
		TenantID: optional(tenant.Value), PageToken: r.pageToken(),
	}))
	return view{Title: "Webhooks", Template: "webhooks", Data: webhooksPage{
		Tenant: tenant, Webhooks: list.Webhooks, More: r.more(list.NextPageToken),
	}}, err
}

// replayWebhook sends a webhook again.
func replayWebhook(r *request) (deed, error) {
	id := r.FormValue("webhook")
	return deed{
		Title: "Send webhook " + diagnosis.ShortID(id) + " again?", Button: "Send it again",
		Text:    "Its attempts restart now, with the same webhook-id, by which the receiver recognises a repeat.",
		Command: diagnosis.Command("webhooks replay", id),
		do: func(ctx context.Context, reason string) (string, error) {
			hook, err := call[api.Webhook](r.api.ReplayWebhook(ctx, id, api.ControlRequest{Reason: reason}))
			return link("jobs/" + hook.JobID), err
		},
	}, nil
}
