package serving

import (
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// adminPort serves the operators' requests to HTTP.
type adminPort struct {
	operator *outbox.Operator
	checker  *liveness.Checker
}

func (a adminPort) RetryOutbox(ctx context.Context, r api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
	report, err := a.operator.Retry(ctx, outbox.Filter{
		OutboxIDs: r.OutboxIDs, TenantID: r.TenantID, JobID: r.JobID, OlderThan: seconds(r.OlderThanSeconds),
		Limit: int(r.Limit), Lane: laneOf(r.Lane), Actor: string(api.ActorOperator), RequestID: httpapi.RequestID(ctx),
	})
	if err != nil {
		return api.OutboxRetryResult{}, err
	}
	out := api.OutboxRetryResult{Matched: report.Matched, Retried: report.Retried, Skipped: []api.OutboxSkip{}}
	for _, skip := range report.Skipped {
		out.Skipped = append(out.Skipped, api.OutboxSkip{OutboxID: skip.OutboxID, Reason: skip.Reason})
	}
	return out, nil
}

func (a adminPort) Outbox(ctx context.Context, params api.ListOutboxParams, page httpapi.Page) (api.OutboxPage, error) {
	after, err := placeOf(page.Token)
	if err != nil {
		return api.OutboxPage{}, err
	}
	filter := outbox.ListFilter{
		State: statemachine.OutboxState(textOf(params.State)), TenantID: textOf(params.TenantID), Lane: laneOf(params.Lane),
	}
	rows, next, err := a.operator.List(ctx, filter, page.Limit, after)
	if err != nil {
		return api.OutboxPage{}, err
	}
	out := api.OutboxPage{NextPageToken: pageToken(next)}
	for i := range rows {
		out.Outbox = append(out.Outbox, outboxRowOf(&rows[i]))
	}
	return out, nil
}

// outboxRowOf is an outbox row on the wire.
func outboxRowOf(row *outbox.Row) api.OutboxRow {
	out := api.OutboxRow{
		OutboxID: row.ID, JobID: row.JobID, StepID: row.StepID, TenantID: row.TenantID,
		State: api.OutboxState(row.State), AttemptNo: row.AttemptNo, Topic: row.Routing.Topic, Lane: row.Routing.Lane,
		LastErrorMessage: row.LastError, CreatedAt: api.NewTime(row.CreatedAt), UpdatedAt: api.NewTime(row.UpdatedAt),
	}
	if row.LastError != "" {
		out.LastErrorCode = "rejected"
	}
	if row.State == statemachine.OutboxPending {
		out.NextAttemptAt = api.NewTime(row.DueAt)
	}
	return out
}

func (a adminPort) Stuck(context.Context) (api.StuckList, error) {
	report := a.checker.Report()
	out := api.StuckList{
		Checked: report.Checked, Repaired: report.Repaired, RoundEndedAt: api.NewTime(report.RoundEnded),
		OldestPendingSeconds: report.OldestPending.Seconds(),
	}
	for _, stuck := range report.Stuck {
		out.Stuck = append(out.Stuck, api.StuckJob{
			JobID: stuck.JobID, State: api.JobState(stuck.State), Reason: stuck.Reason, FoundAt: api.NewTime(stuck.FoundAt),
		})
	}
	return out, nil
}

// laneOf is a lane from the wire, nil where there is none.
func laneOf(lane *int32) *int {
	if lane == nil {
		return nil
	}
	value := int(*lane)
	return &value
}

// textOf is a parameter from the wire, empty where there is none.
func textOf[Text ~string](text *Text) string {
	if text == nil {
		return ""
	}
	return string(*text)
}
