package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// ReleaseLine is POST /v1/lines/{lineId}:release.
func (e *endpoints) ReleaseLine(w http.ResponseWriter, r *http.Request, lineID api.LineID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.ReleaseRequest) (any, error) {
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
		line.State = api.LineStateBlocked
	}
	if v.First != nil {
		job := v.First.Job
		line.Head = api.LineHead{JobID: job.ID, State: api.JobState(job.State), ErrorCode: job.ErrorCode}
	}
	return line
}
