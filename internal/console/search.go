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

// match is a search result.
type match struct{ Kind, Name, URL string }

// searchPage lists the results of a search that has not exactly one.
type searchPage struct {
	Sought  string
	Matches []match
	// Jobs says that the user may look for jobs.
	Jobs bool
}

// maxOrderKey is the longest order key of a command, in bytes.
const maxOrderKey = 256

// mostMatches bounds the results that are listed.
const mostMatches = 50

// search redirects to the only match, or lists all matches.
func search(r *request) (view, error) {
	sought := strings.TrimSpace(r.FormValue("q"))
	data := searchPage{Sought: sought, Jobs: len(r.tenants(api.GrantRoleRead)) > 0}
	if sought != "" {
		data.Matches = r.named(sought)
		if data.Jobs {
			// A fruitless search by error code is slow, so it is made only if no name matches.
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

// named finds pages, actions, workers, tenants, and the services, request types and protocols of the
// registry, by name. If a name equals the text, names that only contain it are left out.
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
	if len(r.tenants(api.GrantRoleAdmin)) > 0 {
		add("action", "Pause dispatch", link("do/dispatch-pause"))
		add("action", "Retry failed jobs", link("failures"))
		add("action", "Cancel jobs", link("jobs", "waiting", waitsAtAll))
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
	// An error leaves out the workers; other names are still found.
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
// rows begin so. shortID matches an id as pages show it, or its begin, lineID the id of a line, and
// code an error code.
var (
	jobID   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	lineID  = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
	code    = regexp.MustCompile(`^[A-Za-z][\w.:-]*$`)
	shortID = regexp.MustCompile(`^([0-9a-fA-F]{8})(?:(?:…|\.{2,3}|-)([0-9a-fA-F]{4})?)?$`)
)

// jobsOf finds jobs by id, by the id of their line, by short id, or else as [request.jobsBy] does.
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
	if id := strings.ToLower(lineID.FindString(sought)); id != "" {
		found, err := call[api.Line](r.api.GetLine(r.Context(), id))
		if err == nil {
			return []match{{"line", found.OrderKey, link("lines/" + id)}}, nil
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

// jobSearch is a list of jobs that a search leads to if it is not empty.
type jobSearch struct {
	match

	params api.ListJobsParams
}

// jobsBy finds jobs by document, tag, correlation id, tenant and, if the text may be one, error code, and
// lines by their order key. It searches each tenant of a user who may not read all of them. Documents, tags
// and lines are sought tenant by tenant: for a user who may read all, in those of the newest jobs.
func (r *request) jobsBy(sought string, mayBeCode bool) (found []match, err error) {
	found, err = r.jobsOfDocument(sought)
	if err != nil || len(sought) > api.MaxName {
		return found, err
	}
	tenants := []string{""}
	if !r.May(api.GrantRoleRead, "") {
		tenants = r.tenants(api.GrantRoleRead)
	}
	recent := api.NewTime(r.now.Add(-7 * 24 * time.Hour))
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		searches := []jobSearch{{
			match{"correlation id", sought, link("jobs", "tenant_id", tenant, "correlation_id", sought)},
			api.ListJobsParams{TenantID: optional(tenant), CorrelationID: &sought},
		}}
		if mayBeCode {
			searches = append(searches, jobSearch{
				match{"error code", sought, link("jobs", "tenant_id", tenant, "error_code", sought)},
				api.ListJobsParams{TenantID: optional(tenant), ErrorCode: &sought, CreatedAfter: &recent},
			})
		}
		if tenant == "" { // The tenants of other users are among the names that they may see.
			searches = append(searches, jobSearch{
				match{"tenant", sought, link("jobs", "tenant_id", sought)}, api.ListJobsParams{TenantID: &sought},
			})
		}
		more, err := r.fruitful(searches)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// fruitful returns the searches that find a job.
func (r *request) fruitful(searches []jobSearch) (found []match, err error) {
	for _, one := range searches {
		one.params.Limit = new(api.Limit(1))
		list, err := call[api.JobPage](r.api.ListJobs(r.Context(), &one.params))
		if err != nil {
			return nil, err
		}
		if len(list.Jobs) > 0 {
			found = append(found, one.match)
		}
	}
	return found, nil
}

// jobsOfDocument finds jobs by document and by tag, and lines by order key.
func (r *request) jobsOfDocument(sought string) ([]match, error) {
	tenants := r.tenants(api.GrantRoleRead)
	if r.May(api.GrantRoleRead, "") {
		list, err := call[api.JobPage](r.api.ListJobs(r.Context(), &api.ListJobsParams{Limit: new(api.Limit(200))}))
		if err != nil {
			return nil, err
		}
		tenants = nil
		for i := range list.Jobs {
			tenants = append(tenants, list.Jobs[i].TenantID)
		}
		slices.Sort(tenants)
		tenants = slices.Compact(tenants)
	}
	var searches []jobSearch
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		if len(sought) <= api.MaxDocID {
			searches = append(searches, jobSearch{
				match{"document of " + tenant, sought, link("document", "tenant_id", tenant, "doc_id", sought)},
				api.ListJobsParams{TenantID: &tenant, DocID: &sought},
			})
		}
		if _, err := api.ParseTags([]string{sought}); err == nil {
			searches = append(searches, jobSearch{
				match{"tag of " + tenant, sought, link("jobs", "tenant_id", tenant, "tag", sought)},
				api.ListJobsParams{TenantID: &tenant, Tag: &[]string{sought}},
			})
		}
	}
	found, err := r.fruitful(searches)
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		if err != nil || len(sought) > maxOrderKey {
			break
		}
		var list api.LinePage
		list, err = call[api.LinePage](r.api.ListLines(r.Context(), &api.ListLinesParams{TenantID: &tenant, OrderKey: &sought}))
		for i := range list.Lines {
			found = append(found, match{"line of " + tenant, sought, link("lines/" + list.Lines[i].LineID)})
		}
	}
	return found, err
}

// shortened finds jobs by the first eight and the last four digits of their ids. The first eight are
// the time of the id, to about a minute; it examines the newest 5,000 jobs of that time.
func (r *request) shortened(begin, end string) (found []match, err error) {
	const pages, span = 5, 1 << 16 * time.Millisecond
	unix, err := strconv.ParseInt(begin+"0000", 16, 64)
	if err != nil {
		return nil, fmt.Errorf("parse a short id: %w", err)
	}
	at := time.UnixMilli(unix)
	if at.After(r.now.Add(24 * time.Hour)) { // No id is of the future, and the API refuses times after the year 9999.
		return nil, nil
	}
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
