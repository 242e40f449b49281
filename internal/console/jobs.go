package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// jobsPage is a page of the jobs that match the filters, which are all in its URL.
type jobsPage struct {
	filterOffers

	Tenant        tenantFilter
	Filter        selection
	CorrelationID string
	ProtocolID    string
	Waits         string // the reasons to wait for, separated by commas
	Waitings      []waitingChoice
	Since         string // one of timeSpans, if there is no exact time
	Spans         []string
	States        []api.JobState
	Jobs          []listedJob
	// First is a command that begins a job, for a page that has none.
	First string
	// Newer and Older are the URLs of the neighbouring pages, empty if there is none.
	Newer, Older string
	// SearchedTo is how far a page has looked that is not full and has older ones.
	SearchedTo api.Time
	// TenantsOmitted says that jobs of some tenants are missing.
	TenantsOmitted bool
	Filtered       bool
	More           bool               // A filter is set that is folded otherwise.
	All            []diagnosis.Action // Actions on all jobs that match.
	Ticked         []diagnosis.Action // Actions on those that are ticked.
	Command        string
}

// listedJob is a job with a sentence about it.
type listedJob struct {
	api.Job

	Step  *api.Step
	About diagnosis.Sentence
}

// pageSize is how many jobs or rows a page has.
const pageSize = 50

// jobStates are those that the page offers.
var jobStates = []api.JobState{
	api.JobStateQueued, api.JobStateDispatching, api.JobStateInProgress, api.JobStatePausing, api.JobStatePaused,
	api.JobStateCancelling, api.JobStateSucceeded, api.JobStateFailedFinal, api.JobStateCancelled,
}

// waitingChoice is an option of the filter by waiting reason: the reasons, separated by commas, and
// its text.
type waitingChoice struct{ Reasons, Words string }

// The reasons that jobs wait for, as the numbers of the flow and of services count them.
const (
	waitsForPublish = "publishing,circuit_open"
	waitsForWorker  = "queued,no_worker"
	waitsForStart   = "delivered"
	waitsForResult  = "running,silent,pausing,cancelling"
	waitsForRetry   = "backoff,rate_limited"
	waitsForPause   = "scope_paused"
	waitsForDate    = "scheduled"
	waitsForTurn    = "behind,starting"
	waitsForRepair  = "line_blocked"
	waitsForResume  = "job_paused,pausing"
	// waitsAtStep leaves out jobs that are paused, and those that have not begun, which are not counted at a step.
	waitsAtStep = waitsForPublish + "," + waitsForWorker + "," + waitsForStart + "," + waitsForResult + "," +
		waitsForRetry + "," + waitsForPause + ",at_capacity"
	waitsAtAll = waitsAtStep + ",job_paused," + waitsForDate + "," + waitsForTurn + "," + waitsForRepair
)

// reasonsToWaitFor returns these constants for templates.
func reasonsToWaitFor(what string) (string, error) {
	reasons, known := map[string]string{
		"publish": waitsForPublish, "start": waitsForStart, "result": waitsForResult, "retry": waitsForRetry, "pause": waitsForPause,
	}[what]
	if !known {
		return "", fmt.Errorf("no jobs wait for %q", what)
	}
	return reasons, nil
}

var waitingChoices = []waitingChoice{
	{"", "anything, or ended"},
	{waitsAtAll, "anything"},
	{waitsForPublish, "its publish"},
	{waitsForWorker, "a worker"},
	{"no_worker", "a worker that asks for it"},
	{waitsForStart, "the start by a worker"},
	{waitsForResult, "a RESULT"},
	{"silent", "a RESULT of a silent worker"},
	{waitsForRetry, "a retry"},
	{waitsForPause, "the end of a pause"},
	{waitsForDate, "its date"},
	{waitsForTurn, "its turn"},
	{waitsForRepair, "a failed job before it"},
	{waitsForResume, "its resume"},
}

func jobs(r *request) (view, error) {
	data := jobsPage{
		Tenant: r.tenant(api.GrantRoleRead), CorrelationID: r.FormValue("correlation_id"), Spans: failureSpans, States: jobStates,
		Since: cmp.Or(r.FormValue("since"), "any time"), ProtocolID: r.FormValue("protocol_id"), Waits: r.FormValue("waiting"),
		Waitings: waitingChoices,
	}
	var waiting *[]api.WaitingReason
	if data.Waits != "" {
		waiting = new([]api.WaitingReason)
		for reason := range strings.SplitSeq(data.Waits, ",") {
			*waiting = append(*waiting, api.WaitingReason(reason))
		}
	}
	if !slices.ContainsFunc(waitingChoices, func(c waitingChoice) bool { return c.Reasons == data.Waits }) {
		data.Waitings = append(slices.Clone(waitingChoices), waitingChoice{data.Waits, strings.ReplaceAll(data.Waits, "_", " ")})
	}
	var err error
	if data.Filter, err = selectionOf(r); err != nil {
		return view{}, err
	}
	f := &data.Filter
	only := data.CorrelationID != "" || data.ProtocolID != "" || data.Waits != "" // Operations have no such filters.
	data.Filtered = !f.All() || only
	f.TenantID = data.Tenant.Value
	if span := failureSpanLengths[data.Since]; span > 0 && f.CreatedAfter.IsZero() {
		data.Filtered = true
		f.CreatedAfter = api.NewTime(r.now.Add(-span).Truncate(time.Second))
	} else {
		data.Since = "any time"
	}
	list, err := call[api.JobPage](r.api.ListJobs(r.Context(), &api.ListJobsParams{
		TenantID: optional(f.TenantID), DocID: optional(f.DocID), Tag: f.tagParams(),
		State: optional(f.State), RequestType: optional(f.RequestType),
		CorrelationID: optional(data.CorrelationID), Service: optional(f.Service), ErrorCode: optional(f.ErrorCode),
		ProtocolID: optional(data.ProtocolID), StepType: optional(f.StepType), Waiting: waiting,
		CreatedAfter: optional(f.CreatedAfter), CreatedBefore: optional(f.CreatedBefore),
		EndedAfter: optional(f.EndedAfter), EndedBefore: optional(f.EndedBefore),
		Limit: new(api.Limit(pageSize)), PageToken: r.pageToken(),
	}))
	if err != nil {
		return view{}, err
	}
	for i := range list.Jobs {
		data.Jobs = append(data.Jobs, listed(&list.Jobs[i], r.now))
	}
	// A page token is for the same filters, so the time may not move on.
	query := r.URL.Query()
	if !f.CreatedAfter.IsZero() {
		query.Del("since")
		query.Set("created_after", stamp(f.CreatedAfter))
	}
	data.Newer, data.Older = neighbours(r.URL.Path, query, list.NextPageToken)
	if len(list.Jobs) < pageSize {
		data.SearchedTo = list.SearchedTo
	}
	data.TenantsOmitted = list.TenantsOmitted
	data.More = len(f.Tags) > 0 ||
		f.RequestType != "" || f.StepType != "" || f.ErrorCode != "" || data.CorrelationID != "" || data.ProtocolID != "" ||
		!f.CreatedBefore.IsZero() || f.ended() ||
		!f.CreatedAfter.IsZero() && data.Since == "any time"
	known := r.known()
	data.filterOffers = filterOffersOf(known)
	if len(data.Jobs) == 0 && data.Older == "" && !data.Filtered && len(known) > 0 {
		data.First = submitting(r, &known[0])
	}
	data.Command = diagnosis.Command("jobs list", slices.Concat(
		diagnosis.Flag("waiting", data.Waits), diagnosis.Flag("protocol", data.ProtocolID),
		diagnosis.Flag("correlation-id", data.CorrelationID), f.flags())...)
	if r.May(api.GrantRoleAdmin, "") { // The API takes ids from an admin for all tenants alone.
		data.Ticked = manyActions(f, "ticked", "1")
	}
	if !only && r.May(api.GrantRoleAdmin, f.TenantID) {
		data.All = manyActions(f, f.query()...)
	}
	return view{Title: "Jobs", Template: "jobs", Data: data}, nil
}

// currentStep returns the step that a job is at, nil if the server tells none.
func currentStep(found *api.Job) *api.Step {
	if i := found.CurrentStepIndex; i >= 0 && i < len(found.Steps) {
		return &found.Steps[i]
	}
	return nil
}

// listed says in a few words what a job waits for, or how it failed.
func listed(found *api.Job, now time.Time) listedJob {
	one := listedJob{Job: *found, Step: currentStep(found)}
	switch {
	case found.Waiting != nil:
		one.About = diagnosis.Relative(found.Waiting.Detail, now)
	case found.State == api.JobStateFailedFinal:
		code, message := diagnosis.Brief(found.ErrorCode, diagnosis.BriefCode), diagnosis.Brief(found.ErrorMessage, diagnosis.BriefMessage)
		one.About = diagnosis.Sentence{{Text: diagnosis.Fault(code, message)}}
	}
	return one
}

// maxBack bounds how many newer pages the URL of a page names.
const maxBack = 20

// neighbours returns the URLs of the pages before and after this one. The API leads only
// to older jobs, so the URL names the pages on the way to it.
func neighbours(path string, query url.Values, next string) (newer, older string) {
	here, way := query.Get("page_token"), query["back"]
	at := func(token string, back []string) string {
		moved := url.Values{}
		for name, values := range query {
			if name != "page_token" && name != "back" {
				moved[name] = values
			}
		}
		if token != "" {
			moved.Set("page_token", token)
			moved["back"] = back
		}
		return path + "?" + moved.Encode()
	}
	if here != "" {
		newer = at("", nil)
		if n := len(way); n > 0 {
			newer = at(way[n-1], way[:n-1])
		}
	}
	if next != "" {
		way = append(slices.Clone(way), here)
		older = at(next, way[max(0, len(way)-maxBack):])
	}
	return newer, older
}

// manyActions returns the actions on many jobs of a list of the shown ones, for those that the
// parameters select.
func manyActions(shown *selection, filter ...any) (do []diagnosis.Action) {
	act := func(name, text string, parameters []any) {
		do = append(do, diagnosis.Action{Text: text, Page: "do/" + name, Query: parameters, Form: true})
	}
	if api.RetryRequestState(shown.State).Valid() {
		act("retry", "Rerun these…", filter)
		return do
	}
	if shown.State == "" {
		act("retry", "Retry…", filter) // Of those that failed.
	}
	if shown.ended() {
		return do
	}
	act("jobs-pause", "Pause…", filter)
	act("jobs-resume", "Resume…", filter)
	act("jobs-cancel", "Cancel…", filter)
	return do
}
