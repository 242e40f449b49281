package cli

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// jobs returns lucius jobs.
func (t *tool) jobs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "jobs", GroupID: GroupJobs, Short: "Read and control jobs",
		Example: "  lucius jobs list --state FAILED_FINAL\n  lucius jobs get JOB",
	}
	cmd.AddCommand(t.jobsList(), t.jobsGet(), t.jobsWatch(), t.jobsEvents(), t.jobsRerun(), t.jobsReschedule(), t.jobsPrioritize(),
		t.jobsControl("cancel", "Cancel jobs", "Cancelled", (*api.Client).CancelJob, createCancellation),
		t.jobsControl("pause", "Pause jobs", "Paused", (*api.Client).PauseJob, createPausing),
		t.jobsControl("resume", "Resume paused jobs", "Resumed", (*api.Client).ResumeJob, createResumption),
	)
	return t.calls(cmd)
}

func (t *tool) jobsList() *cobra.Command {
	var by selection
	var protocol, correlation string
	var waiting []string
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List jobs, newest first",
		long: "Lists jobs, newest first. Ended jobs are listed for the last three months, unless --created-after\nsays otherwise.",
		example: "  lucius jobs list --state FAILED_FINAL --created-after 24h\n  lucius jobs list --waiting no_worker --service ocr\n" +
			"  lucius jobs list --tenant tenant_a --doc doc_1\n  lucius jobs list --tenant tenant_a --tag customer=42 --tag env=prod\n" +
			"  lucius jobs list --tenant tenant_a --limit 1000 -o json",
	}, func(ctx context.Context, s *session, _ []string) error {
		if _, err := by.parse(s); err != nil {
			return err
		}
		params := by.jobs()
		params.ProtocolID, params.CorrelationID = optional(protocol), optional(correlation)
		if len(waiting) > 0 {
			params.Waiting = new(make([]api.WaitingReason, len(waiting)))
			for i, reason := range waiting {
				(*params.Waiting)[i] = api.WaitingReason(reason)
			}
		}
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.JobPage, []api.Job, string, error) {
			params.Limit, params.PageToken = &size, token
			page, err := call[api.JobPage](s.ListJobs(ctx, params))
			return page, page.Jobs, page.NextPageToken, err
		}, func(page *api.JobPage, jobs []api.Job) { page.Jobs = jobs })
		if err != nil {
			return err
		}
		return show(s, list, showJobs)
	})
	flags := cmd.Flags()
	by.register(t, cmd)
	by.registerLive(cmd)
	by.registerEnded(cmd)
	flags.StringSliceVar(&waiting, "waiting", nil, "only live jobs that wait for one of these reasons, such as no_worker,queued")
	flags.StringVar(&protocol, "protocol", "", "only jobs of this protocol")
	flags.StringVar(&correlation, "correlation-id", "", "only jobs with this correlation id, however old they are")
	flags.IntVar(&limit, "limit", 50, "maximum number of jobs to list")
	completeWords(cmd, "waiting", waitingReasons...)
	return cmd
}

// jobStates are the states of jobs.
var jobStates = []string{
	string(api.JobStateQueued), string(api.JobStateDispatching), string(api.JobStateInProgress), string(api.JobStatePausing),
	string(api.JobStatePaused), string(api.JobStateCancelling), string(api.JobStateCancelled), string(api.JobStateSucceeded),
	string(api.JobStateFailedFinal),
}

// waitingReasons are the reasons that live jobs wait for.
var waitingReasons = []string{
	string(api.WaitingReasonJobPaused), string(api.WaitingReasonScheduled), string(api.WaitingReasonLineBlocked),
	string(api.WaitingReasonBehind), string(api.WaitingReasonStarting),
	string(api.WaitingReasonScopePaused), string(api.WaitingReasonCircuitOpen),
	string(api.WaitingReasonPublishing), string(api.WaitingReasonNoWorker), string(api.WaitingReasonQueued),
	string(api.WaitingReasonDelivered), string(api.WaitingReasonRunning), string(api.WaitingReasonSilent),
	string(api.WaitingReasonBackoff), string(api.WaitingReasonRateLimited), string(api.WaitingReasonAtCapacity),
	string(api.WaitingReasonCancelling),
	string(api.WaitingReasonPausing),
}

// requestTypes completes the request types of the protocols.
func requestTypes(ctx context.Context, s *session) (words []cobra.Completion) {
	list, err := call[api.ProtocolList](s.ListProtocols(ctx))
	if err != nil {
		return nil
	}
	for i := range list.Protocols {
		for _, name := range list.Protocols[i].RequestTypes {
			words = append(words, plain(name))
		}
	}
	return words
}

// showJobs writes a list of jobs.
func showJobs(p *page, list api.JobPage) {
	rows := make([][]string, len(list.Jobs))
	for i := range list.Jobs {
		job := &list.Jobs[i]
		about := job.ErrorCode
		if job.Waiting != nil {
			about = string(job.Waiting.Reason)
			if job.Waiting.Reason == api.WaitingReasonScheduled {
				about += ", begins " + p.until(job.NotBefore.Time)
			}
			if job.Waiting.Reason == api.WaitingReasonScheduled && !job.NotAfter.IsZero() {
				about += ", expires " + p.until(job.NotAfter.Time)
			}
		}
		rows[i] = []string{
			job.JobID, p.state(string(job.State)), job.TenantID, job.RequestType, job.CurrentStepID, p.ago(job.CreatedAt.Time), about,
		}
	}
	p.table([]string{"JOB", "STATE", "TENANT", "REQUEST", "STEP", "ACCEPTED", "ABOUT"}, rows)
	p.more(list.NextPageToken != "", len(rows))
	p.omitted(list.TenantsOmitted)
}

// jobsControl returns a command that controls each of the named jobs, or starts an operation on
// those that its flags select.
func (t *tool) jobsControl(verb, short, done string,
	control func(*api.Client, context.Context, api.JobID, api.ControlRequest, ...api.RequestEditorFn) (*http.Response, error),
	create begin,
) *cobra.Command {
	var b bulk
	cmd := t.command(spec{
		use: verb + " [JOB...]", short: short, more: true, completes: jobIDs,
		long: short + " by id; -o json or yaml then prints a separate document for each. Without ids, the flags\n" +
			"select the jobs, and the server changes them in one operation. More than one job must be confirmed.",
		example: fmt.Sprintf("  lucius jobs %s JOB --reason \"wrong file\"\n  lucius jobs %[1]s --tenant tenant_a --dry-run", verb),
	}, func(ctx context.Context, s *session, ids []string) error {
		request, err := b.request(s, ids)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return s.operate(ctx, &b, request, create)
		}
		if b.dryRun || b.detach {
			return usagef("--dry-run and --detach are for flags that select jobs")
		}
		question := fmt.Sprintf("%s %d jobs?", strings.ToUpper(verb[:1])+verb[1:], len(ids))
		return s.each(question, ids, func(id string) error {
			job, err := call[api.Job](control(s.Client, ctx, id, api.ControlRequest{Reason: b.reason}))
			if err != nil {
				return err
			}
			return show(s, job, func(p *page, job api.Job) { p.line("%s job %s: it is %s", done, job.JobID, p.state(string(job.State))) })
		})
	})
	b.register(t, cmd)
	b.registerLive(cmd)
	return cmd
}

func (t *tool) jobsGet() *cobra.Command {
	return t.command(spec{
		use: "get JOB", short: "Show a job with its steps", args: 1, completes: jobIDs,
		example: "  lucius jobs get 0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7c8b\n  lucius jobs get JOB -o json | jq .steps",
	}, func(ctx context.Context, s *session, args []string) error {
		job, err := call[api.Job](s.GetJob(ctx, args[0], nil))
		if err != nil {
			return err
		}
		return show(s, job, showJob)
	})
}

// jobIDs completes the ids of the newest jobs.
func jobIDs(ctx context.Context, s *session) (words []cobra.Completion) {
	page, err := call[api.JobPage](s.ListJobs(ctx, &api.ListJobsParams{Limit: new(api.Limit(50))}))
	if err != nil {
		return nil
	}
	for i := range page.Jobs {
		job := &page.Jobs[i]
		about := plain(fmt.Sprintf("%s of %s, %s", job.RequestType, job.TenantID, job.State))
		words = append(words, cobra.CompletionWithDesc(job.JobID, about))
	}
	return words
}

// showJob writes a job and its steps.
func showJob(p *page, job api.Job) {
	p.fields(
		"job", job.JobID,
		"state", p.state(string(job.State)),
		"tenant", job.TenantID,
		"request", job.RequestType,
		"protocol", strings.TrimSpace(job.ProtocolID+" "+job.ProtocolVersion),
		"document", job.DocID,
		"tags", job.Tags.String(),
		"priority", string(job.Priority),
		"correlation", job.CorrelationID,
		"key", job.IdempotencyKey,
		"order key", job.OrderKey,
		"order mode", string(job.OrderMode),
		"line", job.LineID,
		"accepted", p.ago(job.CreatedAt.Time),
		"not before", p.date(job.NotBefore),
		"not after", p.date(job.NotAfter),
		"ended", p.ago(job.CompletedAt.Time),
		"attempts", strconv.Itoa(job.AttemptsTotal),
		"error", strings.TrimSuffix(strings.TrimSpace(job.ErrorCode+": "+job.ErrorMessage), ":"),
		"rerun of", job.RerunOf,
		"rerun as", job.SupersededBy,
	)
	if job.Waiting != nil {
		p.fields("waits", job.Waiting.Detail)
	}
	p.line("")
	rows := make([][]string, len(job.Steps))
	for i := range job.Steps {
		step := &job.Steps[i]
		rows[i] = []string{
			strconv.Itoa(step.StepIndex), step.StepID, p.state(string(step.State)), step.Service, strconv.Itoa(step.AttemptNo),
			step.Owner, p.ago(step.UpdatedAt.Time), p.until(step.NextAttemptAt.Time), step.LastErrorCode,
		}
	}
	p.table([]string{"#", "STEP", "STATE", "SERVICE", "ATTEMPT", "OWNER", "CHANGED", "NEXT", "ERROR"}, rows)
}
