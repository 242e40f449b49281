package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
)

// ListLines is GET /v1/lines.
func (e *endpoints) ListLines(w http.ResponseWriter, r *http.Request, params api.ListLinesParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		state := orZero(params.State)
		if state != "" && !state.Valid() {
			return nil, invalid("parameter state must be blocked or moving", nil)
		}
		found, next, err := e.Jobs.Lines(ctx, search.LineFilter{
			TenantID: orZero(params.TenantID), OrderKey: orZero(params.OrderKey),
			Blocked: state == api.LineStateBlocked, Moving: state == api.LineStateMoving,
		}, limit, at.after)
		page := api.LinePage{Lines: make([]api.Line, len(found)), NextPageToken: at.token(next)}
		for i := range found {
			page.Lines[i] = lineOf(&found[i])
		}
		return page, err
	})
}

// GetLine is GET /v1/lines/{lineId}.
func (e *endpoints) GetLine(w http.ResponseWriter, r *http.Request, lineID api.LineID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		line, err := e.Ledger.Line(ctx, lineID)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		return lineOf(line), nil
	})
}

// ListLineJobs is GET /v1/lines/{lineId}/jobs.
func (e *endpoints) ListLineJobs(w http.ResponseWriter, r *http.Request, lineID api.LineID, params api.ListLineJobsParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		from, err := at.rev()
		if err != nil {
			return nil, err
		}
		found, next, err := e.jobsFor(ctx).LineJobs(ctx, lineID, from, limit)
		page := api.LineJobPage{Jobs: make([]api.Job, len(found)), NextPageToken: at.revToken(next)}
		for i := range found {
			page.Jobs[i] = JobOf(&found[i])
		}
		return page, err
	})
}

// CancelLine is POST /v1/lines/{lineId}:cancel.
func (e *endpoints) CancelLine(w http.ResponseWriter, r *http.Request, lineID api.LineID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.LineCancelRequest) (any, error) {
		cancelled, more, err := e.Jobs.CancelLine(ctx, ledger.CancelWaiting{
			LineID: lineID, Reason: request.Reason, Actor: string(api.ActorClient), RequestID: requestStateOf(ctx).id,
		})
		return api.LineCancellation{LineID: lineID, Cancelled: cancelled, More: more}, err
	})
}

// ReleaseLine is POST /v1/lines/{lineId}:release.
func (e *endpoints) ReleaseLine(w http.ResponseWriter, r *http.Request, lineID api.LineID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		var request api.ReleaseRequest
		err := e.decode(w, r, strict, &request)
		if requestStateOf(ctx).unproven {
			err = e.guard.authorizeReleased(ctx, lineID, request.JobID, err)
		}
		if err != nil {
			return nil, err
		}
		line, err := e.Jobs.Release(ctx, ledger.Release{
			LineID: lineID, JobID: request.JobID, Reason: request.Reason,
			Actor: string(api.ActorClient), RequestID: requestStateOf(ctx).id,
		})
		if err != nil {
			return nil, err
		}
		return lineOf(line), nil
	})
}

// lineOf encodes a line.
func lineOf(v *ledger.LineView) api.Line {
	line := api.Line{
		LineID: v.ID, TenantID: v.TenantID, OrderKey: v.Key, State: api.LineStateMoving, Waiting: v.Waiting(),
		Since: api.NewTime(v.Since), AsOf: api.NewTime(time.Now()),
	}
	if v.Blocked() {
		line.State, line.Since = api.LineStateBlocked, api.NewTime(v.BlockedSince())
	}
	if v.First != nil {
		job := v.First.Job
		line.Head = api.LineHead{JobID: job.ID, State: api.JobState(job.State), ErrorCode: job.ErrorCode}
	}
	return line
}
