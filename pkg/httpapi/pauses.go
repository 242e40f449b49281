package httpapi

import (
	"context"
	"net/http"
	"slices"

	"github.com/lucius-project/lucius/api"
)

// ListPauses is GET /v1/admin/pauses.
func (e *endpoints) ListPauses(w http.ResponseWriter, r *http.Request) {
	found, err := e.pauses.List(r.Context())
	found.Pauses = slices.DeleteFunc(listed(found.Pauses), func(pause api.Pause) bool {
		return !e.guard.allows(r.Context(), pause.TenantID)
	})
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// CreatePause is POST /v1/admin/pauses.
func (e *endpoints) CreatePause(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict, func(ctx context.Context, request api.PauseRequest) (api.Pause, error) {
		if err := e.guard.named(ctx, request.TenantID); err != nil {
			return api.Pause{}, err
		}
		pause, err := e.pauses.Create(ctx, request)
		exchangeOf(ctx).object = pause.PauseID
		return pause, err
	})
}

// ResumePause is POST /v1/admin/pauses/{pauseId}:resume.
func (e *endpoints) ResumePause(w http.ResponseWriter, r *http.Request, pauseID api.PauseID) {
	serve(e, w, r, e.bodies.optional, on(pauseID, e.pauses.Resume))
}
