package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// outbox returns lucius outbox.
func (t *tool) outbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "outbox", GroupID: GroupOperate, Short: "Show directives that wait to be published, and publish them now",
		Example: "  lucius outbox list --state PENDING\n  lucius outbox retry --job JOB",
	}
	cmd.AddCommand(t.outboxList(), t.outboxRetry())
	return t.calls(cmd)
}

func (t *tool) outboxList() *cobra.Command {
	var tenant, state string
	var lane int32
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List the outbox rows of the latest attempts", example: "  lucius outbox list --state PENDING",
	}, func(ctx context.Context, s *session, _ []string) error {
		params := &api.ListOutboxParams{TenantID: optional(tenant), State: optional(api.OutboxState(strings.ToUpper(state)))}
		if lane >= 0 {
			params.Lane = &lane
		}
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.OutboxPage, []api.OutboxRow, string, error) {
			params.Limit, params.PageToken = &size, token
			page, err := call[api.OutboxPage](s.ListOutbox(ctx, params))
			return page, page.Outbox, page.NextPageToken, err
		}, func(page *api.OutboxPage, rows []api.OutboxRow) { page.Outbox = rows })
		if err != nil {
			return err
		}
		return show(s, list, showOutbox)
	})
	flags := cmd.Flags()
	flags.StringVar(&state, "state", "", "only rows in this state: PENDING, SENT or FAILED_FINAL")
	flags.StringVar(&tenant, "tenant", "", "only rows of this tenant")
	flags.Int32Var(&lane, "lane", -1, "only rows of this lane")
	flags.IntVar(&limit, "limit", 50, "maximum number of rows to list")
	completeWords(cmd, "state", string(api.OutboxStatePending), string(api.OutboxStateSent), string(api.OutboxStateFailedFinal))
	return cmd
}

// showOutbox writes a table of outbox rows.
func showOutbox(p *page, list api.OutboxPage) {
	rows := make([][]string, len(list.Outbox))
	for i := range list.Outbox {
		row := &list.Outbox[i]
		rows[i] = []string{
			row.OutboxID, p.state(string(row.State)), row.TenantID, row.StepID, strconv.Itoa(row.AttemptNo), row.Topic,
			p.ago(row.UpdatedAt.Time), p.until(row.NextAttemptAt.Time), diagnosis.Fault(row.LastErrorCode, row.LastErrorMessage),
		}
	}
	p.table([]string{"ROW", "STATE", "TENANT", "STEP", "ATTEMPT", "TOPIC", "CHANGED", "DUE", "ERROR"}, rows)
	p.more(list.NextPageToken != "", len(rows))
	p.omitted(list.TenantsOmitted)
}

func (t *tool) outboxRetry() *cobra.Command {
	var job, tenant string
	var lane, limit int32
	var older time.Duration
	var all bool
	cmd := t.command(spec{
		use: "retry [ROW...]", short: "Publish waiting directives now", more: true,
		long: "Publishes the named rows now, or those that the flags select; steps that wait for their next attempt\n" +
			"get it now. This spends no retry budget. A selection that may have many rows must be confirmed.",
		example: "  lucius outbox retry --job JOB\n  lucius outbox retry --tenant tenant_a --older-than 1m",
	}, func(ctx context.Context, s *session, ids []string) error {
		filters := tenant != "" || lane >= 0 || older > 0
		switch {
		case len(ids) > 0 && (filters || all || job != ""):
			return usagef("name rows, or select them by flags, not both")
		case len(ids) == 0 && !filters && !all && job == "":
			return usagef("say which rows: their ids, flags such as --job or --tenant, or --all")
		case all || filters && job == "":
			if err := s.confirm("Publish all waiting directives that match?"); err != nil {
				return err
			}
		}
		request := api.OutboxRetryRequest{
			OutboxIDs: ids, JobID: optional(job), TenantID: optional(tenant), OlderThanSeconds: older.Seconds(), Limit: limit,
		}
		if lane >= 0 {
			request.Lane = &lane
		}
		result, err := call[api.OutboxRetryResult](s.RetryOutbox(ctx, request))
		if err != nil {
			return err
		}
		return show(s, result, func(p *page, result api.OutboxRetryResult) {
			p.line("%s: %d retried, %d skipped", diagnosis.Count(result.Matched, "row"), result.Retried, len(result.Skipped))
			switch {
			case result.More && result.Matched == 0: // Another run may read the same jobs.
				p.line("No row was found within 30 seconds. Select fewer jobs: --tenant or --job.")
			case result.More:
				p.line("There may be more: the server ends a retry after 30 seconds. Run it again.")
			}
			rows := make([][]string, len(result.Skipped))
			for i, skip := range result.Skipped {
				rows[i] = []string{skip.OutboxID, skip.Reason}
			}
			if len(rows) > 0 {
				p.line("")
				p.table([]string{"SKIPPED", "WHY"}, rows)
			}
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&job, "job", "", "the row of this job")
	flags.StringVar(&tenant, "tenant", "", "only rows of this tenant")
	flags.Int32Var(&lane, "lane", -1, "only rows of this lane")
	flags.DurationVar(&older, "older-than", 0, "only rows that have not changed for this long, such as 1m")
	flags.Int32Var(&limit, "limit", 0, "maximum number of rows to retry; 0 means all")
	flags.BoolVar(&all, "all", false, "all rows that are due or wait")
	return asks(cmd)
}
