package httpapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/lucius-project/lucius/api"
)

// SubmitCommand is POST /v1/commands.
func (e *endpoints) SubmitCommand(w http.ResponseWriter, r *http.Request, params api.SubmitCommandParams) {
	e.submit(w, r, params.IdempotencyKey, params.Traceparent)
}

// Orchestrate is POST /v1/orchestrate, the same under another name.
func (e *endpoints) Orchestrate(w http.ResponseWriter, r *http.Request, params api.OrchestrateParams) {
	e.submit(w, r, params.IdempotencyKey, params.Traceparent)
}

// submit hands the body over as it is: its canonical form is the use case's.
func (e *endpoints) submit(w http.ResponseWriter, r *http.Request, key *api.IdempotencyKey, trace *api.Traceparent) {
	body, err := e.bodies.raw(w, r)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	submission := Submission{Body: body, Admit: e.admitting(r.Context())}
	if key != nil {
		submission.IdempotencyKey = *key
	}
	if trace != nil {
		submission.Traceparent = *trace
	}
	accepted, err := e.commands.Submit(r.Context(), submission)
	e.answerAccepted(w, r, accepted, err)
}

// admitting is the Admit of a submission.
func (e *endpoints) admitting(ctx context.Context) func(tenantID string) error {
	return func(tenantID string) error { return e.guard.named(ctx, tenantID) }
}

// answerAccepted answers 202 with the job's place.
func (e *endpoints) answerAccepted(w http.ResponseWriter, r *http.Request, accepted api.CommandAccepted, err error) {
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/jobs/"+url.PathEscape(accepted.JobID))
	e.respond.json(w, r, http.StatusAccepted, accepted)
}
