package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// lines returns lucius lines.
func (t *tool) lines() *cobra.Command {
	var tenant, key, state string
	var limit int
	cmd := t.command(spec{
		use: "lines", short: "Show the lines of jobs with an order key, and let blocked ones go on",
		long: "Shows the lines in which a job waits or that a failed job blocks, the blocked ones first. The jobs of a\n" +
			"line have the same tenant and order key, and run one after the other.",
		example: "  lucius lines --state blocked\n  lucius lines show LINE\n  lucius lines release LINE --reason \"corrected by hand\"",
	}, func(ctx context.Context, s *session, _ []string) error {
		if state != "" && !api.LineState(state).Valid() {
			return usagef("--state is %q, it must be blocked or moving", state)
		}
		if err := checkKey(tenant, key); err != nil {
			return err
		}
		list := func(state api.LineState, limit int) (api.LinePage, error) {
			return pages(limit, func(size api.Limit, token *api.PageToken) (api.LinePage, []api.Line, string, error) {
				page, err := call[api.LinePage](s.ListLines(ctx, &api.ListLinesParams{
					TenantID: optional(tenant), State: optional(state), OrderKey: optional(key), Limit: &size, PageToken: token,
				}))
				return page, page.Lines, page.NextPageToken, err
			}, func(page *api.LinePage, all []api.Line) { page.Lines = all })
		}
		if state != "" || key != "" {
			found, err := list(api.LineState(state), limit)
			if err != nil {
				return err
			}
			return show(s, found, showLines)
		}
		found, err := list(api.LineStateBlocked, limit)
		if left := limit - len(found.Lines); err == nil && left > 0 {
			var moving api.LinePage
			moving, err = list(api.LineStateMoving, left)
			found.Lines, found.NextPageToken = append(found.Lines, moving.Lines...), moving.NextPageToken
		}
		if err != nil {
			return err
		}
		return show(s, found, showLines)
	})
	flags := cmd.Flags()
	flags.StringVar(&tenant, "tenant", "", "only lines of this tenant")
	flags.StringVar(&key, "order-key", "", "only the line of this order key of the tenant, also if no job waits in it")
	flags.StringVar(&state, "state", "", "only lines in this state: blocked or moving")
	flags.IntVar(&limit, "limit", 50, "maximum number of lines to list")
	completeWords(cmd, "state", string(api.LineStateBlocked), string(api.LineStateMoving))
	cmd.GroupID = GroupOperate
	cmd.AddCommand(t.calls(t.linesShow()), t.calls(t.linesRelease()), t.calls(t.linesCancel()))
	return t.calls(cmd)
}

// checkKey refuses an order key without its tenant.
func checkKey(tenant, key string) error {
	if key != "" && tenant == "" {
		return usagef("--order-key needs --tenant: each tenant has its own lines")
	}
	return nil
}

// lineOfKey returns the id of the line of a tenant's order key.
func (s *session) lineOfKey(ctx context.Context, tenant, key string) (string, error) {
	if err := checkKey(tenant, key); err != nil {
		return "", err
	}
	if key == "" {
		return "", usagef("name a line, or its --tenant and --order-key")
	}
	page, err := call[api.LinePage](s.ListLines(ctx, &api.ListLinesParams{TenantID: &tenant, OrderKey: &key}))
	if err != nil {
		return "", err
	}
	if len(page.Lines) == 0 {
		err := fmt.Errorf("tenant %s has no job with the order key %s in a line", plain(tenant), plain(key))
		return "", &Error{Code: ExitNotFound, Err: err}
	}
	return page.Lines[0].LineID, nil
}

// showLines writes a table of lines.
func showLines(p *page, list api.LinePage) {
	rows := make([][]string, len(list.Lines))
	for i := range list.Lines {
		line := &list.Lines[i]
		rows[i] = []string{
			line.LineID, p.lineState(line), line.TenantID, line.OrderKey, strconv.FormatInt(line.Waiting, 10), p.ago(line.Since.Time),
			line.Head.JobID, line.Head.ErrorCode,
		}
	}
	p.table([]string{"LINE", "STATE", "TENANT", "ORDER KEY", "WAITING", "SINCE", "HEAD", "ERROR"}, rows)
	p.more(list.NextPageToken != "", len(rows))
}

// lineState returns the state of a line, as it is shown.
func (p *page) lineState(line *api.Line) string {
	if line.State == api.LineStateBlocked {
		return p.style(red, string(line.State))
	}
	return string(line.State)
}

// lineWithJobs is a line with the first of its jobs.
type lineWithJobs struct {
	api.Line

	Jobs          []api.Job `json:"jobs"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

func (t *tool) linesShow() *cobra.Command {
	var tenant, key string
	var limit int
	cmd := t.command(spec{
		use: "show [LINE]", short: "Show a line with its jobs, in their order",
		example: "  lucius lines show LINE\n  lucius lines show --tenant tenant_a --order-key customer-42",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		id := ""
		switch {
		case len(args) == 0:
			if id, err = s.lineOfKey(ctx, tenant, key); err != nil {
				return err
			}
		case tenant != "" || key != "":
			return usagef("name a line, or its --tenant and --order-key, not both")
		default:
			id = args[0]
		}
		line, err := call[api.Line](s.GetLine(ctx, id))
		if err != nil {
			return err
		}
		jobs, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.LineJobPage, []api.Job, string, error) {
			page, err := call[api.LineJobPage](s.ListLineJobs(ctx, id, &api.ListLineJobsParams{Limit: &size, PageToken: token}))
			return page, page.Jobs, page.NextPageToken, err
		}, func(page *api.LineJobPage, all []api.Job) { page.Jobs = all })
		if err != nil {
			return err
		}
		return show(s, lineWithJobs{line, jobs.Jobs, jobs.NextPageToken}, func(p *page, found lineWithJobs) {
			p.fields("line", p.style(bold, found.LineID), "state", p.lineState(&found.Line), "tenant", found.TenantID,
				"order key", found.OrderKey, "waiting", strconv.FormatInt(found.Waiting, 10), "since", p.ago(found.Since.Time))
			if found.State == api.LineStateBlocked {
				p.line("")
				p.line("Job %s has failed: %s", found.Head.JobID, found.Head.ErrorCode)
				p.line("To repeat it, in its place:  lucius jobs rerun %s", found.Head.JobID)
				p.line("To go on without it:         lucius lines release %s", found.LineID)
			}
			p.line("")
			showJobs(p, api.JobPage{Jobs: found.Jobs, NextPageToken: found.NextPageToken})
		})
	})
	cmd.Args = Takes(0, 1)
	cmd.Flags().StringVar(&tenant, "tenant", "", "the tenant of the order key")
	cmd.Flags().StringVar(&key, "order-key", "", "the order key of the line, in place of LINE")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of jobs to list")
	return cmd
}

func (t *tool) linesRelease() *cobra.Command {
	var job, reason string
	cmd := t.command(spec{
		use: "release LINE", short: "Let a blocked line go on without a rerun of its failed job", args: 1,
		long: "Begins the next job of the line. The failed job stays as it is; a later rerun of it goes to the end of\n" +
			"the line.",
		example: "  lucius lines release LINE --reason \"corrected by hand\"\n  lucius lines release LINE --job JOB -y",
	}, func(ctx context.Context, s *session, args []string) error {
		line, err := call[api.Line](s.GetLine(ctx, args[0]))
		if err != nil && (job == "" || ExitCode(err) != ExitNotFound) { // A repeat finds no job in the line.
			return err
		}
		if job == "" {
			if job = line.Head.JobID; line.State != api.LineStateBlocked {
				return &Error{Code: ExitRefused, Err: fmt.Errorf("line %s is not blocked", plain(args[0]))}
			}
		}
		if err := s.confirm(fmt.Sprintf("Go on without job %s, with %d jobs that wait?", plain(job), line.Waiting)); err != nil {
			return err
		}
		line, err = call[api.Line](s.ReleaseLine(ctx, args[0], api.ReleaseRequest{JobID: job, Reason: reason}))
		if err != nil {
			return err
		}
		return show(s, line, func(p *page, line api.Line) {
			p.line("Released job %s", job)
			if line.Head.JobID != "" {
				p.line("Job %s is first now: it is %s", line.Head.JobID, p.state(string(line.Head.State)))
			}
		})
	})
	cmd.Flags().StringVar(&job, "job", "", "the failed job (default: the job that blocks the line)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the histories")
	return asks(cmd)
}

func (t *tool) linesCancel() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "cancel LINE", short: "Cancel the jobs of a line that have not begun", args: 1,
		example: "  lucius lines cancel LINE --reason \"the customer left\"",
	}, func(ctx context.Context, s *session, args []string) error {
		if reason == "" {
			return usagef("say why with --reason: it is shown with each job")
		}
		line, err := call[api.Line](s.GetLine(ctx, args[0]))
		if err != nil {
			return err
		}
		question := fmt.Sprintf("Cancel up to %d jobs of tenant %s, order key %s?",
			line.Waiting+1, plain(line.TenantID), plain(line.OrderKey))
		if err := s.confirm(question); err != nil {
			return err
		}
		all := api.LineCancellation{LineID: args[0], More: true}
		for all.More {
			some, err := call[api.LineCancellation](s.CancelLine(ctx, args[0], api.LineCancelRequest{Reason: reason}))
			if all.Cancelled > 0 && isRefused(err, apierror.LineNotFound) {
				err = nil // The jobs before have ended.
			}
			if err != nil {
				return err
			}
			all.Cancelled += some.Cancelled
			all.More = some.More && some.Cancelled > 0
		}
		return show(s, all, func(p *page, all api.LineCancellation) { p.line("Cancelled %d jobs", all.Cancelled) })
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the histories")
	return asks(cmd)
}
