package serving

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// callbacksPort serves the callbacks to HTTP.
type callbacksPort struct{ service *callbacks.Service }

func (a callbacksPort) Ack(ctx context.Context, c api.AckCallback) (api.CallbackOutcome, error) {
	return handled(a.service.Ack(ctx, identity(ctx, c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID)))
}

func (a callbacksPort) Heartbeat(ctx context.Context, c api.HeartbeatCallback) (api.CallbackOutcome, error) {
	return handled(a.service.Heartbeat(ctx, identity(ctx, c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID)))
}

func (a callbacksPort) Result(ctx context.Context, c api.ResultCallback) (api.CallbackOutcome, error) {
	id := identity(ctx, c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID)
	return handled(a.service.Result(ctx, id, callbacks.Report{
		Status: statemachine.ResultStatus(c.Status), ErrorCode: c.Error.Code, ErrorMessage: c.Error.Message,
		OutputRef: c.OutputRef, ResultRef: c.ResultRef, RetryAfter: seconds(c.RetryAfterSeconds),
	}))
}

func identity(ctx context.Context, jobID, stepID, tenantID string, attemptNo int32, leaseID string) callbacks.Identity {
	return callbacks.Identity{
		JobID: jobID, StepID: stepID, TenantID: tenantID,
		Pair:  statemachine.Pair{AttemptNo: int(attemptNo), LeaseID: leaseID},
		Actor: string(api.ActorPlatform), RequestID: httpapi.RequestID(ctx),
	}
}

func handled(answer callbacks.Answer, err error) (api.CallbackOutcome, error) {
	if err != nil {
		return api.CallbackOutcome{}, err
	}
	return api.CallbackOutcome{
		Outcome: api.Outcome(answer.Outcome.String()), JobState: api.JobState(answer.JobState),
		StepState: api.StepState(answer.StepState), LeaseExpiresAt: api.NewTime(answer.LeaseExpiresAt),
		CancelRequested: answer.CancelRequested,
	}, nil
}

// seconds is a number of seconds from the wire.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
