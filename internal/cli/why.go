package cli

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// explained is a job with its history.
type explained struct {
	Job    api.Job
	Events []api.Event
}

// why returns lucius why, which says in sentences what a job waits for, or how it ended.
func (t *tool) why() *cobra.Command {
	cmd := t.command(spec{
		use: "why JOB", short: "Say what a job waits for, or why it failed", args: 1, completes: jobIDs,
		long: "Says what a live job waits for, since when, who holds it back and what happens next; of an ended\n" +
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
		return show(s, explained{job, history.Events}, explain)
	})
	cmd.GroupID = GroupJobs
	return t.calls(cmd)
}

// wholeHistory is more entries than a job's history has.
const wholeHistory = 1 << 20

// history reads a job's history, at most limit entries or a few more.
func (s *session) history(ctx context.Context, jobID string, limit int) (api.EventPage, error) {
	return pages(limit, func(size api.Limit, token *api.PageToken) (api.EventPage, []api.Event, string, error) {
		page, err := call[api.EventPage](s.ListJobEvents(ctx, jobID, &api.ListJobEventsParams{Limit: &size, PageToken: token}))
		return page, page.Events, page.NextPageToken, err
	}, func(page *api.EventPage, events []api.Event) { page.Events = events })
}

// shownFailures is how many of a job's failed attempts are shown: the last ones.
const shownFailures = 5

// explain writes one screen about a job.
func explain(p *page, x explained) {
	job := &x.Job
	step, headline, todo := x.live(p)
	if job.Waiting == nil {
		step, headline, todo = x.ended(p)
	}
	p.line("%s", p.style(bold, headline))
	p.line("")
	fields := []string{
		"job", job.JobID, "state", p.state(string(job.State)), "request", job.RequestType + " of " + job.TenantID,
	}
	if step != nil {
		place := fmt.Sprintf("%d of %d: %s, service %s", step.StepIndex+1, len(job.Steps), step.StepID, step.Service)
		fields = append(fields, "step", place, "last error", sentence(step.LastErrorCode, step.LastErrorMessage))
	}
	if w := job.Waiting; w != nil {
		fields = append(fields, "since", p.ago(w.Since.Time), "until", p.until(w.Until.Time))
		if detail := p.relative(w.Detail); !strings.Contains(headline, detail) {
			fields = append(fields, "detail", detail)
		}
		if w.BlockedBy != nil {
			fields = append(fields, "held by", strings.ReplaceAll(string(w.BlockedBy.Type), "_", " ")+" "+w.BlockedBy.ID)
		}
	}
	p.fields(append(fields, "rerun of", job.RerunOf, "rerun as", job.SupersededBy, "next", todo)...)

	var rows [][]string
	for _, e := range x.failures("") {
		rows = append(rows, []string{p.ago(e.At.Time), e.ObjectID, strconv.Itoa(e.AttemptNo), e.Cause, e.Detail})
	}
	if len(rows) > 0 {
		p.line("")
		p.table([]string{"FAILED", "STEP", "ATTEMPT", "CAUSE", "ERROR"}, rows[max(0, len(rows)-shownFailures):])
	}
	if more := len(rows) - shownFailures; more > 0 {
		p.line("%s", p.style(faint, fmt.Sprintf("and %d before: lucius jobs events %s", more, job.JobID)))
	}
}

// live returns the first step that has not ended, what it waits for, and what to do.
func (x *explained) live(p *page) (step *api.Step, headline, todo string) {
	job, w := &x.Job, x.Job.Waiting
	at := slices.IndexFunc(job.Steps, func(s api.Step) bool { return s.Waiting != nil })
	if w == nil || at < 0 {
		return nil, "", ""
	}
	step = &job.Steps[at]
	worker, until := cmp.Or(step.Owner, "a worker"), p.until(w.Until.Time)
	switch w.Reason {
	case api.WaitingReasonBackoff:
		return step, fmt.Sprintf("%s %s; the next attempt starts %s.", step.StepID, x.failed(step.StepID), until), ""
	case api.WaitingReasonJobPaused:
		return step, "The job is paused" + x.by(p, api.EventTypeJobPausing) + ".", "lucius jobs resume " + job.JobID
	case api.WaitingReasonScopePaused:
		return step, fmt.Sprintf("Dispatch to %s is %s.", step.Service, p.relative(w.Detail)), "it goes on when the pause is resumed"
	case api.WaitingReasonCircuitOpen:
		return step, fmt.Sprintf("The bus is out of service for %s; the next try is %s.", step.StepID, until), ""
	case api.WaitingReasonPublishing:
		return step, fmt.Sprintf("The directive of %s is about to be published.", step.StepID), ""
	case api.WaitingReasonNoWorker:
		return step, fmt.Sprintf("No worker asks for work of service %s, step type %s.", step.Service, step.StepType),
			"start a worker of " + step.Service
	case api.WaitingReasonQueued:
		return step, fmt.Sprintf("%s waits in the queue for a worker of %s.", step.StepID, step.Service), ""
	case api.WaitingReasonDelivered:
		return step, fmt.Sprintf("%s was handed to %s, which has to begin %s.", step.StepID, worker, until), ""
	case api.WaitingReasonRunning:
		return step, fmt.Sprintf("%s runs %s%s; its lease ends %s.", worker, step.StepID, progressed(step), until), ""
	case api.WaitingReasonSilent:
		return step, fmt.Sprintf("%s runs %s, but is silent; without a sign of life the attempt fails %s.", worker, step.StepID, until),
			"look at " + worker
	case api.WaitingReasonCancelling, api.WaitingReasonPausing:
		return step, fmt.Sprintf("The job is %s when %s ends its attempt, at the latest %s.",
			map[bool]string{true: "cancelled", false: "paused"}[w.Reason == api.WaitingReasonCancelling], worker, until), ""
	}
	return step, p.relative(w.Detail) + ".", "" // A reason that is newer than this program.
}

// progressed returns how far a step is.
func progressed(step *api.Step) string {
	if step.Progress == nil {
		return ""
	}
	text := fmt.Sprintf(", %.0f %% done", 100*step.Progress.Fraction)
	if step.Progress.Message != "" {
		text += " (" + step.Progress.Message + ")"
	}
	return text
}

// ended returns the step at which the job ended, how, and what to do.
func (x *explained) ended(p *page) (step *api.Step, headline, todo string) {
	job := &x.Job
	ago := p.ago(job.CompletedAt.Time)
	switch job.State {
	case api.JobStateSucceeded:
		return nil, fmt.Sprintf("The job succeeded %s, after %s.", ago, count(job.AttemptsTotal, "attempt")), ""
	case api.JobStateCancelled:
		return nil, "The job was cancelled" + x.by(p, api.EventTypeJobCancelling) + ".", x.rerun()
	case api.JobStateFailedFinal:
		at := slices.IndexFunc(job.Steps, func(s api.Step) bool { return s.State == api.StepStateFailedFinal })
		if at < 0 {
			return nil, fmt.Sprintf("The job failed %s: %s.", ago, sentence(job.ErrorCode, job.ErrorMessage)), x.rerun()
		}
		step = &job.Steps[at]
		return step, fmt.Sprintf("%s failed for good %s, after %s: %s.", step.StepID, ago, count(len(x.failures(step.StepID)), "attempt"),
			strings.TrimSuffix(sentence(job.ErrorCode, job.ErrorMessage), ".")), x.rerun()
	default: // A live job whose wait could not be read.
		return nil, fmt.Sprintf("The job is %s.", job.State), ""
	}
}

// rerun says how to run an ended job again.
func (x *explained) rerun() string {
	if x.Job.SupersededBy != "" {
		return "lucius why " + x.Job.SupersededBy
	}
	return "lucius jobs rerun " + x.Job.JobID
}

// by says who made the last change of that type, when and why.
func (x *explained) by(p *page, of api.EventType) string {
	for i := range slices.Backward(x.Events) {
		e := &x.Events[i]
		if e.Type != of {
			continue
		}
		text := " by " + cmp.Or(e.Caller, string(e.Actor)) + " " + p.ago(e.At.Time)
		if e.Cause != "" {
			text += ": " + strings.TrimSuffix(e.Cause, ".")
		}
		return text
	}
	return ""
}

// failed says how often a step failed, and how.
func (x *explained) failed(stepID string) string {
	failures := x.failures(stepID)
	if len(failures) == 0 {
		return "waits"
	}
	return fmt.Sprintf("failed %s, last with %s", count(len(failures), "time"), failures[len(failures)-1].Detail)
}

// failures returns the failed attempts of a step, or of all. An attempt that was withdrawn
// has no error, and is none.
func (x *explained) failures(stepID string) (failures []*api.Event) {
	for i := range x.Events {
		e := &x.Events[i]
		failed := e.Type == api.EventTypeStepFailedRetry || e.Type == api.EventTypeStepFailedFinal
		if failed && e.Detail != "" && (stepID == "" || e.ObjectID == stepID) {
			failures = append(failures, e)
		}
	}
	return failures
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// sentence joins an error's code and message.
func sentence(code, message string) string {
	return strings.TrimSuffix(strings.TrimPrefix(code+": "+message, ": "), ": ")
}

// exactTime matches the times in the server's sentences.
var exactTime = regexp.MustCompile(`(at |by |since |until )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// relative returns the text with relative times.
func (p *page) relative(text string) string {
	return exactTime.ReplaceAllStringFunc(text, func(match string) string {
		preposition, stamp := "", match
		if i := strings.LastIndexByte(match, ' '); i >= 0 {
			preposition, stamp = match[:i+1], match[i+1:]
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		switch {
		case err != nil:
			return match
		case preposition == "since ":
			return "for " + short(max(0, p.now.Sub(at)))
		case preposition == "at " || preposition == "":
			return p.ago(at)
		case at.After(p.now):
			return strings.Replace(p.until(at), "in ", "within ", 1)
		}
		return preposition + p.ago(at)
	})
}
