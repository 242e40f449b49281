package diagnosis

import (
	"strings"

	"github.com/lucius-project/lucius/api"
)

// LimitScope says in words what a limit or a closure is of.
func LimitScope(l *api.StartLimit) string {
	text := "service " + l.Service
	if l.StepType != "" {
		text += ", step type " + l.StepType
	}
	if l.TenantID != "" {
		text += ", for tenant " + l.TenantID
	}
	return text
}

// LimitFindings says what is closed.
func (s *Situation) LimitFindings() (found []Finding) {
	for i := range s.Limits {
		l := &s.Limits[i]
		if l.Closed == nil {
			continue
		}
		scope := LimitScope(l)
		f := Finding{
			ID: bounded("closed:" + l.ID), Tenant: l.TenantID, Since: l.Closed.Since.Time, Service: l.Service, Level: LevelWarn,
			Subject: strings.ToUpper(scope[:1]) + scope[1:], Word: "closed",
			Text:  say("is closed, and opens ", when{In, l.Closed.Until.Time}),
			Notes: []Sentence{say("by ", l.Closed.By, ": “", l.Closed.Reason, "”"), say("closed ", when{For, l.Closed.Since.Time})},
			Actions: []Action{
				{Text: "Open…", Page: "do/limit-open", Query: []any{"limit", l.ID}, Form: true, Command: Command("limit open", l.ID)},
				{Text: "Show the limits", Page: "limits", Command: Command("limit list")},
			},
		}
		for j := range s.Services {
			if of := &s.Services[j]; l.TenantID == "" && of.Service == l.Service && (l.StepType == "" || l.StepType == of.StepType) {
				f.Weight += of.Backlog
			}
		}
		if f.Weight > 0 {
			f.Notes = append([]Sentence{say(Counted(f.Weight, "directive waits", "directives wait"))}, f.Notes...)
		}
		found = append(found, f)
	}
	return found
}
