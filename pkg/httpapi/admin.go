package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// RetryOutbox is POST /v1/admin/outbox/retry.
func (e *endpoints) RetryOutbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict, func(ctx context.Context, request api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
		state := requestStateOf(ctx)
		state.object = rowsOf(&request)
		if err := e.guard.authorizeFilter(ctx, request.TenantID, request.JobID); err != nil {
			return api.OutboxRetryResult{}, err
		}
		report, err := e.Operator.Retry(ctx, outbox.Filter{
			OutboxIDs: request.OutboxIDs, TenantID: request.TenantID, JobID: request.JobID,
			OlderThan: seconds(request.OlderThanSeconds), Limit: int(request.Limit), Lane: laneOf(request.Lane),
			Actor: string(api.ActorOperator), RequestID: state.id,
		})
		result := api.OutboxRetryResult{
			Matched: report.Matched, Retried: report.Retried, Skipped: make([]api.OutboxSkip, len(report.Skipped)),
		}
		for i, skip := range report.Skipped {
			result.Skipped[i] = api.OutboxSkip{OutboxID: skip.OutboxID, Reason: skip.Reason}
		}
		return result, err
	})
}

// rowsOf names the rows of an operator's retry for the audit record: by the first
// ids or by the job, else empty.
func rowsOf(request *api.OutboxRetryRequest) string {
	const named = 8
	if len(request.OutboxIDs) <= named {
		return cmp.Or(request.JobID, strings.Join(request.OutboxIDs, ","))
	}
	return fmt.Sprintf("%d rows, such as %s", len(request.OutboxIDs), strings.Join(request.OutboxIDs[:named], ","))
}

// ListOutbox is GET /v1/admin/outbox.
func (e *endpoints) ListOutbox(w http.ResponseWriter, r *http.Request, params api.ListOutboxParams) {
	if params.State != nil && !params.State.Valid() {
		e.respond.problem(w, r, invalid("parameter state must be PENDING, SENT or FAILED_FINAL", nil))
		return
	}
	filter := outbox.ListFilter{
		State: statemachine.OutboxState(textOf(params.State)), TenantID: textOf(params.TenantID), Lane: laneOf(params.Lane),
	}
	pagedOf(e, w, r, params.TenantID, params.Limit, params.PageToken,
		func(ctx context.Context, limit int, after string) (api.OutboxPage, error) {
			rows, next, err := e.Operator.List(ctx, filter, limit, after)
			found := api.OutboxPage{Outbox: make([]api.OutboxRow, len(rows)), NextPageToken: pageToken(next)}
			for i := range rows {
				found.Outbox[i] = outboxRowOf(&rows[i])
			}
			return found, err
		})
}

// outboxRowOf encodes an outbox row.
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

// ListStuck is GET /v1/admin/stuck.
func (e *endpoints) ListStuck(w http.ResponseWriter, r *http.Request) {
	report := e.Reconciler.Report()
	found := api.StuckList{
		Stuck: make([]api.StuckJob, len(report.Stuck)), Checked: report.Checked, Repaired: report.Repaired,
		RoundEndedAt: api.NewTime(report.RoundEnded), OldestPendingSeconds: report.OldestPending.Seconds(),
	}
	for i, stuck := range report.Stuck {
		found.Stuck[i] = api.StuckJob{
			JobID: stuck.JobID, State: api.JobState(stuck.State), Reason: stuck.Reason, FoundAt: api.NewTime(stuck.FoundAt),
		}
	}
	e.respond.json(w, r, http.StatusOK, found)
}
