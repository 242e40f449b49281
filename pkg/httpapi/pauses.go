package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/problem"
)

// ListPauses is GET /v1/admin/pauses. Pauses of other tenants are left out.
func (e *endpoints) ListPauses(w http.ResponseWriter, r *http.Request) {
	all, err := e.Pauses.List(r.Context())
	found := api.PauseList{Pauses: []api.Pause{}}
	for i := range all {
		if e.guard.allows(r.Context(), all[i].TenantID) {
			found.Pauses = append(found.Pauses, pauseOf(&all[i]))
		}
	}
	e.respond.answer(w, r, http.StatusOK, found, ledger.Problem(err))
}

// CreatePause is POST /v1/admin/pauses.
func (e *endpoints) CreatePause(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict, func(ctx context.Context, request api.PauseRequest) (api.Pause, error) {
		if err := e.guard.authorizeTenant(ctx, request.TenantID); err != nil {
			return api.Pause{}, err
		}
		scope := pauses.Scope{TenantID: request.TenantID, ProtocolID: request.ProtocolID, Lane: laneOf(request.Lane)}
		pause, err := e.Pauses.Create(ctx, scope, request.Reason, string(api.ActorOperator))
		return e.pauseChanged(ctx, &pause, request.Reason, err)
	})
}

// ResumePause is POST /v1/admin/pauses/{pauseId}:resume.
func (e *endpoints) ResumePause(w http.ResponseWriter, r *http.Request, pauseID api.PauseID) {
	serve(e, w, r, e.bodies.optional, func(ctx context.Context, request api.ResumeRequest) (api.Pause, error) {
		scope, err := pauses.ParseScope(pauseID)
		if err != nil {
			return api.Pause{}, &problem.Error{Code: problem.NotFound, Detail: "There is no such pause.", Err: err}
		}
		ramp := pauses.DefaultRamp
		if request.RampSeconds != nil {
			ramp = seconds(*request.RampSeconds)
		}
		pause, err := e.Pauses.Resume(ctx, scope, ramp)
		return e.pauseChanged(ctx, &pause, request.Reason, err)
	})
}

// pauseChanged applies a change to this process's gate immediately, and logs it.
// Other processes see it within a second.
func (e *endpoints) pauseChanged(ctx context.Context, pause *pauses.Pause, reason string, err error) (api.Pause, error) {
	if err != nil {
		return api.Pause{}, ledger.Problem(err)
	}
	state := requestStateOf(ctx)
	state.object = pause.ID()
	e.Gate.Apply(*pause)
	e.log.InfoContext(ctx, "dispatch changed", "pause_id", pause.ID(), "state", string(pause.State), "reason", reason,
		"request_id", state.id)
	return pauseOf(pause), nil
}

// pauseOf encodes a pause.
func pauseOf(p *pauses.Pause) api.Pause {
	out := api.Pause{
		PauseID: p.ID(), State: api.PauseState(p.State), TenantID: p.TenantID, ProtocolID: p.ProtocolID,
		Reason: p.Reason, Actor: p.Actor, CreatedAt: api.NewTime(p.CreatedAt), ResumedAt: api.NewTime(p.ResumedAt),
	}
	if p.Lane != nil {
		lane := int32(*p.Lane)
		out.Lane = &lane
	}
	return out
}
