package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// edits say where reruns start, and how their commands differ from those of the jobs before.
type edits struct{ from, step, patch, protocol, callbacks, class string }

// editsOf reads the edits from the request's parameters. Reruns start at from, unless these say
// otherwise.
func editsOf(r *request, from api.RerunFrom) edits {
	return edits{
		from: cmp.Or(r.FormValue("from"), string(from)), step: strings.TrimSpace(r.FormValue("from_step")),
		patch:     strings.TrimSpace(r.FormValue("payload_patch")),
		protocol:  cmp.Or(r.FormValue("protocol"), string(api.RerunProtocolKept)),
		callbacks: cmp.Or(r.FormValue("callbacks"), string(api.RerunCallbacksKeep)),
		class:     r.FormValue("priority"),
	}
}

// fields returns the fields of the edits. Steps are those to start at, none for any.
func (e *edits) fields(steps []string) []field {
	return []field{
		{
			Name: "from", Flag: "from", Label: "From", Value: e.from,
			Options: []string{string(api.RerunFromFailed), string(api.RerunFromStart)},
			Hint:    "The failed step (keeps the results of earlier steps) or the first step.",
		},
		{
			Name: "from_step", Flag: "from-step", Label: "Or from the step", Value: e.step, Options: steps,
			Hint: "Each step before it must have succeeded, or be done by hand.",
		},
		{
			Name: "payload_patch", Flag: "patch", Label: "Change of the payload", Value: e.patch, At: "/payload",
			Hint: `JSON that is merged into the payload, such as {"language": "de"}; null removes a member.`,
		},
		{
			Name: "protocol", Flag: "protocol", Label: "Protocol", Value: e.protocol,
			Options: []string{string(api.RerunProtocolKept), string(api.RerunProtocolCurrent)},
			Hint:    "The steps and policies that the job was accepted with, or those of its protocol now.",
		},
		{
			Name: "callbacks", Switch: "no-callbacks", Label: "Callbacks", Value: e.callbacks,
			Options: []string{string(api.RerunCallbacksKeep), string(api.RerunCallbacksNone)},
			Hint:    "Whether the callback URLs of the job are told how the rerun ends.",
		},
		{
			Name: "priority", Flag: "priority", Label: "Priority", Value: e.class,
			Options: []string{"", string(api.PriorityBulk), string(api.PriorityNormal)},
			Hint:    "That of the job, or bulk: it yields to all other work of the same kind.",
		},
	}
}

// args returns the edits as flags of the command line.
func (e *edits) args() []string {
	args := diagnosis.Flag("from-step", e.step)
	if e.step == "" {
		args = diagnosis.Flag("from", e.from)
	}
	args = append(args, diagnosis.Flag("patch", e.patch)...)
	if e.protocol != string(api.RerunProtocolKept) {
		args = append(args, "--protocol", e.protocol)
	}
	if e.callbacks != string(api.RerunCallbacksKeep) {
		args = append(args, "--no-callbacks")
	}
	return append(args, diagnosis.Flag("priority", e.class)...)
}

// request returns the request for a rerun with these edits. It leaves out the API's defaults.
func (e *edits) request() (q api.RerunRequest, _ error) {
	if q.FromStep = optional(e.step); e.step == "" {
		q.From = api.RerunFrom(e.from)
	}
	if e.protocol != string(api.RerunProtocolKept) {
		q.Protocol = api.RerunProtocol(e.protocol)
	}
	if e.callbacks != string(api.RerunCallbacksKeep) {
		q.Callbacks = api.RerunCallbacks(e.callbacks)
	}
	q.Priority = api.Priority(e.class)
	if e.patch != "" && !json.Valid([]byte(e.patch)) {
		return q, badField("payload_patch", "The change of the payload is no JSON.")
	}
	q.PayloadPatch = json.RawMessage(e.patch)
	return q, nil
}

// lookAtChanges is the button of a form that shows what its edits would change.
const lookAtChanges = "Show what changes"

// rerunJob runs an ended job again.
func rerunJob(r *request) (deed, error) {
	id, e := r.FormValue("job"), editsOf(r, api.RerunFromFailed)
	job, err := call[api.Job](r.api.GetJob(r.Context(), id, nil))
	var steps []string
	if err == nil { // Otherwise the user may not read it, and types the name of the step.
		steps = []string{""}
		for i := range job.Steps {
			steps = append(steps, job.Steps[i].StepID)
		}
	}
	fields, args := e.fields(steps), append([]string{id, "--newest"}, e.args()...)
	var resolved []api.ResolvedStep
	if err == nil && r.May(api.GrantRoleAdmin, job.TenantID) {
		for i := range job.Steps[:max(len(job.Steps)-1, 0)] { // The output of the last one would leave nothing to run.
			step := job.Steps[i].StepID
			uri := strings.TrimSpace(r.FormValue("resolve:" + step))
			output := field{
				Name: "resolve:" + step, Flag: "resolve", Prefix: step + "=", Label: "Output of " + step, Value: uri, Folded: true,
				Hint: "The URI of what a person made: the rerun takes it, and goes on after the step.",
			}
			if uri != "" {
				output.At = fmt.Sprintf("/resolve/%d", len(resolved))
				resolved = append(resolved, api.ResolvedStep{StepID: step, OutputRef: api.RefTo(uri)})
				args = append(args, "--resolve", step+"="+uri)
			}
			fields = append(fields, output)
		}
	}
	request := func(reason string) (api.RerunRequest, error) {
		q, err := e.request()
		q.Newest, q.Resolve, q.Reason = true, resolved, reason
		return q, err
	}
	return deed{
		Title: "Rerun job " + diagnosis.ShortID(id) + "?", Button: "Rerun the job", Look: lookAtChanges,
		Text: "This creates a new job with the same steps. The old job stays unchanged, and links to the new one. " +
			"The rerun writes to the same output.",
		Command: diagnosis.Command("jobs rerun", args...),
		Fields:  fields,
		look: func(ctx context.Context, d *deed) error {
			q, err := request("")
			if err != nil {
				return err
			}
			q.DryRun = true
			plan, err := call[api.RerunPreview](r.api.RerunJob(ctx, id, q))
			if err == nil {
				d.Plan = &plan
			}
			return err
		},
		do: func(ctx context.Context, reason string) (string, error) {
			q, err := request(reason)
			if err != nil {
				return "", err
			}
			made, err := call[api.CommandAccepted](r.api.RerunJob(ctx, id, q))
			corrected := len(resolved) > 0 || !slices.Equal(e.args(), diagnosis.Flag("from", e.from))
			if err == nil && made.Replayed && corrected {
				err = badInput("No other rerun was made: job " + made.JobID + " exists already, with the changes that it was made with.")
			}
			return link("jobs/" + made.JobID), err
		},
	}, nil
}

// beforeRepeat is how long before the form is opened the jobs were accepted that a repeat of jobs
// that succeeded selects: clocks of servers differ.
const beforeRepeat = time.Minute

// retryJobs reruns many ended jobs: those that are named, or that ended in a state, by default those
// that failed.
func retryJobs(r *request) (deed, error) {
	chosen, err := selectionOf(r)
	if err != nil {
		return deed{}, err
	}
	state, from, which := api.RetryRequestState(r.FormValue("state")), api.RerunFromFailed, "the failed jobs"
	switch state {
	case api.RetryRequestStateSucceeded:
		from, which = api.RerunFromStart, "the jobs that succeeded"
		if len(chosen.JobIDs) == 0 && chosen.CreatedBefore.IsZero() { // Else it would select the reruns that it makes.
			chosen.CreatedBefore = api.NewTime(r.now.Add(-beforeRepeat).Truncate(time.Second))
			r.Form.Set("created_before", stamp(chosen.CreatedBefore))
		}
	case api.RetryRequestStateCancelled:
		which = "the cancelled jobs"
	case api.RetryRequestStateFailedFinal:
		state = "" // The API's default.
	}
	e, rate, after := editsOf(r, from), strings.TrimSpace(r.FormValue("rate")), r.FormValue("after")
	chosen.State = "" // It alone does not say which jobs.
	would := deed{
		Title: "Rerun " + which + "?", Button: "Rerun", Look: lookAtChanges,
		Text: "Each job is run again as a new job. A job that was already rerun is left out, and so is one that cannot be " +
			"rerun like this.",
		Fields: append(e.fields(nil), field{
			Name: "rate", Flag: "rate", Label: "Jobs per second", Value: rate, Hint: "At most so many are started. Empty means 20.",
		}),
	}
	if len(chosen.JobIDs) > 0 {
		state, would.Title = "", "Rerun these jobs?"
	}
	would.Command = diagnosis.Command("retry", slices.Concat(chosen.args(), diagnosis.Flag("state", string(state)),
		diagnosis.Flag("after", after), e.args(), diagnosis.Flag("rate", rate))...)
	if !chosen.CreatedBefore.IsZero() {
		would.Text += " It is for jobs accepted before " + utc(chosen.CreatedBefore) + "."
	}
	if after != "" {
		would.Text += " It goes on with the jobs that follow those of operation " + diagnosis.ShortID(after) + "."
	}
	return bulk(r, would, func(ctx context.Context, key *string, dryRun bool, limit int32, reason string) (*http.Response, error) {
		q, err := e.request()
		if err != nil {
			return nil, err
		}
		perSecond, err := strconv.ParseFloat(cmp.Or(rate, "0"), 64)
		if err != nil {
			return nil, badField("rate", "Jobs per second is a number, such as 20.")
		}
		jobs, limit := chosen.first(limit)
		return r.api.CreateRetry(ctx, &api.CreateRetryParams{IdempotencyKey: key}, api.RetryRequest{
			JobIDs: jobs, All: chosen.empty(), DryRun: dryRun, Limit: limit, Reason: reason, State: state, After: optional(after),
			From: q.From, FromStep: q.FromStep, PayloadPatch: q.PayloadPatch, Protocol: q.Protocol, Callbacks: q.Callbacks,
			Priority:      q.Priority,
			RatePerSecond: perSecond,
			TenantID:      optional(chosen.TenantID), DocID: optional(chosen.DocID), Tags: chosen.Tags,
			RequestType: optional(chosen.RequestType), Service: optional(chosen.Service),
			StepType: optional(chosen.StepType), ErrorCode: optional(chosen.ErrorCode),
			CreatedAfter: chosen.CreatedAfter, CreatedBefore: chosen.CreatedBefore,
			EndedAfter: chosen.EndedAfter, EndedBefore: chosen.EndedBefore,
		})
	}), nil
}
