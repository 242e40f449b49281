package console

import (
	"slices"
	"strings"
	"unicode"

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

// operationWords splits the id of an API operation into words: cancelJob becomes "cancel job".
func operationWords(action string) string {
	var words strings.Builder
	for _, letter := range action {
		if unicode.IsUpper(letter) {
			words.WriteByte(' ')
		}
		words.WriteRune(unicode.ToLower(letter))
	}
	return words.String()
}

// bulkActions create or cancel an operation on many jobs.
var bulkActions = []string{"createRetry", "createCancellation", "createPausing", "createResumption", "cancelOperation"}

// objectPage returns the URL of the page of an audited object, or "" if it has none.
func objectPage(action, object string) string {
	id := jobID.FindString(object)
	switch {
	case object == "":
		return ""
	case strings.HasSuffix(action, "Pause"):
		return link("pauses")
	case strings.HasSuffix(action, "Limit"):
		return link("limits")
	case slices.Contains(bulkActions, action):
		return pathOf("operations", object)
	case strings.HasSuffix(action, "Inbox"):
		return link("inbox")
	case id != "" && action != "createBackup":
		return pathOf("jobs", strings.ToLower(id)) // Work items, rows and webhooks are of a job.
	}
	return ""
}
