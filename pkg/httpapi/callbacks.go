package httpapi

import (
	"context"
	"net/http"

	"github.com/lucius-project/lucius/api"
)

// CallbackAck is POST /v1/callbacks/ack.
func (e *endpoints) CallbackAck(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, func(ctx context.Context, c api.AckCallback) (api.CallbackOutcome, error) {
		if err := e.guard.reported(ctx, c.TenantID, c.JobID, c.StepID); err != nil {
			return api.CallbackOutcome{}, err
		}
		return e.callbacks.Ack(ctx, c)
	})
}

// CallbackHeartbeat is POST /v1/callbacks/heartbeat.
func (e *endpoints) CallbackHeartbeat(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, func(ctx context.Context, c api.HeartbeatCallback) (api.CallbackOutcome, error) {
		if err := e.guard.reported(ctx, c.TenantID, c.JobID, c.StepID); err != nil {
			return api.CallbackOutcome{}, err
		}
		return e.callbacks.Heartbeat(ctx, c)
	})
}

// CallbackResult is POST /v1/callbacks/result.
func (e *endpoints) CallbackResult(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, func(ctx context.Context, c api.ResultCallback) (api.CallbackOutcome, error) {
		if err := e.guard.reported(ctx, c.TenantID, c.JobID, c.StepID); err != nil {
			return api.CallbackOutcome{}, err
		}
		return e.callbacks.Result(ctx, c)
	})
}
