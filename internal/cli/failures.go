package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// failures returns lucius failures.
func (t *tool) failures() *cobra.Command {
	var by selection
	var resolved, retrying bool
	cmd := t.command(spec{
		use: "failures", short: "Show what failed, and why",
		long: "Shows the jobs that failed for good, in groups of the same step type, service and error code, with\n" +
			"the message of the newest job. Jobs that were rerun are left out, unless --include-resolved is given,\n" +
			"and live jobs whose step failed and is retried, unless --include-retrying is.\n" +
			"Without a time, shows jobs accepted in this month and the two before it.",
		example: "  lucius failures --since 24h\n  lucius failures --service ocr --include-resolved\n" +
			"  lucius failures list --service ocr --code bad_scan",
	}, func(ctx context.Context, s *session, _ []string) error {
		f, err := by.parse(s)
		if err != nil {
			return err
		}
		params := &api.ListFailuresParams{
			TenantID: optional(f.TenantID), DocID: optional(f.DocID), Tag: by.tagParams(),
			RequestType: optional(f.RequestType), Service: optional(f.Service),
			StepType: optional(f.StepType), ErrorCode: optional(f.ErrorCode),
			CreatedAfter: optional(f.CreatedAfter), CreatedBefore: optional(f.CreatedBefore),
			EndedAfter: optional(f.EndedAfter), EndedBefore: optional(f.EndedBefore),
		}
		include := []api.ListFailuresParamsInclude{}
		if resolved {
			include = append(include, api.ListFailuresParamsIncludeResolved)
		}
		if retrying {
			include = append(include, api.ListFailuresParamsIncludeRetrying)
		}
		if len(include) > 0 {
			params.Include = &include
		}
		list, err := call[api.FailureList](s.ListFailures(ctx, params))
		if err != nil {
			return err
		}
		if s.output != "table" {
			return s.encode(list)
		}
		return show(s, list, showFailures)
	})
	by.register(t, cmd)
	by.registerSince(cmd)
	cmd.Flags().BoolVar(&resolved, "include-resolved", false, "also show jobs that were rerun, in separate groups")
	cmd.Flags().BoolVar(&retrying, "include-retrying", false,
		"also show live jobs whose step failed and is retried, in separate groups")
	cmd.AddCommand(t.failuresList())
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// showFailures writes a table of groups.
func showFailures(p *page, list api.FailureList) {
	if len(list.Groups) == 0 {
		p.line("No matching job has failed.")
		return
	}
	rows := make([][]string, len(list.Groups))
	for i := range list.Groups {
		g := &list.Groups[i]
		jobs := p.style(red, strconv.Itoa(g.Count))
		switch {
		case g.Resolved:
			jobs = fmt.Sprintf("%d rerun", g.Count)
		case g.Retrying:
			jobs = fmt.Sprintf("%d retrying", g.Count)
		}
		rows[i] = []string{jobs, g.Service, g.StepType, g.ErrorCode, p.ago(g.FirstAt.Time), p.ago(g.LastAt.Time), g.SampleMessage}
	}
	p.table([]string{"JOBS", "SERVICE", "STEP TYPE", "ERROR", "FIRST", "LAST", "NEWEST MESSAGE"}, rows)
	if list.Truncated {
		p.line("%s", p.style(faint,
			"There may be more: at most 100,000 failed jobs, or lists of a tenant and month, and 2,000 live jobs are read. "+
				"Narrow the time, or use --tenant."))
	}
}

func (t *tool) failuresList() *cobra.Command {
	var by selection
	var resolved bool
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List the jobs of a group of failures",
		long: "Lists the matching jobs that failed for good, newest first. Jobs that were rerun are left out, unless\n" +
			"--include-resolved is given.",
		example: "  lucius failures list --service ocr --code bad_scan --since 24h",
	}, func(ctx context.Context, s *session, _ []string) error {
		if _, err := by.parse(s); err != nil {
			return err
		}
		params := by.jobs()
		params.State = new(api.JobStateFailedFinal)
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.JobPage, []api.Job, string, error) {
			params.Limit, params.PageToken = &size, token
			page, err := call[api.JobPage](s.ListJobs(ctx, params))
			jobs := slices.DeleteFunc(page.Jobs, func(job api.Job) bool { return !resolved && job.SupersededBy != "" })
			return page, jobs, page.NextPageToken, err
		}, func(page *api.JobPage, jobs []api.Job) { page.Jobs = jobs })
		if err != nil {
			return err
		}
		return show(s, list, showFailedJobs)
	})
	by.register(t, cmd)
	by.registerSince(cmd)
	cmd.Flags().BoolVar(&resolved, "include-resolved", false, "also list jobs that were rerun")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of jobs to list")
	return cmd
}

// failedStep returns the step at which a job failed, or an empty step if there is none.
func failedStep(job *api.Job) *api.Step {
	i := slices.IndexFunc(job.Steps, func(step api.Step) bool { return step.State == api.StepStateFailedFinal })
	if i < 0 {
		return &api.Step{}
	}
	return &job.Steps[i]
}

// showFailedJobs writes a table of failed jobs.
func showFailedJobs(p *page, list api.JobPage) {
	rows := make([][]string, len(list.Jobs))
	for i := range list.Jobs {
		job := &list.Jobs[i]
		step := failedStep(job)
		rows[i] = []string{
			job.JobID, job.TenantID, step.Service, step.StepID, strconv.Itoa(step.AttemptNo), p.ago(job.CompletedAt.Time),
			job.ErrorCode, job.ErrorMessage,
		}
	}
	p.table([]string{"JOB", "TENANT", "SERVICE", "STEP", "ATTEMPT", "FAILED", "ERROR", "MESSAGE"}, rows)
	p.more(list.NextPageToken != "", len(rows))
	p.omitted(list.TenantsOmitted)
}
