package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// explained is a job with its history.
type explained struct {
	Job    api.Job
	Events []api.Event
}

// why returns lucius why, which says what a job waits for, or how it ended.
func (t *tool) why() *cobra.Command {
	cmd := t.command(spec{
		use: "why JOB", short: "Say what a job waits for, or why it failed", args: 1, completes: jobIDs,
		long: "Says what a live job waits for, since when, what holds it back and what happens next; for an ended\n" +
			"job, how it ended and after how many attempts. With -o json or yaml it prints the job.",
		example: "  lucius why 0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7c8b",
	}, func(ctx context.Context, s *session, args []string) error {
		job, err := call[api.Job](s.GetJob(ctx, args[0], nil))
		if err != nil {
			return err
		}
		if s.output != "table" {
			return s.encode(job)
		}
		history, err := s.history(ctx, args[0], wholeHistory)
		if err != nil {
			return err
		}
		return show(s, explained{job, history.Events}, showWhy)
	})
	cmd.GroupID = GroupJobs
	return t.calls(cmd)
}

// wholeHistory is more entries than a job's history has.
const wholeHistory = 1 << 20

// history reads about limit entries of a job's history.
func (s *session) history(ctx context.Context, jobID string, limit int) (api.EventPage, error) {
	return pages(limit, func(size api.Limit, token *api.PageToken) (api.EventPage, []api.Event, string, error) {
		page, err := call[api.EventPage](s.ListJobEvents(ctx, jobID, &api.ListJobEventsParams{Limit: &size, PageToken: token}))
		return page, page.Events, page.NextPageToken, err
	}, func(page *api.EventPage, events []api.Event) { page.Events = events })
}

// shownFailures is how many of a job's last failed attempts are shown.
const shownFailures = 5

// showWhy writes one screen about a job.
func showWhy(p *page, x explained) {
	job := &x.Job
	answer := diagnosis.Job(job, x.Events, p.now)
	p.line("%s", p.style(bold, answer.Headline.With(p.when)))
	p.line("")
	fields := []string{
		"job", job.JobID, "state", p.state(string(job.State)), "request", job.RequestType + " of " + job.TenantID,
		"order key", job.OrderKey, "line", job.LineID,
	}
	if step := answer.Step; step != nil {
		place := fmt.Sprintf("%d of %d: %s, service %s", step.StepIndex+1, len(job.Steps), step.StepID, step.Service)
		fields = append(fields, "step", place, "last error", diagnosis.Fault(step.LastErrorCode, step.LastErrorMessage))
	}
	if w := job.Waiting; w != nil {
		fields = append(fields, "since", p.ago(w.Since.Time), "until", p.until(w.Until.Time))
	}
	fields = append(fields, "detail", answer.Detail.With(p.when), "held by", answer.HeldBy,
		"rerun of", job.RerunOf, "rerun as", job.SupersededBy, "next", answer.Next.String())
	if step := answer.Step; step != nil && answer.Next.Do == diagnosis.RerunJob {
		fields = append(fields, "wrong input", answer.Next.String()+" --patch JSON")
		if step.StepIndex < len(job.Steps)-1 {
			fields = append(fields, "done by hand", answer.Next.String()+" --resolve "+diagnosis.Quoted(step.StepID)+"=URI")
		}
	}
	p.fields(fields...)

	var rows [][]string
	for _, e := range diagnosis.Failures(x.Events, "") {
		rows = append(rows, []string{p.ago(e.At.Time), e.ObjectID, strconv.Itoa(e.AttemptNo), e.Cause, e.Detail, e.Owner})
	}
	if len(rows) > 0 {
		p.line("")
		p.table([]string{"FAILED", "STEP", "ATTEMPT", "CAUSE", "ERROR", "WORKER"}, rows[max(0, len(rows)-shownFailures):])
	}
	if more := len(rows) - shownFailures; more > 0 {
		p.line("%s", p.style(faint, fmt.Sprintf("and %d before: lucius jobs events %s", more, job.JobID)))
	}
}

// when formats a time in a sentence.
func (p *page) when(form diagnosis.Form, at time.Time) string {
	switch form {
	case diagnosis.In:
		return p.until(at)
	case diagnosis.For:
		return "for " + short(max(0, p.now.Sub(at)))
	case diagnosis.Within:
		return strings.Replace(p.until(at), "in ", "within ", 1)
	case diagnosis.Ago:
	}
	return p.ago(at)
}
