package serving

import (
	"context"
	"log/slog"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/problem"
)

// pausesPort serves the pauses to HTTP. A change shows in this process at once,
// and in others within a second.
type pausesPort struct {
	service *pauses.Service
	gate    *pauses.Gate
	log     *slog.Logger
}

func (a pausesPort) List(ctx context.Context) (api.PauseList, error) {
	found, err := a.service.List(ctx)
	if err != nil {
		return api.PauseList{}, ledger.Problem(err)
	}
	var out api.PauseList
	for i := range found {
		out.Pauses = append(out.Pauses, pauseOf(&found[i]))
	}
	return out, nil
}

func (a pausesPort) Create(ctx context.Context, r api.PauseRequest) (api.Pause, error) {
	scope := pauses.Scope{TenantID: r.TenantID, ProtocolID: r.ProtocolID, Lane: laneOf(r.Lane)}
	pause, err := a.service.Create(ctx, scope, r.Reason, string(api.ActorOperator))
	return a.changed(ctx, pause, r.Reason, err)
}

func (a pausesPort) Resume(ctx context.Context, pauseID string, r api.ResumeRequest) (api.Pause, error) {
	scope, err := pauses.ParseScope(pauseID)
	if err != nil {
		return api.Pause{}, &problem.Error{Code: problem.NotFound, Detail: "There is no such pause.", Err: err}
	}
	ramp := pauses.DefaultRamp
	if r.RampSeconds != nil {
		ramp = seconds(*r.RampSeconds)
	}
	pause, err := a.service.Resume(ctx, scope, ramp)
	return a.changed(ctx, pause, r.Reason, err)
}

// changed lets the gate see a change, and logs it.
func (a pausesPort) changed(ctx context.Context, pause pauses.Pause, reason string, err error) (api.Pause, error) {
	if err != nil {
		return api.Pause{}, ledger.Problem(err)
	}
	a.gate.Apply(pause)
	a.log.InfoContext(ctx, "dispatch changed", "pause_id", pause.ID(), "state", string(pause.State), "reason", reason,
		"request_id", httpapi.RequestID(ctx))
	return pauseOf(&pause), nil
}

// pauseOf is a pause on the wire.
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
