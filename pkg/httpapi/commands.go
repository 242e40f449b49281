package httpapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// SubmitCommand is POST /v1/commands.
func (e *endpoints) SubmitCommand(w http.ResponseWriter, r *http.Request, params api.SubmitCommandParams) {
	e.submit(w, r, commands.Headers{IdempotencyKey: textOf(params.IdempotencyKey), Traceparent: textOf(params.Traceparent)})
}

// Orchestrate is POST /v1/orchestrate, another name of POST /v1/commands.
func (e *endpoints) Orchestrate(w http.ResponseWriter, r *http.Request, params api.OrchestrateParams) {
	e.submit(w, r, commands.Headers{IdempotencyKey: textOf(params.IdempotencyKey), Traceparent: textOf(params.Traceparent)})
}

// submit passes the raw body on: the use case needs its canonical form.
func (e *endpoints) submit(w http.ResponseWriter, r *http.Request, headers commands.Headers) {
	body, err := e.bodies.raw(w, r)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	accepted, err := e.Commands.Submit(r.Context(), body, headers, e.mayName(r.Context()))
	e.answerAccepted(w, r, &accepted, err)
}

// mayName returns a function that asks the guard whether the caller may name a tenant.
func (e *endpoints) mayName(ctx context.Context) commands.Authorize {
	return func(tenantID string) error { return e.guard.authorizeTenant(ctx, tenantID) }
}

// answerAccepted answers 202 with the job and its Location.
func (e *endpoints) answerAccepted(w http.ResponseWriter, r *http.Request, accepted *ledger.Accepted, err error) {
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	job := &accepted.Job
	w.Header().Set("Location", "/v1/jobs/"+url.PathEscape(job.ID))
	e.respond.json(w, r, http.StatusAccepted, api.CommandAccepted{
		JobID: job.ID, State: api.JobState(job.State), Replayed: accepted.Replayed, CorrelationID: job.CorrelationID,
	})
}
