package console

import (
	"fmt"

	"github.com/lucius-project/lucius/api"
)

// finding is something that needs somebody, as a sentence.
type finding struct {
	// Level is bad if jobs fail or stand still, and warn if they will.
	Level string
	// Weight ranks findings of a level: about how many jobs it holds up.
	Weight int
	Text   string   // What is wrong, for whom, how bad.
	Since  api.Time // Since when.
	Note   string   // What else helps to judge it.
	Links  []helpful
}

// helpful is a link of a finding: the action that helps first.
type helpful struct {
	Text, URL string
	Action    bool // It opens a form.
}

// attentionPage is the first page: what is wrong, the worst first, and how all else is.
type attentionPage struct {
	Findings []finding
	Overview api.Overview
}

func attention(r *request) (view, error) {
	v := view{Title: "Attention", Template: "attention", Data: attentionPage{}}
	if !r.May(api.GrantRoleRead, "") && !r.May(api.GrantRoleAdmin, "") {
		return v, nil // The figures are of all tenants.
	}
	overview, err := call[api.Overview](r.api.GetOverview(r.Context(), nil))
	if err != nil {
		return v, err
	}
	services, err := call[api.ServiceList](r.api.ListServices(r.Context(), nil))
	if err != nil {
		return v, err
	}
	v.Data = attentionPage{Findings: findings(services.Services), Overview: overview}
	return v, nil
}

// findings returns what needs somebody, the worst first.
func findings(services []api.Service) (found []finding) {
	for i := range services {
		s := &services[i]
		if s.Backlog > 0 && s.WorkersTotal == 0 {
			found = append(found, finding{
				Level: "bad", Weight: s.Backlog, Since: s.OldestWaitingAt,
				Text:  fmt.Sprintf("%s: %s wait, and no worker has asked for them", s.Service, number(s.Backlog)),
				Links: []helpful{{Text: "Show the jobs", URL: link("jobs", "service", s.Service)}},
			})
		}
	}
	return found
}
