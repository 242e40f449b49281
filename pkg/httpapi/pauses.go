package httpapi

import (
	"net/http"

	"github.com/lucius-project/lucius/api"
)

// ListPauses is GET /v1/admin/pauses.
func (e *endpoints) ListPauses(w http.ResponseWriter, r *http.Request) {
	found, err := e.pauses.List(r.Context())
	found.Pauses = listed(found.Pauses)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// CreatePause is POST /v1/admin/pauses.
func (e *endpoints) CreatePause(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.strict, e.pauses.Create)
}

// ResumePause is POST /v1/admin/pauses/{pauseId}:resume.
func (e *endpoints) ResumePause(w http.ResponseWriter, r *http.Request, pauseID api.PauseID) {
	serve(e, w, r, e.bodies.optional, on(pauseID, e.pauses.Resume))
}
