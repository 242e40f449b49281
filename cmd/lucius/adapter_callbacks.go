package main

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// callbacksAPI serves the callbacks to HTTP.
type callbacksAPI struct{ service *callbacks.Service }

func (a callbacksAPI) Ack(ctx context.Context, c api.AckCallback) (api.CallbackOutcome, error) {
	return handled(a.service.Ack(ctx, identity(ctx, c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID)))
}

func (a callbacksAPI) Heartbeat(ctx context.Context, c api.HeartbeatCallback) (api.CallbackOutcome, error) {
	return handled(a.service.Heartbeat(ctx, identity(ctx, c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID)))
}

func (a callbacksAPI) Result(ctx context.Context, c api.ResultCallback) (api.CallbackOutcome, error) {
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

// adminAPI serves the operators' requests to HTTP.
type adminAPI struct{ operator *outbox.Operator }

func (a adminAPI) RetryOutbox(ctx context.Context, r api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
	filter := outbox.Filter{
		OutboxIDs: r.OutboxIDs, TenantID: r.TenantID, JobID: r.JobID, OlderThan: seconds(r.OlderThanSeconds),
		Limit: int(r.Limit), Actor: string(api.ActorOperator), RequestID: httpapi.RequestID(ctx),
	}
	if r.Lane != nil {
		lane := int(*r.Lane)
		filter.Lane = &lane
	}
	report, err := a.operator.Retry(ctx, filter)
	if err != nil {
		return api.OutboxRetryResult{}, err
	}
	out := api.OutboxRetryResult{Matched: report.Matched, Retried: report.Retried, Skipped: []api.OutboxSkip{}}
	for _, skip := range report.Skipped {
		out.Skipped = append(out.Skipped, api.OutboxSkip{OutboxID: skip.OutboxID, Reason: skip.Reason})
	}
	return out, nil
}
