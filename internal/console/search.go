package console

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// match is a thing that a search found.
type match struct{ Kind, Name, URL string }

// searchPage lists what a search found, if that is not exactly one thing.
type searchPage struct {
	Sought  string
	Matches []match
	// Jobs says that the user may look for jobs.
	Jobs bool
}

// mostMatches bounds how many things a search names.
const mostMatches = 50

// search opens the one thing that matches, or lists those that do.
func search(r *request) (view, error) {
	sought := strings.TrimSpace(r.FormValue("q"))
	data := searchPage{Sought: sought, Jobs: len(r.tenants(api.GrantRoleRead)) > 0}
	if sought != "" {
		data.Matches = r.named(sought)
		if data.Jobs {
			// To find no job by an error code is slow: a name of something else is none.
			found, err := r.jobsOf(sought, len(data.Matches) == 0 && code.MatchString(sought))
			if err != nil {
				return view{}, err
			}
			data.Matches = append(found, data.Matches...)
		}
	}
	if len(data.Matches) == 1 {
		return view{Location: data.Matches[0].URL}, nil
	}
	data.Matches = data.Matches[:min(len(data.Matches), mostMatches)]
	return view{Title: "Search", Template: "search", Data: data}, nil
}

// named returns the pages, actions, workers, and things that protocols and rights name, whose name
// contains the text. One that is the text hides those that contain it.
func (r *request) named(sought string) (found []match) {
	var exact []match
	add := func(kind, name, url string) {
		one := match{kind, name, url}
		switch {
		case strings.EqualFold(name, sought):
			exact = append(exact, one)
		case len(sought) > 1 && strings.Contains(strings.ToLower(name), strings.ToLower(sought)):
			found = append(found, one)
		}
	}
	for _, p := range pages() {
		if p.title != "" && r.sees(&p) {
			add("page", p.title, Path+strings.TrimSuffix(p.pattern, "{$}"))
		}
	}
	for _, a := range []match{
		{"action", "Pause dispatch", link("do/dispatch-pause")}, {"action", "Retry failed jobs", link("failures")},
		{"action", "Cancel jobs", link("jobs", "waiting", waitsAtAll)},
	} {
		if role := api.GrantRoleAdmin; len(r.tenants(role)) > 0 {
			add(a.Kind, a.Name, a.URL)
		}
	}
	var protocols []api.Protocol
	if len(r.tenants(api.GrantRoleRead)) > 0 {
		protocols = r.known()
	}
	tenants := slices.DeleteFunc(r.tenants(api.GrantRoleRead), func(name string) bool { return name == "*" })
	for _, o := range slices.Compact(offersOf(protocols, tenants, "tenant", "protocol", "request type", "service")) {
		url := link("jobs", strings.ReplaceAll(o.Of, " ", "_"), o.Name)
		switch {
		case o.Of == "tenant":
			url = link("jobs", "tenant_id", o.Name)
		case o.Of == "protocol" && r.seesAll():
			url = link("flow", "protocol", o.Name)
		case o.Of == "protocol":
			url = link("jobs", "protocol_id", o.Name)
		case o.Of == "service" && r.seesAll():
			url = pathOf("services", o.Name)
		}
		add(o.Of, o.Name, url)
	}
	// Without the workers, a name of another thing is found as well.
	if list, err := call[api.WorkerList](r.api.ListWorkers(r.Context(), &api.ListWorkersParams{})); err == nil {
		for i := range list.Workers {
			add("worker", list.Workers[i].Owner, pathOf("workers", list.Workers[i].Owner))
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return found
}

// jobID matches the id of a job at the begin of a text: those of work items and outbox
// rows begin so. shortID matches an id as pages show it, or its begin, and code an error code.
var (
	jobID   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	code    = regexp.MustCompile(`^[A-Za-z][\w.:-]*$`)
	shortID = regexp.MustCompile(`^([0-9a-fA-F]{8})(?:(?:…|\.{2,3}|-)([0-9a-fA-F]{4})?)?$`)
)

// jobsOf returns the job with that id, or the jobs with that short id, correlation id or tenant, or
// with that error code if it may be one.
func (r *request) jobsOf(sought string, mayBeCode bool) ([]match, error) {
	if id := strings.ToLower(jobID.FindString(sought)); id != "" {
		_, err := call[api.Job](r.api.GetJob(r.Context(), id, nil))
		if err == nil {
			return []match{{"job", id, link("jobs/" + id)}}, nil
		}
		if !isMissing(err) {
			return nil, err
		}
	}
	if parts := shortID.FindStringSubmatch(sought); parts != nil {
		found, err := r.shortened(strings.ToLower(parts[1]), strings.ToLower(parts[2]))
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	return r.jobsBy(sought, mayBeCode)
}

// jobsBy returns the jobs with that correlation id or error code, and those of that tenant. A user
// of some tenants need not know whose jobs they are.
func (r *request) jobsBy(sought string, mayBeCode bool) (found []match, err error) {
	tenants := []string{""}
	if !r.May(api.GrantRoleRead, "") {
		tenants = r.tenants(api.GrantRoleRead)
	}
	if len(sought) > api.MaxName {
		return nil, nil
	}
	recent := api.NewTime(r.now.Add(-7 * 24 * time.Hour))
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		for kind, params := range map[string]*api.ListJobsParams{
			"correlation id": {CorrelationID: &sought, TenantID: optional(tenant)},
			"error code":     {ErrorCode: &sought, TenantID: optional(tenant), CreatedAfter: &recent},
			"tenant":         {TenantID: &sought},
		} {
			if kind == "tenant" && tenant != "" || kind == "error code" && !mayBeCode {
				continue
			}
			params.Limit = new(api.Limit(1))
			list, err := call[api.JobPage](r.api.ListJobs(r.Context(), params))
			if err != nil {
				return nil, err
			}
			if len(list.Jobs) > 0 {
				url := link("jobs", "tenant_id", tenant, strings.ReplaceAll(kind, " ", "_"), sought)
				if kind == "tenant" {
					url = link("jobs", "tenant_id", sought)
				}
				found = append(found, match{kind, sought, url})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return strings.Compare(a.Kind, b.Kind) })
	return found, nil
}

// shortened returns the jobs whose ids begin and end so, among the first 5,000 of the minute in which
// such ids were made: the first eight digits of an id are its time.
func (r *request) shortened(begin, end string) (found []match, err error) {
	const pages, span = 5, 1 << 16 * time.Millisecond
	unix, err := strconv.ParseInt(begin+"0000", 16, 64)
	if err != nil {
		return nil, fmt.Errorf("parse a short id: %w", err)
	}
	at := time.UnixMilli(unix)
	tenants := []string{""}
	if !r.May(api.GrantRoleRead, "") {
		tenants = r.tenants(api.GrantRoleRead)
	}
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		params := &api.ListJobsParams{
			// The clocks of two replicas may differ, and a job is accepted after its id is made.
			TenantID: optional(tenant), CreatedAfter: new(api.NewTime(at.Add(-span))), CreatedBefore: new(api.NewTime(at.Add(2 * span))),
			Limit: new(api.Limit(1000)),
		}
		for range pages {
			list, err := call[api.JobPage](r.api.ListJobs(r.Context(), params))
			if err != nil {
				return nil, err
			}
			for i := range list.Jobs {
				if id := list.Jobs[i].JobID; strings.HasPrefix(id, begin) && strings.HasSuffix(id, end) {
					found = append(found, match{"job", id, link("jobs/" + id)})
				}
			}
			if params.PageToken = optional(list.NextPageToken); params.PageToken == nil {
				break
			}
		}
	}
	return found, nil
}
