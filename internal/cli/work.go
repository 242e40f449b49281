package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// work returns lucius work.
func (t *tool) work() *cobra.Command {
	cmd := &cobra.Command{
		Use: "work", GroupID: GroupOperate, Short: "Show items of the pull queue, and take them from workers",
		Long:    "Work items are steps in the pull queue that wait for a worker, or that a worker has.",
		Example: "  lucius work list --service ocr\n  lucius work stall WORK --reason \"the worker hangs\"",
	}
	cmd.AddCommand(t.workList(), t.workGet(), t.workEvents(),
		t.workControl("stall", "Take an item from its worker; the step waits for its next attempt", (*api.Client).StallWork),
		t.workControl("requeue", "Offer a stalled item again now", (*api.Client).RequeueWork),
	)
	return t.calls(cmd)
}

// withWork are the states of jobs that may have an open work item.
var withWork = []api.JobState{
	api.JobStateInProgress, api.JobStateDispatching, api.JobStatePausing, api.JobStateCancelling, api.JobStatePaused,
}

func (t *tool) workList() *cobra.Command {
	var service, tenant, owner string
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List the work items of live jobs",
		long: "Lists the items that wait for a worker, that a worker has, or that were taken from their worker. -o json\n" +
			"prints their jobs.",
		example: "  lucius work list --service ocr --owner worker-1",
	}, func(ctx context.Context, s *session, _ []string) error {
		list := api.JobPage{Jobs: []api.Job{}}
		for _, state := range withWork {
			if len(list.Jobs) > 0 && len(list.Jobs) >= limit {
				break
			}
			params := &api.ListJobsParams{State: &state, TenantID: optional(tenant)}
			some, err := pages(limit-len(list.Jobs), func(size api.Limit, token *api.PageToken) (api.JobPage, []api.Job, string, error) {
				params.Limit, params.PageToken = &size, token
				page, err := call[api.JobPage](s.ListJobs(ctx, params))
				jobs := slices.DeleteFunc(page.Jobs, func(job api.Job) bool {
					step := openWork(&job)
					return step == nil || service != "" && step.Service != service || owner != "" && step.Owner != owner
				})
				return page, jobs, page.NextPageToken, err
			}, func(page *api.JobPage, jobs []api.Job) { page.Jobs = jobs })
			if err != nil {
				return err
			}
			list.Jobs = append(list.Jobs, some.Jobs...) // without a token, which would be for one state only
			list.TenantsOmitted = list.TenantsOmitted || some.TenantsOmitted
		}
		return show(s, list, func(p *page, list api.JobPage) {
			showWorkList(p, list)
			p.more(len(list.Jobs) >= limit, len(list.Jobs))
			p.omitted(list.TenantsOmitted)
		})
	})
	cmd.Flags().StringVar(&service, "service", "", "only items of this service")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only items of this tenant")
	cmd.Flags().StringVar(&owner, "owner", "", "only items that this worker has")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of items to list")
	return cmd
}

// openWork returns the step of the job that is in the pull queue, nil if there is none.
func openWork(job *api.Job) *api.Step {
	i := slices.IndexFunc(job.Steps, func(step api.Step) bool { return step.WorkID != "" && step.CompletedAt.IsZero() })
	if i < 0 {
		return nil
	}
	return &job.Steps[i]
}

// showWorkList writes a table of work items.
func showWorkList(p *page, list api.JobPage) {
	rows := make([][]string, len(list.Jobs))
	for i := range list.Jobs {
		job := &list.Jobs[i]
		step, reason := openWork(job), ""
		if job.Waiting != nil {
			reason = string(job.Waiting.Reason)
		}
		rows[i] = []string{
			step.WorkID, p.state(string(step.State)), reason, step.Service, job.TenantID, step.Owner, p.ago(step.UpdatedAt.Time),
			diagnosis.Progress(step), job.JobID,
		}
	}
	p.table([]string{"WORK", "STATE", "WAITS FOR", "SERVICE", "TENANT", "WORKER", "SINCE", "PROGRESS", "JOB"}, rows)
}

func (t *tool) workGet() *cobra.Command {
	return t.command(spec{
		use: "get WORK", short: "Show a work item", args: 1, example: "  lucius work get WORK",
	}, func(ctx context.Context, s *session, args []string) error {
		item, err := call[api.WorkItem](s.GetWork(ctx, args[0]))
		if err != nil {
			return err
		}
		return show(s, item, showWork)
	})
}

// showWork writes a work item.
func showWork(p *page, item api.WorkItem) {
	var directive api.Directive
	_ = json.Unmarshal(item.Directive, &directive) // If it fails, the fields are left out.
	lease, failure := "", ""
	if item.Lease != nil {
		lease = p.until(item.Lease.ExpiresAt.Time)
	}
	if item.Error != nil {
		failure = diagnosis.Fault(item.Error.Code, item.Error.Message)
	}
	p.fields("work", item.WorkID, "status", p.work(item.Status), "job", directive.JobID, "step", directive.StepID,
		"service", directive.Service, "tenant", directive.TenantID, "attempt", strconv.Itoa(item.Attempt),
		"rev", strconv.FormatInt(item.Rev, 10), "worker", item.Owner, "lease ends", lease, "error", failure,
		"created", p.ago(item.CreatedAt.Time), "changed", p.ago(item.UpdatedAt.Time))
}

// work returns the status of a work item in its colour.
func (p *page) work(status api.WorkStatus) string {
	colour := map[api.WorkStatus]style{
		api.WorkStatusSucceeded: green, api.WorkStatusFailed: red, api.WorkStatusStalled: yellow,
		api.WorkStatusClaimed: cyan, api.WorkStatusRunning: cyan, api.WorkStatusQueued: faint,
	}[status]
	if colour == "" {
		return string(status)
	}
	return p.style(colour, string(status))
}

func (t *tool) workEvents() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "events WORK", short: "Show the history of a work item", args: 1, example: "  lucius work events WORK",
	}, func(ctx context.Context, s *session, args []string) error {
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.WorkEventPage, []api.WorkEvent, string, error) {
			page, err := call[api.WorkEventPage](s.ListWorkEvents(ctx, args[0], &api.ListWorkEventsParams{Limit: &size, PageToken: token}))
			return page, page.Events, page.NextPageToken, err
		}, func(page *api.WorkEventPage, events []api.WorkEvent) { page.Events = events })
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.WorkEventPage) {
			rows := make([][]string, len(list.Events))
			for i := range list.Events {
				e := &list.Events[i]
				rows[i] = []string{p.ago(e.At.Time), string(e.Type), p.work(e.To), strconv.Itoa(e.Attempt), e.Actor, e.Caller, e.Detail}
			}
			p.table([]string{"AT", "EVENT", "STATUS", "ATTEMPT", "BY", "CALLER", "DETAIL"}, rows)
			p.more(list.NextPageToken != "", len(rows))
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum number of entries to show, from the first")
	return cmd
}

// workControl returns a command that changes each of the items, provided that it is still as
// the operator saw it.
func (t *tool) workControl(verb, short string,
	control func(*api.Client, context.Context, api.WorkID, api.AdminWorkRequest, ...api.RequestEditorFn) (*http.Response, error),
) *cobra.Command {
	request := api.AdminWorkRequest{}
	cmd := t.command(spec{
		use: verb + " WORK...", short: short, args: 1, more: true,
		long: "Shows each item and asks; then changes it, unless it has changed since. --expected-rev names the rev of an\n" +
			"item that you have seen already, such as with lucius work get.",
		example: "  lucius work " + verb + " WORK --reason \"the worker hangs\"",
	}, func(ctx context.Context, s *session, ids []string) error {
		if len(ids) > 1 && (request.ExpectedRev != 0 || request.RequestID != "") {
			return usagef("--expected-rev and --request-id are for one item")
		}
		revs, err := s.seen(ctx, strings.ToUpper(verb[:1])+verb[1:], ids, request.ExpectedRev)
		if err != nil {
			return err
		}
		return s.each("", ids, func(id string) error {
			of := request
			of.ExpectedRev, of.RequestID = revs[id], cmp.Or(request.RequestID, uuid.NewString())
			item, err := call[api.WorkItem](control(s.Client, ctx, id, of))
			if err != nil {
				return err
			}
			return show(s, item, func(p *page, item api.WorkItem) { p.line("Item %s is %s", item.WorkID, p.work(item.Status)) })
		})
	})
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the histories of the item and of its job")
	cmd.Flags().Int64Var(&request.ExpectedRev, "expected-rev", 0, "rev at which you saw the item; then nothing is asked")
	cmd.Flags().StringVar(&request.RequestID, "request-id", "", "name of the request, to repeat one (default: a new name)")
	return asks(cmd)
}

// seen returns the rev of each item that the user agrees to change, after showing them. A rev
// that the user has seen before is taken as it is.
func (s *session) seen(ctx context.Context, verb string, ids []string, rev int64) (map[string]int64, error) {
	if rev != 0 {
		return map[string]int64{ids[0]: rev}, nil
	}
	revs, lines := map[string]int64{}, make([]string, len(ids))
	for i, id := range ids {
		item, err := call[api.WorkItem](s.GetWork(ctx, id))
		if err != nil {
			return nil, fmt.Errorf("item %s: %w", plain(id), err)
		}
		revs[id], lines[i] = item.Rev, plain(id+" ("+diagnosis.Item(&item)+")")
	}
	return revs, s.confirm(fmt.Sprintf("%s %s?", verb, strings.Join(lines, ", ")))
}
