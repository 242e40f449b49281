package httpapi

import (
	"net/http"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/callbacks"
)

// CallbackAck is POST /v1/callbacks/ack.
func (e *endpoints) CallbackAck(w http.ResponseWriter, r *http.Request) {
	e.callback(w, r, new(api.AckCallback))
}

// CallbackHeartbeat is POST /v1/callbacks/heartbeat.
func (e *endpoints) CallbackHeartbeat(w http.ResponseWriter, r *http.Request) {
	e.callback(w, r, new(api.HeartbeatCallback))
}

// CallbackResult is POST /v1/callbacks/result.
func (e *endpoints) CallbackResult(w http.ResponseWriter, r *http.Request) {
	e.callback(w, r, new(api.ResultCallback))
}

// callback decodes a callback into body and applies it.
func (e *endpoints) callback(w http.ResponseWriter, r *http.Request, body api.Callback) {
	if err := e.bodies.lenient(w, r, body); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	ctx, id := r.Context(), body.Identity()
	if err := e.guard.authorizeStep(ctx, id.TenantID, id.JobID, id.StepID); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	answer, err := e.Callbacks.Apply(ctx, callbacks.Callback{
		JobID: id.JobID, StepID: id.StepID, TenantID: id.TenantID, Event: body.Event(), RequestID: requestStateOf(ctx).id,
	})
	e.respond.answer(w, r, http.StatusOK, api.CallbackOutcome{
		Outcome: api.Outcome(answer.Outcome.String()), JobState: api.JobState(answer.JobState),
		StepState: api.StepState(answer.StepState), LeaseExpiresAt: api.NewTime(answer.LeaseExpiresAt),
		CancelRequested: answer.CancelRequested,
	}, err)
}
