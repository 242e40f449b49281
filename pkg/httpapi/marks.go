package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/marks"
)

// ListMarks is GET /v1/admin/marks. Marks of other tenants are left out.
func (e *endpoints) ListMarks(w http.ResponseWriter, r *http.Request) {
	all, err := e.Marks.List(r.Context())
	slices.SortFunc(all, func(a, b marks.Mark) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.FindingID, b.FindingID))
	})
	found := api.MarkList{Marks: []api.Mark{}}
	for i := range all {
		if e.guard.allows(r.Context(), all[i].TenantID) {
			found.Marks = append(found.Marks, markOf(&all[i]))
		}
	}
	e.respond.answer(w, r, http.StatusOK, found, ledger.Problem(err))
}

// SetMark is POST /v1/admin/marks.
func (e *endpoints) SetMark(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.MarkRequest) (any, error) {
		requestStateOf(ctx).object = request.FindingID
		tenantID := orZero(request.TenantID)
		if err := e.guard.authorizeTenant(ctx, tenantID); err != nil {
			return nil, err
		}
		mark, err := e.Marks.Set(ctx, marks.Mark{
			FindingID: request.FindingID, TenantID: tenantID, State: marks.State(request.State), Note: request.Note,
			Actor: auth.CallerOf(ctx).Name(),
		}, seconds(request.ForSeconds))
		return markOf(&mark), ledger.Problem(err)
	})
}

// markOf encodes a mark.
func markOf(m *marks.Mark) api.Mark {
	return api.Mark{
		FindingID: m.FindingID, TenantID: m.TenantID, State: api.MarkState(m.State), Note: m.Note, Actor: m.Actor,
		At: api.NewTime(m.At), Until: api.NewTime(m.Until),
	}
}
