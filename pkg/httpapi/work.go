package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
)

// ClaimWork is POST /v1/work:claim.
func (e *endpoints) ClaimWork(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, func(ctx context.Context, request api.ClaimRequest) (api.ClaimedWork, error) {
		request.Max = max(request.Max, 1)
		limit := time.Duration(min(request.WaitSeconds, MaxWait.Seconds()) * float64(time.Second))
		items, err := waiting(ctx, e, limit, func(wait Wait) ([]api.WorkItem, error) {
			return e.work.Claim(ctx, request, wait)
		})
		return api.ClaimedWork{Items: listed(items)}, err
	})
}

// StartWork is POST /v1/work/{workId}:start.
func (e *endpoints) StartWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.lenient, on(workID, e.work.Start))
}

// HeartbeatWork is POST /v1/work/{workId}:heartbeat.
func (e *endpoints) HeartbeatWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.lenient, on(workID, e.work.Heartbeat))
}

// CompleteWork is POST /v1/work/{workId}:complete.
func (e *endpoints) CompleteWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.lenient, on(workID, e.work.Complete))
}

// FailWork is POST /v1/work/{workId}:fail.
func (e *endpoints) FailWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, e.bodies.lenient, on(workID, e.work.Fail))
}

// GetWork is GET /v1/work/{workId}.
func (e *endpoints) GetWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	item, err := e.work.Item(r.Context(), workID)
	e.respond.answer(w, r, http.StatusOK, item, err)
}

// ListWorkEvents is GET /v1/work/{workId}/events.
func (e *endpoints) ListWorkEvents(w http.ResponseWriter, r *http.Request, workID api.WorkID, params api.ListWorkEventsParams) {
	asked, err := page(params.Limit, params.PageToken)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	events, err := e.work.Events(r.Context(), workID, asked)
	events.Events = listed(events.Events)
	e.respond.answer(w, r, http.StatusOK, events, err)
}
