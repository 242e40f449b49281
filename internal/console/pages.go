package console

import (
	"cmp"
	"strings"

	"github.com/lucius-project/lucius/api"
)

// pages returns all pages, in the order of the navigation.
func pages() []page {
	return []page{
		{pattern: "{$}", title: "Attention", live: true, show: attention},
		{pattern: "flow", title: "Flow", all: true, live: true, show: flow},
		{pattern: "jobs", title: "Jobs", role: api.GrantRoleRead, show: jobs},
		{pattern: "jobs/{id}", role: api.GrantRoleRead, live: true, changes: jobChanges, show: job},
		{pattern: "lines", title: "Lines", role: api.GrantRoleRead, show: lines},
		{pattern: "lines/{id}", role: api.GrantRoleRead, live: true, show: line},
		{pattern: "schedules", title: "Schedules", role: api.GrantRoleRead, show: schedules},
		{pattern: "schedules/{tenant}/{name}", role: api.GrantRoleRead, show: schedule},
		{pattern: "document", role: api.GrantRoleRead, show: document},
		{pattern: "search", show: search},
		{pattern: "failures", title: "Failures", role: api.GrantRoleRead, show: failures},
		{pattern: "services", title: "Services", all: true, live: true, show: services},
		{pattern: "services/{service}", live: true, show: service},
		{pattern: "workers", title: "Workers", role: api.GrantRoleRead, live: true, show: workers},
		{pattern: "workers/{owner}", role: api.GrantRoleRead, live: true, show: worker},
		{pattern: "queue", title: "Queue", all: true, live: true, show: queue},
		{pattern: "outbox", title: "Outbox", role: api.GrantRoleAdmin, show: outbox},
		{pattern: "stuck", role: api.GrantRoleAdmin, live: true, show: stuck},
		{pattern: "inbox", role: api.GrantRoleAdmin, show: inbox},
		{pattern: "pauses", title: "Pauses", role: api.GrantRoleAdmin, live: true, show: pauses},
		{pattern: "limits", title: "Limits", role: api.GrantRoleAdmin, live: true, show: limits},
		{pattern: "webhooks", title: "Webhooks", role: api.GrantRoleRead, show: webhooks},
		{pattern: "operations", title: "Operations", role: api.GrantRoleAdmin, live: true, show: operations},
		{pattern: "operations/{id}", role: api.GrantRoleAdmin, live: true, show: operation},
		{pattern: "protocols", title: "Protocols", role: api.GrantRoleRead, show: protocols},
		{pattern: "audit", title: "Audit trail", role: api.GrantRoleAdmin, all: true, show: auditTrail},
	}
}

// navigation returns the entries of the navigation, with the counts that the user may see.
func (c *Console) navigation(f *frame) (entries []navEntry) {
	if f.Who.Name == "" {
		return nil // The browser is not signed in.
	}
	for _, p := range pages() {
		if p.title != "" && f.sees(&p) {
			to := Path + strings.TrimSuffix(p.pattern, "{$}")
			entry := navEntry{Title: p.title, Path: to, Here: cmp.Or(f.View.Nav, f.View.Title) == p.title}
			if to == Path {
				entry.Count, entry.Hot = f.countFindings()
			}
			entries = append(entries, entry)
		}
	}
	return entries
}

// sees reports whether the page shows the user anything.
func (r *request) sees(p *page) bool {
	switch {
	case !p.all:
		return p.role == "" || len(r.tenants(p.role)) > 0
	case p.role == "":
		return r.seesAll()
	default:
		return r.May(p.role, "")
	}
}
