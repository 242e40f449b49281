package console

import (
	"cmp"
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// prioritizeJob changes the class of a job that has not ended.
func prioritizeJob(r *request) (deed, error) {
	id, class := r.FormValue("job"), cmp.Or(r.FormValue("priority"), string(api.PriorityBulk))
	return deed{
		Title: "Change the priority of job " + diagnosis.ShortID(id) + "?", Button: "Change the priority",
		Text: "Workers get bulk work after all other work of the same service and step type, but for a small share. A directive " +
			"that waits moves at once; otherwise the priority counts from the next one on.",
		Fields: []field{{
			Name: "priority", Label: "Priority", Value: class, Options: []string{string(api.PriorityNormal), string(api.PriorityBulk)},
		}},
		Command: diagnosis.Command("jobs prioritize", id, class),
		do: func(ctx context.Context, reason string) (string, error) {
			_, err := call[api.Job](r.api.PrioritizeJob(ctx, id, api.PrioritizeRequest{Priority: api.Priority(class), Reason: reason}))
			return link("jobs/" + id), err
		},
	}, nil
}

// prioritizing returns the change of a job's class to the other one, nothing if it has ended.
func prioritizing(job *api.Job) []diagnosis.Action {
	if !job.CompletedAt.IsZero() || job.State == api.JobStateCancelling {
		return nil
	}
	to := api.PriorityBulk
	if job.Priority == to {
		to = api.PriorityNormal
	}
	return []diagnosis.Action{{
		Text: "Make it " + string(to) + "…", Page: "do/job-prioritize", Query: []any{"job", job.JobID, "priority", to}, Form: true,
	}}
}
