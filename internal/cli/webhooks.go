package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// webhooks returns lucius webhooks.
func (t *tool) webhooks() *cobra.Command {
	cmd := &cobra.Command{
		Use: "webhooks", GroupID: GroupOperate, Short: "Show webhooks that were not delivered, and send them again",
		Example: "  lucius webhooks list --tenant tenant_a\n  lucius webhooks replay WEBHOOK",
	}
	cmd.AddCommand(t.webhooksList(), t.webhooksReplay())
	return t.calls(cmd)
}

func (t *tool) webhooksList() *cobra.Command {
	var tenant, job string
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List webhooks that were not delivered, newest first, or all of a job",
		example: "  lucius webhooks list\n  lucius webhooks list --job JOB",
	}, func(ctx context.Context, s *session, _ []string) error {
		if job != "" && tenant != "" {
			return usagef("--job and --tenant exclude each other")
		}
		read := func(size api.Limit, token *api.PageToken) (api.WebhookPage, []api.Webhook, string, error) {
			page, err := call[api.WebhookPage](s.ListWebhooks(ctx, &api.ListWebhooksParams{
				TenantID: optional(tenant), Limit: &size, PageToken: token,
			}))
			return page, page.Webhooks, page.NextPageToken, err
		}
		if job != "" {
			read = func(api.Limit, *api.PageToken) (api.WebhookPage, []api.Webhook, string, error) {
				page, err := call[api.WebhookPage](s.ListJobWebhooks(ctx, job))
				return page, page.Webhooks, "", err
			}
		}
		list, err := pages(limit, read, func(page *api.WebhookPage, all []api.Webhook) { page.Webhooks = all })
		if err != nil {
			return err
		}
		return show(s, list, showWebhooks)
	})
	flags := cmd.Flags()
	flags.StringVar(&job, "job", "", "all webhooks of this job, including delivered ones")
	flags.StringVar(&tenant, "tenant", "", "only webhooks of this tenant")
	flags.IntVar(&limit, "limit", 50, "maximum number of webhooks to list")
	t.completeFlag(cmd, "job", jobIDs)
	return cmd
}

// showWebhooks writes a table of webhooks.
func showWebhooks(p *page, list api.WebhookPage) {
	rows := make([][]string, len(list.Webhooks))
	for i := range list.Webhooks {
		hook := &list.Webhooks[i]
		status := ""
		if hook.LastStatus != 0 {
			status = strconv.Itoa(int(hook.LastStatus))
		}
		rows[i] = []string{
			hook.WebhookID, string(hook.State), hook.JobID, hook.Event, strconv.Itoa(hook.Attempts), p.ago(hook.UpdatedAt.Time),
			p.until(hook.NextAttemptAt.Time), status, hook.LastError, hook.URL,
		}
	}
	p.table([]string{"WEBHOOK", "STATE", "JOB", "EVENT", "ATTEMPTS", "CHANGED", "NEXT", "STATUS", "ERROR", "URL"}, rows)
	p.more(list.NextPageToken != "", len(rows))
}

func (t *tool) webhooksReplay() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "replay WEBHOOK...", short: "Send webhooks again", args: 1, more: true, example: "  lucius webhooks replay WEBHOOK",
	}, func(ctx context.Context, s *session, ids []string) error {
		return s.each(fmt.Sprintf("Send %d webhooks again?", len(ids)), ids, func(id string) error {
			hook, err := call[api.Webhook](s.ReplayWebhook(ctx, id, api.ControlRequest{Reason: reason}))
			if err != nil {
				return err
			}
			return show(s, hook, func(p *page, hook api.Webhook) { p.line("Webhook %s is %s", hook.WebhookID, hook.State) })
		})
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return asks(cmd)
}
