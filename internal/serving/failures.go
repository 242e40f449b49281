package serving

import (
	"context"
	"log/slog"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// failuresPort serves the failed jobs, and what reruns them, to HTTP.
type failuresPort struct {
	service *failures.Service
	log     *slog.Logger
}

func (a failuresPort) Groups(ctx context.Context, params api.ListFailuresParams) (api.FailureList, error) {
	report, err := a.service.Groups(ctx, failures.Filter{
		TenantID: textOf(params.TenantID), RequestType: textOf(params.RequestType),
		CreatedAfter: timeOf(params.CreatedAfter), CreatedBefore: timeOf(params.CreatedBefore),
	})
	if err != nil {
		return api.FailureList{}, err
	}
	out := api.FailureList{Truncated: report.Truncated}
	for i := range report.Groups {
		group := &report.Groups[i]
		out.Groups = append(out.Groups, api.FailureGroup{
			StepType: group.StepType, ErrorCode: group.ErrorCode, Count: group.Count,
			FirstAt: api.NewTime(group.FirstAt), LastAt: api.NewTime(group.LastAt),
			SampleJobIds: append([]string{}, group.SampleJobIDs...),
		})
	}
	return out, nil
}

func (a failuresPort) CreateRetry(ctx context.Context, key string, r api.RetryRequest) (api.Retry, error) {
	op, err := a.service.Create(ctx, key, failures.Request{
		JobIDs: r.JobIDs,
		Filter: failures.Filter{
			TenantID: r.TenantID, RequestType: r.RequestType, StepType: r.StepType, ErrorCode: r.ErrorCode,
			CreatedAfter: r.CreatedAfter.Time, CreatedBefore: r.CreatedBefore.Time,
		},
		From: ledger.RerunFrom(r.From), Limit: int(r.Limit), RatePerSecond: r.RatePerSecond,
		Reason: r.Reason, Actor: string(api.ActorOperator),
	})
	if err != nil {
		return api.Retry{}, err
	}
	a.log.InfoContext(ctx, "retry operation begun", "retry_id", op.ID, "matched", op.Matched, "reason", r.Reason,
		"request_id", httpapi.RequestID(ctx))
	return retryOf(&op), nil
}

func (a failuresPort) Retry(ctx context.Context, retryID string, page httpapi.Page) (api.Retry, error) {
	after, err := placeOf(page.Token)
	if err != nil {
		return api.Retry{}, err
	}
	found, err := a.service.Get(ctx, retryID, page.Limit, after)
	if err != nil {
		return api.Retry{}, err
	}
	out := retryOf(&found.Operation)
	out.NextPageToken = pageToken(found.Next)
	for _, item := range found.Items {
		out.Items = append(out.Items, api.RetryItem{
			JobID: item.JobID, Outcome: api.RetryItemOutcome(item.Outcome), NewJobID: item.NewJobID, Detail: item.Detail,
		})
	}
	return out, nil
}

func (a failuresPort) CancelRetry(ctx context.Context, retryID string, r api.ControlRequest) (api.Retry, error) {
	op, err := a.service.Cancel(ctx, retryID)
	if err != nil {
		return api.Retry{}, err
	}
	a.log.InfoContext(ctx, "retry operation cancelled", "retry_id", op.ID, "reason", r.Reason,
		"request_id", httpapi.RequestID(ctx))
	return retryOf(&op), nil
}

// retryOf is an operation on the wire, without its items.
func retryOf(op *failures.Operation) api.Retry {
	return api.Retry{
		RetryID: op.ID, State: api.RetryState(op.State), From: api.RerunFrom(op.From), Matched: op.Matched,
		Done: op.Done(), Rerun: op.Rerun, Skipped: op.Skipped, Failed: op.Failed, RatePerSecond: op.RatePerSecond,
		Reason: op.Reason, CreatedAt: api.NewTime(op.CreatedAt), UpdatedAt: api.NewTime(op.UpdatedAt),
	}
}
