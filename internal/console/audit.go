package console

import (
	"github.com/lucius-project/lucius/api"
)

// auditPage shows who did what.
type auditPage struct {
	// Everywhere says that the user may see it.
	Everywhere bool
	Filter     auditFilter
	Outcomes   []api.AuditOutcome
	Trail      api.AuditTrail
	More       string
}

type auditFilter struct {
	Caller, Action, Object string
	Outcome                api.AuditOutcome
}

func auditTrail(r *request) (view, error) {
	data := auditPage{
		Everywhere: r.May(api.GrantRoleAdmin, ""),
		Filter: auditFilter{
			Caller: r.FormValue("caller"), Action: r.FormValue("action"), Object: r.FormValue("object"),
			Outcome: api.AuditOutcome(r.FormValue("outcome")),
		},
		Outcomes: []api.AuditOutcome{"", api.AuditOutcomeDone, api.AuditOutcomeDenied, api.AuditOutcomeFailed},
	}
	var err error
	if f := &data.Filter; data.Everywhere {
		data.Trail, err = call[api.AuditTrail](r.api.ListAuditTrail(r.Context(), &api.ListAuditTrailParams{
			Caller: optional(f.Caller), Action: optional(f.Action), Object: optional(f.Object), Outcome: optional(f.Outcome),
			PageToken: r.pageToken(),
		}))
		data.More = r.more(data.Trail.NextPageToken)
	}
	return view{Title: "Audit trail", Template: "audit", Data: data}, err
}
