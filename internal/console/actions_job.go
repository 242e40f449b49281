package console

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// jobControl returns an action that cancels, pauses or resumes one job.
func jobControl(verb, text string, danger bool,
	control func(*api.Client, context.Context, api.JobID, api.ControlRequest, ...api.RequestEditorFn) (*http.Response, error),
) *action {
	name := titled(verb)
	return &action{prepare: func(r *request) (deed, error) {
		id := r.FormValue("job")
		return deed{
			Title: name + " job " + diagnosis.ShortID(id) + "?", Button: name + " the job", Danger: danger, Text: text,
			Command: diagnosis.Command("jobs "+verb, id),
			do: func(ctx context.Context, reason string) (string, error) {
				_, err := call[api.Job](control(r.api, ctx, id, api.ControlRequest{Reason: reason}))
				return link("jobs/" + id), err
			},
		}, nil
	}, role: api.GrantRoleSubmit}
}

// rerunJob runs an ended job again.
func rerunJob(r *request) (deed, error) {
	id, from := r.FormValue("job"), cmp.Or(r.FormValue("from"), string(api.RerunFromFailed))
	step, patch, resolve := r.FormValue("from_step"), r.FormValue("payload_patch"), r.FormValue("resolve")
	protocol := cmp.Or(r.FormValue("protocol"), string(api.RerunProtocolKept))
	job, err := call[api.Job](r.api.GetJob(r.Context(), id, nil))
	var steps []string
	if err == nil { // Otherwise the user may not read it, and types the name of the step.
		steps = []string{""}
		for i := range job.Steps {
			steps = append(steps, job.Steps[i].StepID)
		}
	}
	fields := []field{
		rerunFrom(from),
		{
			Name: "from_step", Flag: "from-step", Label: "Or from the step", Value: step, Options: steps,
			Hint: "Each step before it must have succeeded, or be done by hand.",
		},
		{
			Name: "payload_patch", Flag: "patch", Label: "Change of the payload", Value: patch,
			Hint: `JSON that is merged into the payload, such as {"language": "de"}; null removes a member.`,
		},
		{
			Name: "protocol", Flag: "protocol", Label: "Protocol", Value: protocol,
			Options: []string{string(api.RerunProtocolKept), string(api.RerunProtocolCurrent)},
			Hint:    "The steps and policies that the job was accepted with, or those of its protocol now.",
		},
	}
	if r.May(api.GrantRoleAdmin, job.TenantID) {
		fields = append(fields, field{
			Name: "resolve", Flag: "resolve", Label: "A step that was done by hand", Value: resolve,
			Hint: "STEP=URI of its output: the rerun takes this output, and goes on after the step.",
		})
	}
	args := []string{id, "--newest"}
	if step == "" {
		args = append(args, "--from", from)
	}
	args = slices.Concat(args, diagnosis.Flag("from-step", step), diagnosis.Flag("patch", patch), diagnosis.Flag("resolve", resolve))
	if protocol != string(api.RerunProtocolKept) {
		args = append(args, "--protocol", protocol)
	}
	return deed{
		Title: "Rerun job " + diagnosis.ShortID(id) + "?", Button: "Rerun the job",
		Text: "This creates a new job with the same steps. The old job stays unchanged, and links to the new one. " +
			"The rerun writes to the same output.",
		Command: diagnosis.Command("jobs rerun", args...),
		Fields:  fields,
		do: func(ctx context.Context, reason string) (string, error) {
			request := api.RerunRequest{
				From: api.RerunFrom(from), FromStep: optional(step), Newest: true, Reason: reason,
			}
			if protocol != string(api.RerunProtocolKept) {
				request.Protocol = api.RerunProtocol(protocol)
			}
			if step != "" {
				request.From = ""
			}
			if patch != "" {
				if !json.Valid([]byte(patch)) {
					return "", badInput("The change of the payload is no JSON.")
				}
				request.PayloadPatch = json.RawMessage(patch)
			}
			if resolved, ok := api.ParseResolved(resolve); ok {
				request.Resolve = []api.ResolvedStep{resolved}
			} else if resolve != "" {
				return "", badInput("A step that was done by hand is given as STEP=URI.")
			}
			made, err := call[api.CommandAccepted](r.api.RerunJob(ctx, id, request))
			return link("jobs/" + made.JobID), err
		},
	}, nil
}

// rerunFrom is the field for the step at which reruns start.
func rerunFrom(value string) field {
	return field{
		Name: "from", Flag: "from", Label: "From", Value: value, Options: []string{string(api.RerunFromFailed), string(api.RerunFromStart)},
		Hint: "The failed step (keeps the results of earlier steps) or the first step.",
	}
}

// titled returns the verb with a capital letter.
func titled(verb string) string { return strings.ToUpper(verb[:1]) + verb[1:] }

// steer starts an operation on many live jobs through the API, or with DryRun previews it.
type steer func(ctx context.Context, c *api.Client, key *api.IdempotencyKey, request *api.BulkRequest) (*http.Response, error)

// jobsControl returns an action that cancels, pauses or resumes the jobs that the request
// names or selects.
func jobsControl(verb, text string, danger bool, begin steer) *action {
	name := titled(verb)
	return &action{prepare: func(r *request) (deed, error) {
		chosen, err := selectionOf(r)
		if err != nil {
			return deed{}, err
		}
		would := deed{
			Title: name + " these jobs?", Button: name, Danger: danger, NeedsReason: danger, Text: text,
			Command: diagnosis.Command("jobs "+verb, chosen.args()...),
		}
		return bulk(r, would, func(ctx context.Context, key *string, dryRun bool, limit int32, reason string) (*http.Response, error) {
			if dryRun {
				reason = "preview" // The API asks for a reason to cancel, even to count.
			}
			jobs, limit := chosen.first(limit)
			return begin(ctx, r.api, key, &api.BulkRequest{
				JobIDs: jobs, All: chosen.empty(), DryRun: dryRun, Limit: limit, Reason: reason,
				TenantID: optional(chosen.TenantID), DocID: optional(chosen.DocID), Tags: chosen.Tags,
				RequestType: optional(chosen.RequestType), Service: optional(chosen.Service),
				StepType: optional(chosen.StepType), ErrorCode: optional(chosen.ErrorCode), State: optional(chosen.State),
				CreatedAfter: chosen.CreatedAfter, CreatedBefore: chosen.CreatedBefore,
			})
		})
	}, many: true}
}

func cancelMany(ctx context.Context, c *api.Client, key *api.IdempotencyKey, request *api.BulkRequest) (*http.Response, error) {
	return c.CreateCancellation(ctx, &api.CreateCancellationParams{IdempotencyKey: key}, *request)
}

func pauseMany(ctx context.Context, c *api.Client, key *api.IdempotencyKey, request *api.BulkRequest) (*http.Response, error) {
	return c.CreatePausing(ctx, &api.CreatePausingParams{IdempotencyKey: key}, *request)
}

func resumeMany(ctx context.Context, c *api.Client, key *api.IdempotencyKey, request *api.BulkRequest) (*http.Response, error) {
	return c.CreateResumption(ctx, &api.CreateResumptionParams{IdempotencyKey: key}, *request)
}
