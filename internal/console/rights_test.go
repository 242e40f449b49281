package console

import (
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

// everything returns the answers of a server on which every page offers actions to those
// who may take them.
func everything() map[string]any {
	failed := runningJob()
	failed.State, failed.Waiting = api.JobStateFailedFinal, nil
	answers := answersOf(failed)
	maps.Copy(answers, quiet())
	paused := runningJob()
	paused.JobID, paused.State = "j2", api.JobStatePaused
	overview := *busyServer().Overview
	overview.Pauses = []api.Pause{{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused}}
	hooks := api.WebhookPage{Webhooks: []api.Webhook{{WebhookID: "j1.0", TenantID: "tenant_a", State: api.WebhookStateExhausted}}}
	groups := []api.FailureGroup{{Service: "ocr", ErrorCode: "BAD", Count: 1, LastAt: ago(time.Minute), SampleJobIds: []string{"j1"}}}
	services := []api.Service{diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)}
	maps.Copy(answers, map[string]any{
		"GET /v1/admin/overview": overview, "GET /v1/admin/services": api.ServiceList{Services: services},
		"GET /v1/admin/failures": api.FailureList{Groups: groups}, "GET /v1/admin/webhooks": hooks, "GET /v1/jobs/j1/webhooks": hooks,
		"GET /v1/jobs":              api.JobPage{Jobs: []api.Job{failed, paused}},
		"GET /v1/admin/pauses":      api.PauseList{Pauses: overview.Pauses},
		"GET /v1/admin/limits":      someLimits(),
		"GET /v1/admin/operations":  api.OperationPage{Operations: []api.Operation{{OperationID: "o", State: api.OperationStateRunning}}},
		"GET /v1/admin/outbox":      api.OutboxPage{Outbox: []api.OutboxRow{{OutboxID: "j1.0.1", JobID: "j1", State: "PENDING"}}},
		"GET /v1/admin/audit-trail": api.AuditTrail{},
		"GET /v1/admin/workers":     api.WorkerList{Bus: api.BusQueue, Workers: []api.Worker{busyWorker()}},
		"GET /v1/lines":             api.LinePage{Lines: []api.Line{blockedLine()}}, "GET /v1/lines/l1": blockedLine(),
		"GET /v1/lines/l1/jobs":              api.LineJobPage{Jobs: []api.Job{failed, paused}},
		"GET /v1/schedules":                  api.SchedulePage{Schedules: []api.Schedule{nightly()}},
		"GET /v1/schedules:lost":             lostNightly(),
		"GET /v1/schedules/tenant_a/nightly": nightly(), "GET /v1/schedules/tenant_a/nightly/fires": history(),
	})
	for request, answer := range answersOf(paused) {
		if strings.Contains(request, "/j2") {
			answers[request] = answer
		}
	}
	return answers
}

// allPages are the pages, with what each shows of [everything].
func allPages() (targets []string) {
	for _, p := range pages() {
		switch {
		case strings.HasPrefix(p.pattern, "jobs/{"):
			targets = append(targets, "jobs/j1", "jobs/j2")
		case strings.HasPrefix(p.pattern, "lines/{"):
			targets = append(targets, "lines/l1")
		case strings.Contains(p.pattern, "{service}"):
			targets = append(targets, "services/ocr")
		case strings.Contains(p.pattern, "{owner}"):
			targets = append(targets, "workers/ocr-7")
		case strings.Contains(p.pattern, "{name}"):
			targets = append(targets, "schedules/tenant_a/nightly")
		case strings.Contains(p.pattern, "{id}"):
			targets = append(targets, "operations/o")
		default:
			targets = append(targets, strings.TrimSuffix(p.pattern, "{$}"))
		}
	}
	return targets
}

// A page offers an action only to a user who may take it.
func TestActions_AreOfferedToThoseWhoMayDoThem(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, everything())
	offers := func(token, page string) []string {
		b.token = token
		return strings.Split(b.send(http.MethodGet, "/ui/"+page, nil).Body.String(), "/ui/do/")[1:]
	}
	for _, page := range allPages() {
		if found := offers("reader", page); len(found) > 0 {
			t.Errorf("%q offers a reader %.60s", page, found)
		}
	}
	for _, page := range []string{"", "jobs", "jobs/j1", "jobs/j2", "failures", "services/ocr", "outbox", "pauses", "limits", "webhooks", "lines/l1", "schedules/tenant_a/nightly"} {
		if len(offers("good", page)) == 0 {
			t.Errorf("%q offers an operator nothing", page)
		}
	}
	for _, page := range []string{"", "pauses"} { // The pause is of a service.
		for _, found := range offers("bound", page) {
			if strings.HasPrefix(found, "dispatch-resume") || strings.HasPrefix(found, "dispatch-pause?") {
				t.Errorf("%q offers an operator of one tenant %.60s", page, found)
			}
		}
	}
	for _, found := range offers("bound", "jobs?tenant_id=tenant_a") { // Operations on ids belong to no tenant.
		if strings.Contains(found[:strings.Index(found, `"`)], "ticked") {
			t.Errorf("an operator of one tenant is offered %.60s", found)
		}
	}
	if len(offers("bound", "jobs?tenant_id=tenant_a")) == 0 {
		t.Error("an operator of one tenant may not act on all jobs that match")
	}
	if len(offers("bound", "failures")) == 0 {
		t.Error("an operator of one tenant may not retry its jobs")
	}
}

// A form does not open for a user who may not send it, even by a link from elsewhere.
func TestForms_OpenForThoseWhoMaySendThem(t *testing.T) {
	t.Parallel()
	own, foreign := runningJob(), runningJob()
	foreign.JobID, foreign.TenantID = "j2", "tenant_b"
	b := newBrowser(t, map[string]any{
		"GET /v1/jobs/j1": own, "GET /v1/jobs/j2": foreign, "POST /v1/admin/cancellations": api.OperationPreview{Matched: 2},
		"POST /v1/admin/retries": api.OperationPreview{Matched: 2},
		"GET /v1/work/j1.0.1":    api.WorkItem{WorkID: "j1.0.1"},
		"GET /v1/lines/l1":       blockedLine(), "GET /v1/lines/l2": api.Line{LineID: "l2", TenantID: "tenant_b"},
	})
	status := func(token, target string) int {
		b.token = token
		return b.send(http.MethodGet, "/ui/do/"+target, nil).Code
	}
	for name := range allActions() {
		target := name + "?job=j1&work=j1.0.1&webhook=j1.0&operation=o&line=l1&tenant_id=tenant_a"
		if strings.HasPrefix(name, "dispatch-") {
			target = name + "?tenant=tenant_a"
		}
		if got := status("reader", target); got != http.StatusForbidden {
			t.Errorf("a reader is shown the form %s: %d", target, got)
		}
		if strings.HasPrefix(name, "jobs-") || name == "retry" {
			continue // It has a preview.
		}
		if got := status("good", target); got != http.StatusOK {
			t.Errorf("an operator is not shown the form %s: %d", target, got)
		}
	}
	for target, want := range map[string]int{
		"job-cancel?job=j1": 200, "job-rerun?job=j1": 200, "work-stall?work=j1.0.1&job=j1": 200, "webhook-replay?webhook=j1.0": 200,
		"job-cancel?job=j2": 403, "job-rerun?job=j2": 403, "work-stall?work=j2.0.1": 403, "webhook-replay?webhook=j2.0": 403,
		"job-cancel?job=missing": 404, "jobs-cancel?tenant_id=tenant_a": 200, "jobs-cancel?tenant_id=tenant_b": 403, "jobs-cancel": 403,
		"jobs-cancel?ticked=1&job=j1": 403, "retry?ticked=1&job=j1": 403, "retry?tenant_id=tenant_a": 200,
		"outbox-retry?tenant_id=tenant_a": 200, "outbox-retry": 403, "outbox-retry?job=j2": 403,
		"dispatch-pause": 200, "dispatch-pause?tenant=tenant_a": 200, "dispatch-pause?kind=tenant&name=tenant_a": 200,
		"dispatch-pause?tenant=tenant_b": 403, "dispatch-pause?kind=tenant&name=tenant_b": 403, "dispatch-pause?service=ocr": 403,
		"dispatch-resume?pause=tenant:tenant_a": 200, "dispatch-resume?pause=service:ocr": 403, "dispatch-resume": 403,
		"inbox-retry?command=c": 403, "line-release?line=l1&job=j1": 200, "line-cancel?line=l1": 200,
		"schedule-run?schedule=tenant_a/nightly": 200, "schedule-pause?schedule=tenant_a/nightly": 200, "schedule-resume?schedule=tenant_b/nightly": 403,
		"schedule-run?schedule=tenant_b/nightly": 403, "schedule-run?schedule=tenant_b/x&tenant_id=tenant_a": 403, "schedule-run?schedule=nightly": 403,
		"schedule-run?schedule=-all/nightly": 400, "schedule-run": 403,
		"line-release?line=l2&job=j1": 403, "line-cancel?line=l2&tenant_id=tenant_a": 403, "line-cancel?line=missing": 404,
	} {
		if got := status("bound", target); got != want {
			t.Errorf("an operator of tenant_a gets the form %s with %d, want %d", target, got, want)
		}
	}
	has(t, b.send(http.MethodGet, "/ui/do/job-cancel?job=j2", nil).Body.String(), "This takes the role submit for tenant tenant_b, which you do not have.")
}

// Workers choose codes and messages; lists shorten long ones.
func TestLists_ShortenLongFaults(t *testing.T) {
	t.Parallel()
	answers := everything()
	failed := answers["GET /v1/jobs/j1"].(api.Job)
	failed.ErrorCode, failed.ErrorMessage = strings.Repeat("CODE_", 20), strings.Repeat("message ", 225)
	answers["GET /v1/jobs/j1"], answers["GET /v1/jobs"] = failed, api.JobPage{Jobs: []api.Job{failed}}
	answers["GET /v1/admin/failures"] = api.FailureList{Groups: []api.FailureGroup{
		{Service: "ocr", ErrorCode: failed.ErrorCode, Count: 1, LastAt: ago(time.Minute), SampleJobIds: []string{"j1"}},
	}}
	b := newBrowser(t, answers)
	text := regexp.MustCompile(`<[^>]*>`)
	for _, page := range []string{"", "failures", "jobs"} {
		shown := text.ReplaceAllString(b.get(t, "/ui/"+page), "")
		has(t, shown, "CODE_CODE_")
		hasNot(t, shown, failed.ErrorCode, failed.ErrorMessage)
	}
}

// The navigation has no entry for a page that shows the user nothing.
func TestNavigation_LeadsToNoDeadEnd(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, everything())
	for token, all := range map[string]bool{"good": true, "reader": true, "bound": false} {
		b.token = token
		page := b.get(t, "/ui/jobs")
		for _, to := range []string{"/ui/flow", "/ui/services"} {
			if strings.Contains(page, `href="`+to+`"`) != all {
				t.Errorf("%s has the wrong navigation for %s", token, to)
			}
		}
		if strings.Contains(page, `href="/ui/audit"`) != (token == "good") {
			t.Errorf("%s has the wrong navigation for the audit trail", token)
		}
		for _, entry := range strings.Split(strings.Split(page, "</nav>")[0], `<a href="/ui/`)[1:] {
			to, _, _ := strings.Cut(entry, `"`)
			hasNot(t, b.get(t, "/ui/"+to), "this page is for users", "requires the role", "needs the role")
		}
	}
}
