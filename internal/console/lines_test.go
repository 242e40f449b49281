package console

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// blockedLine returns a line that job j1 of tenant_a blocks.
func blockedLine() api.Line {
	return api.Line{
		LineID: "l1", TenantID: "tenant_a", OrderKey: hostile, State: api.LineStateBlocked, Waiting: 2, Since: ago(time.Hour), AsOf: ago(0),
		Head: api.LineHead{JobID: "j1", State: api.JobStateFailedFinal, ErrorCode: hostile},
	}
}

// movingLine returns a line whose first job runs.
func movingLine() api.Line {
	line := blockedLine()
	line.LineID, line.OrderKey, line.State, line.Waiting = "l2", "customer-7", api.LineStateMoving, 1
	line.Head = api.LineHead{JobID: "j9", State: api.JobStateInProgress}
	return line
}

// inLine returns a job of a line that waits.
func inLine(id, line string, reason api.WaitingReason, blockedBy string) api.Job {
	one := scheduledJob()
	w := *one.Waiting
	w.Reason, w.Detail, w.Until = reason, "the first is job "+blockedBy, api.Time{}
	w.BlockedBy = &api.Blocker{Type: api.BlockerTypeJob, ID: blockedBy}
	one.JobID, one.LineID, one.OrderKey, one.OrderMode, one.NotBefore, one.NotAfter = id, line, hostile, api.OrderModeFifo, api.Time{}, api.Time{}
	one.Waiting, one.Steps[0].Waiting = &w, &w
	return one
}

// failedInLine returns the job that blocks [blockedLine].
func failedInLine() api.Job {
	one := runningJob()
	end(&one)
	one.State, one.ErrorCode, one.ErrorMessage, one.CompletedAt = api.JobStateFailedFinal, "bad_scan", hostile, ago(2*time.Hour)
	one.LineID, one.OrderKey, one.OrderMode = "l1", hostile, api.OrderModeFifo
	return one
}

// blocked returns the answers about a blocked line with three jobs.
func blocked() map[string]any {
	return map[string]any{
		"GET /v1/lines/l1": blockedLine(),
		"GET /v1/lines/l1/jobs": api.LineJobPage{Jobs: []api.Job{
			failedInLine(), inLine("j2", "l1", api.WaitingReasonLineBlocked, "j1"), inLine("j3", "l1", api.WaitingReasonLineBlocked, "j1"),
		}},
	}
}

func TestLines_ListsBlockedOnesFirst(t *testing.T) {
	t.Parallel()
	older := blockedLine()
	older.LineID, older.OrderKey, older.Since = "l0", "older", ago(3*time.Hour)
	b := newBrowser(t, map[string]any{"GET /v1/lines": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("state") == "moving" {
			answerJSON(w, api.LinePage{Lines: []api.Line{movingLine()}})
			return
		}
		answerJSON(w, api.LinePage{Lines: []api.Line{blockedLine(), older}, NextPageToken: "n1"})
	})})
	page := b.get(t, "/ui/lines?tenant_id=tenant_a")
	for _, want := range []string{"GET /v1/lines?tenant_id=tenant_a&state=blocked&limit=50", "GET /v1/lines?tenant_id=tenant_a&state=moving&limit=50"} {
		if !slices.Contains(b.requests(), want) {
			t.Errorf("the API was asked %q", b.requests())
		}
	}
	has(t, page, `aria-current="page">Lines`, `<a href="/ui/lines/l1">&lt;script&gt;`, `<span class="pill bad">blocked</span>`, `<span class="pill run">moving</span>`,
		`<a href="/ui/jobs/j1">`, `<a href="/ui/jobs/j9">`, "3 h ago</time>", `href="/ui/lines?page_token=n1&amp;state=blocked&amp;tenant_id=tenant_a"`,
		`"lucius lines --tenant tenant_a"`)
	hasNot(t, page, hostile)
	if strings.Index(page, "/ui/lines/l0") > strings.Index(page, "/ui/lines/l1") || strings.Index(page, "/ui/lines/l1") > strings.Index(page, "/ui/lines/l2") {
		t.Error("the blocked lines, the longest first, are not before the moving ones")
	}
	page = b.get(t, "/ui/lines?state=blocked&page_token=n1")
	b.asks(t, "GET /v1/lines?state=blocked&limit=50&page_token=n1")
	has(t, page, "<option selected>blocked</option>", `"lucius lines --state blocked"`)
	hasNot(t, page, "Moving")
	b.set("GET /v1/lines", api.LinePage{})
	has(t, b.get(t, "/ui/lines"), "No line is blocked.", "No job waits for its turn in another line.")
	b.set("GET /v1/lines", api.LinePage{NextPageToken: "n2"})
	has(t, b.get(t, "/ui/lines?state=blocked"), "None was found so far", "page_token=n2")
	b.token = "bound"
	has(t, b.get(t, "/ui/lines?state=moving"), "<option selected>tenant_a</option>")
	b.asks(t, "GET /v1/lines?tenant_id=tenant_a&state=moving&limit=50")
	b.set("GET /v1/lines", refuse(http.StatusBadRequest, "parameter state must be blocked or moving."))
	if w := b.send(http.MethodGet, "/ui/lines?state=standing", nil); w.Code != http.StatusBadRequest {
		t.Errorf("an unknown state is answered %d", w.Code)
	}
}

func TestLine_SaysWhatBlocksItAndWhatHelps(t *testing.T) {
	t.Parallel()
	answers := blocked()
	list := answers["GET /v1/lines/l1/jobs"].(api.LineJobPage)
	list.NextPageToken = "n1"
	answers["GET /v1/lines/l1/jobs"] = list
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/lines/l1")
	has(t, page, `aria-current="page">Lines`, `sse-connect="/ui/lines/l1"`, `<p class="why">Job <a href="/ui/jobs/j1">j1</a> failed <time`, "1 h ago</time>: &lt;script&gt;",
		"2 jobs wait after it.", "the rerun takes its place", `primary" href="/ui/do/job-rerun?job=j1"`, `href="/ui/do/line-release?job=j1&amp;line=l1"`,
		`href="/ui/do/line-cancel?line=l1"`, "lucius lines show l1", `href="/ui/jobs/j2"`, "bad_scan: &lt;script&gt;", `href="/ui/lines/l1?page_token=n1"`)
	hasNot(t, page, hostile, "The first ones")
	if strings.Index(page, `class="why"`) > strings.Index(page, `class="facts"`) || strings.Index(page, "/ui/jobs/j2") > strings.Index(page, "/ui/jobs/j3") {
		t.Error("the sentence is not first, or the jobs are not in their order")
	}
	b.asks(t, "GET /v1/lines/l1/jobs?limit=50")
	b.set("GET /v1/lines/l1/jobs", api.LineJobPage{Jobs: []api.Job{inLine("j4", "l1", api.WaitingReasonLineBlocked, "j1")}})
	page = b.get(t, "/ui/lines/l1?page_token=n1")
	b.asks(t, "GET /v1/lines/l1/jobs?limit=50&page_token=n1")
	has(t, page, `href="/ui/lines/l1">The first ones`)
	hasNot(t, page, "Later ones")
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/lines/l1"), "/ui/do/")
	cancelled := blockedLine()
	cancelled.Head.State, cancelled.Waiting = api.JobStateCancelled, 0
	b.token = ""
	b.set("GET /v1/lines/l1", cancelled)
	page = b.get(t, "/ui/lines/l1")
	has(t, page, "j1</a>, the rerun of a failed job, was cancelled", "No job waits after it.", "/ui/do/line-release")
	hasNot(t, page, "/ui/do/line-cancel")
}

func TestLine_ThatMovesOrIsEmpty(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/lines/l2":      movingLine(),
		"GET /v1/lines/l2/jobs": api.LineJobPage{Jobs: []api.Job{inLine("j2", "l2", api.WaitingReasonBehind, "j9")}},
	})
	page := b.get(t, "/ui/lines/l2")
	has(t, page, `j9</a> is first. 1 job waits after it.`, // This page does not show it.
		`<span class="pill run">moving</span>`, "/ui/do/line-cancel?line=l2")
	hasNot(t, page, "/ui/do/line-release", "/ui/do/job-rerun", "Rerun it")
	first := runningJob()
	first.JobID = "j9"
	b.set("GET /v1/lines/l2/jobs", api.LineJobPage{Jobs: []api.Job{first}})
	has(t, b.get(t, "/ui/lines/l2"), "j9</a> is first: w-1 runs attempt 1. 1 job waits after it.")
	b.set("GET /v1/lines/l2", api.Line{LineID: "l2", TenantID: "tenant_a", State: api.LineStateMoving})
	has(t, b.get(t, "/ui/lines/l2"), "No job is first.")
	w := b.send(http.MethodGet, "/ui/lines/l3", nil)
	if w.Code != http.StatusNotFound {
		t.Errorf("a line without jobs is answered %d", w.Code)
	}
	has(t, w.Body.String(), "No job is in this line.", `href="/ui/lines"`, `sse-connect="/ui/lines/l3"`)
	b.set("GET /v1/lines/l2", refuse(http.StatusServiceUnavailable, "The store does not answer."))
	if w := b.send(http.MethodGet, "/ui/lines/l2", nil); w.Code != http.StatusServiceUnavailable {
		t.Errorf("it answers %d", w.Code)
	}
}

func TestReleaseLine_NamesTheFailedJob(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/lines/l1:release": movingLine()})
	has(t, b.get(t, "/ui/do/line-release?line=l1&job=j1"), "Release the line of job j1?", "goes to the end of the line", "lucius lines release l1 --job j1<")
	form := url.Values{"line": {"l1"}, "job": {"j1"}, "reason": {" corrected by hand "}}
	if to := b.submits(t, "line-release", form); to != "/ui/lines/l1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/lines/l1:release {"jobId":"j1","reason":"corrected by hand"}`)
	b.set("POST /v1/lines/l1:release", refuse(http.StatusConflict, "The job does not block this line."))
	has(t, b.send(http.MethodPost, "/ui/do/line-release", form).Body.String(), "The job does not block this line.", `value="corrected by hand"`)
}

func TestCancelLine_SaysWhetherMoreWait(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/lines/l1:cancel": api.LineCancellation{LineID: "l1", Cancelled: 1000, More: true}})
	has(t, b.get(t, "/ui/do/line-cancel?line=l1"), "Cancel the jobs that wait in line l1?", "lucius lines cancel l1 --reason WHY<", "required")
	form := url.Values{"line": {"l1"}}
	has(t, b.send(http.MethodPost, "/ui/do/line-cancel", form).Body.String(), "Give a reason")
	form.Set("reason", "the customer left")
	has(t, b.send(http.MethodPost, "/ui/do/line-cancel", form).Body.String(), "1,000 jobs were cancelled, and more wait. Send the form again.",
		`value="the customer left"`)
	b.asks(t, `POST /v1/lines/l1:cancel {"reason":"the customer left"}`)
	b.set("POST /v1/lines/l1:cancel", api.LineCancellation{LineID: "l1", Cancelled: 3})
	if to := b.submits(t, "line-cancel", form); to != "/ui/lines/l1" {
		t.Errorf("it leads to %s", to)
	}
	b.set("POST /v1/lines/l1:cancel", refuse(http.StatusNotFound, "No job is in such a line."))
	has(t, b.send(http.MethodPost, "/ui/do/line-cancel", form).Body.String(), "No job is in such a line.")
}

// A job shows its line, its neighbours there, and what lets a blocked line go on.
func TestJob_ShowsItsLine(t *testing.T) {
	t.Parallel()
	answers := blocked()
	for _, job := range answers["GET /v1/lines/l1/jobs"].(api.LineJobPage).Jobs {
		maps.Copy(answers, answersOf(job))
	}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/jobs/j2")
	has(t, page, "A job of the same order key before this one has failed.", `primary" href="/ui/do/job-rerun?job=j1"`, "/ui/do/line-release?job=j1&amp;line=l1",
		"<dt>order key</dt><dd>&lt;script&gt;", "<small>fifo</small>", `href="/ui/lines/l1"`, `<span class="pill bad">blocked</span> 2 jobs wait`,
		`<dt>before it</dt><dd><span class="id" title="j1">`, `<dt>after it</dt><dd><span class="id" title="j3">`, "● line blocked", `<li class="bad" aria-current="step">`)
	hasNot(t, page, hostile)
	if !slices.Contains(b.requests(), "GET /v1/lines/l1/jobs?limit=10") {
		t.Errorf("the API was asked %q", b.requests())
	}
	has(t, b.get(t, "/ui/jobs/j1"), "It blocks the <a href=\"/ui/lines/l1\">line of its order key</a>: 2 jobs wait until it is rerun or released.",
		`primary" href="/ui/do/job-rerun?job=j1"`, "/ui/do/line-release?job=j1&amp;line=l1", "<dt>after it</dt>")
	b.token = "reader"
	page = b.get(t, "/ui/jobs/j2")
	has(t, page, `href="/ui/jobs/j1">See the first job of its line`)
	hasNot(t, page, "/ui/do/")
}

func TestJob_OfALineThatItHasLeft(t *testing.T) {
	t.Parallel()
	done := failedInLine()
	done.JobID, done.State, done.LineID = "j0", api.JobStateSucceeded, "l2"
	answers := answersOf(done)
	answers["GET /v1/lines/l2"] = movingLine()
	maps.Copy(answers, answersOf(inLine("j2", "l2", api.WaitingReasonBehind, "j9")))
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/jobs/j0")
	has(t, page, `href="/ui/lines/l2"`)
	hasNot(t, page, "/ui/do/line-release", "<dt>after it</dt>")
	if slices.Contains(b.requests(), "GET /v1/lines/l2/jobs?limit=10") {
		t.Error("the neighbours of a job that has left its line were sought")
	}
	page = b.get(t, "/ui/jobs/j2") // The line was emptied in between.
	has(t, page, `primary" href="/ui/jobs/j9">See the first job of its line`, "● waits for its turn")
	hasNot(t, page, "/ui/do/line-release", "<dt>before it</dt>")
	b.set("GET /v1/lines/l2", refuse(http.StatusNotFound, "No job is in such a line."))
	page = b.get(t, "/ui/jobs/j0")
	has(t, page, "<dt>order key</dt>")
	hasNot(t, page, "/ui/lines/l2")
	for _, request := range []string{"GET /v1/lines/l2/jobs", "GET /v1/lines/l2"} {
		b.set("GET /v1/lines/l2", movingLine())
		b.set(request, refuse(http.StatusServiceUnavailable, "The store does not answer."))
		if w := b.send(http.MethodGet, "/ui/jobs/j2", nil); w.Code != http.StatusServiceUnavailable {
			t.Errorf("without %s it answers %d", request, w.Code)
		}
	}
}

func TestDocument_ShowsItsLine(t *testing.T) {
	t.Parallel()
	other := failedInLine()
	other.JobID, other.LineID = "j0", "gone"
	answers := blocked()
	answers["GET /v1/jobs"] = api.JobPage{Jobs: []api.Job{inLine("j2", "l1", api.WaitingReasonLineBlocked, "j1"), failedInLine(), other}}
	for _, id := range []string{"j0", "j1", "j2"} {
		answers["GET /v1/jobs/"+id+"/lineage"] = api.Lineage{}
	}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/document?tenant_id=tenant_a&doc_id=d")
	has(t, page, `The line of its order key <a class="url" href="/ui/lines/l1">&lt;script&gt;`, `<span class="pill bad">blocked</span> by job <a class="id" href="/ui/jobs/j1">j1</a>: 2 jobs wait.`)
	hasNot(t, page, hostile, "/ui/lines/gone")
	if n := strings.Count(strings.Join(b.requests(), "\n"), "GET /v1/lines/"); n != 2 {
		t.Errorf("%d lines were read", n)
	}
	b.set("GET /v1/lines/gone", refuse(http.StatusServiceUnavailable, "The store does not answer."))
	if w := b.send(http.MethodGet, "/ui/document?tenant_id=tenant_a&doc_id=d", nil); w.Code != http.StatusServiceUnavailable {
		t.Errorf("it answers %d", w.Code)
	}
}
