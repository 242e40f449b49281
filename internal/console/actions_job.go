package console

import (
	"context"
	"net/http"
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
		}), nil
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
