package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// auditTrail returns lucius audit-trail.
func (t *tool) auditTrail() *cobra.Command {
	var caller, action, object, outcome string
	var limit int
	cmd := t.command(spec{
		use: "audit-trail", short: "Show who did what recently",
		long: "Shows the latest audit records, newest first: at most 1,000 since the process that answers was started.\n" +
			"The audit log has all records.",
		example: "  lucius audit-trail\n  lucius audit-trail --caller ops-1 --outcome denied",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.AuditTrail, []api.AuditRecord, string, error) {
			page, err := call[api.AuditTrail](s.ListAuditTrail(ctx, &api.ListAuditTrailParams{
				Caller: optional(caller), Action: optional(action), Object: optional(object), Outcome: optional(api.AuditOutcome(outcome)),
				Limit: &size, PageToken: token,
			}))
			return page, page.Records, page.NextPageToken, err
		}, func(page *api.AuditTrail, all []api.AuditRecord) { page.Records = all })
		if err != nil {
			return err
		}
		return show(s, list, showAuditTrail)
	})
	flags := cmd.Flags()
	flags.StringVar(&caller, "caller", "", "only records of this caller")
	flags.StringVar(&action, "action", "", "only records of this operation, such as cancelJob")
	flags.StringVar(&object, "object", "", "only records about this job, pause or other object")
	flags.StringVar(&outcome, "outcome", "", "only records with this outcome: done, denied or failed")
	flags.IntVar(&limit, "limit", 50, "maximum number of records to show")
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// showAuditTrail writes a table of audit records.
func showAuditTrail(p *page, list api.AuditTrail) {
	rows := make([][]string, len(list.Records))
	for i := range list.Records {
		r := &list.Records[i]
		rows[i] = []string{p.ago(r.At.Time), r.Caller, r.Action, string(r.Outcome), r.Object, r.TenantID, r.From, r.Reason}
	}
	p.table([]string{"WHEN", "CALLER", "ACTION", "OUTCOME", "OBJECT", "TENANT", "FROM", "REASON"}, rows)
	p.more(list.NextPageToken != "", len(rows))
}
