package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// jobPage is one job: why it waits or how it ended, its course, and what is stored of it.
type jobPage struct {
	Job      api.Job
	Answer   diagnosis.Answer
	Next     *diagnosis.Action // What helps it on.
	Do       []diagnosis.Action
	Steps    []stepView
	Timeline timeline
	Canvas   canvas
	// Events is the history, and History the part of it that is shown; Longer says that it has more.
	Events   []api.Event
	History  []attemptEvents
	Longer   bool
	Rejected api.RejectedCallbacks
	Webhooks []api.Webhook
	// Line is the line of the job, nil if it has none or no job is in that.
	Line    *jobLine
	TraceID string
	Tags    []string // as "key=value"
	// Related is the URL of the jobs with the same correlation id.
	Related string
	Command string
	// Directive is what the worker of the current step got, if the pull queue holds it.
	Directive api.DirectiveBytes
}

// stepView is a step with what the pipeline shows of it.
type stepView struct {
	api.Step

	Here bool // The job is at it.
	// Shown is its state, or that of the job if that is paused at it; Level is its style.
	Shown, Level string
	// Took is how long it was from its first attempt to its end.
	Took     string
	Progress string
}

const (
	// maxHistory is how many entries of a history a page reads, for the timeline, and
	// shownHistory how many it shows, the newest.
	maxHistory   = 2000
	shownHistory = 400
)

func job(r *request) (view, error) {
	id := r.PathValue("id")
	age := memoKeep
	if r.fresh {
		age = 0
	}
	data, err := recallOwn(r, "job", age, func() (jobPage, error) { return r.readJob(id) })
	if err != nil {
		return view{}, err
	}
	found := &data.Job
	data.Answer = diagnosis.Job(found, data.Events, r.now)
	data.Timeline = timelineOf(found, data.Events, r.now)
	data.Canvas = jobCanvas(found, data.Events, r.seesAll())
	data.Tags = found.Tags.List()
	data.Related = link("jobs", "correlation_id", found.CorrelationID)
	if !r.May(api.GrantRoleRead, "") {
		data.Related = link("jobs", "correlation_id", found.CorrelationID, "tenant_id", found.TenantID)
	}
	data.Steps = stepViews(found, data.Events)
	data.Next, data.Do = r.jobActions(found, data.Line, data.Answer.Next)
	older := max(len(data.Events)-shownHistory, 0)
	data.History, data.Longer = byAttempt(data.Events[older:]), data.Longer || older > 0
	still := !found.CompletedAt.IsZero() && settled(data.Webhooks)
	return view{Title: "Job " + diagnosis.ShortID(id), Template: "job", Nav: "Jobs", Data: data, Still: still}, nil
}

// readJob asks the API for what the page of a job shows.
func (r *request) readJob(id string) (data jobPage, err error) {
	found, err := call[api.Job](r.api.GetJob(r.Context(), id, nil))
	if err != nil {
		return data, err
	}
	data = jobPage{Job: found, Command: diagnosis.Command("why", id)}
	if data.Events, data.Longer, err = r.history(id); err != nil {
		return data, err
	}
	if data.Rejected, err = call[api.RejectedCallbacks](r.api.ListRejectedCallbacks(r.Context(), id)); err != nil {
		return data, err
	}
	if data.Line, err = r.lineOf(&found); err != nil {
		return data, err
	}
	if !found.CompletedAt.IsZero() {
		hooks, err := call[api.WebhookPage](r.api.ListJobWebhooks(r.Context(), id))
		if err != nil {
			return data, err
		}
		data.Webhooks = hooks.Webhooks
	}
	if at := currentStep(&found); at != nil && at.WorkID != "" {
		item, err := call[api.WorkItem](r.api.GetWork(r.Context(), at.WorkID))
		if err != nil && !isMissing(err) {
			return data, err
		}
		data.Directive = item.Directive
	}
	if parts := strings.Split(found.Traceparent, "-"); len(parts) > 1 {
		data.TraceID = parts[1]
	}
	return data, nil
}

// attemptEvents are the entries of a history from the first about an attempt to the first about
// another one, the newest first. Those before the first attempt are of none.
type attemptEvents struct {
	Step   string
	No     int
	Events []api.Event
}

// byAttempt groups a history by the attempts of its steps, the newest first.
func byAttempt(events []api.Event) (groups []attemptEvents) {
	for i := range events {
		e, of := &events[i], attemptEvents{}
		if e.Object == api.EventObjectStep {
			of.Step, of.No = e.ObjectID, e.AttemptNo
		}
		last := len(groups) - 1
		if last < 0 || of.Step != "" && (of.Step != groups[last].Step || of.No != groups[last].No) {
			groups = append(groups, of)
			last++
		}
		groups[last].Events = append(groups[last].Events, *e)
	}
	for i := range groups {
		slices.Reverse(groups[i].Events)
	}
	slices.Reverse(groups)
	return groups
}

// settled reports whether no webhook is still to be sent.
func settled(hooks []api.Webhook) bool {
	return !slices.ContainsFunc(hooks, func(hook api.Webhook) bool { return hook.State == api.WebhookStatePending })
}

// history reads a job's history, and reports whether it is longer.
func (r *request) history(id string) (events []api.Event, longer bool, err error) {
	params := &api.ListJobEventsParams{Limit: new(api.Limit(1000))}
	for len(events) < maxHistory {
		page, err := call[api.EventPage](r.api.ListJobEvents(r.Context(), id, params))
		if err != nil {
			return nil, false, err
		}
		events = append(events, page.Events...)
		if page.NextPageToken == "" {
			return events, false, nil
		}
		params.PageToken = &page.NextPageToken
	}
	return events, true, nil
}

// jobChanges tells when the job's history grows.
func jobChanges(r *request) <-chan struct{} {
	changes := make(chan struct{}, 1)
	go func() {
		defer close(changes)
		response, err := r.api.ListJobEvents(r.Context(), r.PathValue("id"), nil, func(_ context.Context, inner *http.Request) error {
			inner.Header.Set("Accept", eventStream)
			return nil
		})
		if err != nil {
			return
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return
		}
		for buffer := make([]byte, 4096); ; {
			if _, err := response.Body.Read(buffer); err != nil {
				return
			}
			select {
			case changes <- struct{}{}:
			default: // It is told already.
			}
		}
	}()
	return changes
}

// stepViews adds to the steps what the pipeline shows.
func stepViews(found *api.Job, events []api.Event) []stepView {
	steps := make([]stepView, len(found.Steps))
	for i := range found.Steps {
		step := &found.Steps[i]
		steps[i] = stepView{Step: *step, Here: step.Waiting != nil, Progress: diagnosis.Progress(step), Shown: string(step.State)}
		if found.State == api.JobStatePaused && step.State == api.StepStateFailedRetry {
			steps[i].Shown = string(found.State)
		}
		if steps[i].Level = stateClass(steps[i].Shown); steps[i].Here {
			steps[i].Level = jobLevel(found)
		}
		first := slices.IndexFunc(events, func(e api.Event) bool {
			return e.Type == api.EventTypeStepDispatching && e.ObjectID == step.StepID
		})
		if first >= 0 && !step.CompletedAt.IsZero() {
			steps[i].Took = diagnosis.Duration(step.CompletedAt.Sub(events[first].At.Time))
		}
	}
	return steps
}

// jobActions returns what helps the job on, nil for nothing, and what else the user can do
// with it and its line.
func (r *request) jobActions(found *api.Job, in *jobLine, next diagnosis.Next) (*diagnosis.Action, []diagnosis.Action) {
	act := func(verb, text string) diagnosis.Action {
		return diagnosis.Action{Text: text, Page: "do/job-" + verb, Query: []any{"job", found.JobID}, Form: true}
	}
	var do []diagnosis.Action
	controls := r.May(api.GrantRoleSubmit, found.TenantID)
	if controls {
		switch found.State {
		case api.JobStateFailedFinal, api.JobStateCancelled:
			do = append(do, act("rerun", "Rerun…"))
		case api.JobStateSucceeded:
			again := act("rerun", "Rerun…")
			again.Query = append(again.Query, "from", api.RerunFromStart)
			do = append(do, again)
		case api.JobStateCancelling:
		case api.JobStatePaused, api.JobStatePausing:
			do = append(do, act("resume", "Resume…"), act("cancel", "Cancel…"))
		default:
			do = append(do, act("pause", "Pause…"), act("cancel", "Cancel…"))
		}
	}
	if controls {
		do = append(do, prioritizing(found)...)
	}
	if waits := found.State == api.JobStateQueued || found.State == api.JobStatePaused; controls && waits && found.AttemptsTotal == 0 {
		do = append(do, act("reschedule", "Reschedule…"))
	}
	if controls && in != nil && in.Blocks {
		do = append(do, releaseOf(in.LineID, found.JobID))
	}
	step := currentStep(found)
	if step != nil && found.State != api.JobStatePaused && r.May(api.GrantRoleAdmin, found.TenantID) {
		do = append(do, workActions(found, step)...)
	}
	var first *diagnosis.Action
	switch next.Do {
	case diagnosis.BeginJob:
		if controls {
			begin := act("reschedule", "Begin now…")
			begin.Query = append(begin.Query, "begins", beginsNow)
			first = &begin
		}
	case diagnosis.ResumeJob, diagnosis.RerunJob:
		if controls { // It is the first of them.
			first, do = &do[0], do[1:]
		}
	case diagnosis.SeeRerun:
		first = &diagnosis.Action{Text: "See its rerun", Page: "jobs/" + next.Of}
	case diagnosis.SeeFirst:
		first = &diagnosis.Action{Text: "See the first job of its line", Page: "jobs/" + next.Of}
		if controls && reasonOf(found) == api.WaitingReasonLineBlocked {
			first, do = new(rerunFailed(next.Of)), append([]diagnosis.Action{releaseOf(found.LineID, next.Of)}, do...)
		}
	case diagnosis.EndPause:
		if by := found.Waiting.BlockedBy; by != nil {
			first = &diagnosis.Action{Text: "Resume dispatch…", Page: "do/dispatch-resume", Query: []any{"pause", by.ID}, Form: true}
		}
	case diagnosis.StartWorker, diagnosis.SeeWorker:
		if step != nil && r.May(api.GrantRoleRead, "") { // It waits at its current step.
			first = &diagnosis.Action{Text: "See the workers", Page: "services/" + url.PathEscape(step.Service)}
		}
	}
	return first, do
}

// workActions returns what an operator can do with the current step of a job that is not paused.
func workActions(found *api.Job, step *api.Step) []diagnosis.Action {
	work := func(verb, text string) []diagnosis.Action {
		return []diagnosis.Action{{Text: text, Page: "do/work-" + verb, Query: []any{"work", step.WorkID, "job", found.JobID}, Form: true}}
	}
	switch {
	case step.State == api.StepStateFailedRetry && step.WorkID != "" && step.Owner == "": // Its item is stalled.
		return work("requeue", "Try again now…")
	case step.State == api.StepStateFailedRetry: // Its item has ended, which keeps its owner, or there is none.
		next := []any{"job", found.JobID, "tenant_id", found.TenantID}
		return []diagnosis.Action{{Text: "Try again now…", Page: "do/outbox-retry", Query: next, Form: true}}
	case step.WorkID != "" && step.Owner != "" && (step.State == api.StepStateInProgress || step.State == api.StepStateAwaitingAck):
		return work("stall", "Take from its worker…")
	default:
		return nil
	}
}
