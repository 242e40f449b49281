package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

func TestAttention_RanksAndCounts(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/services"] = api.ServiceList{Services: []api.Service{diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)}}
	answers["GET /v1/admin/failures"] = api.FailureList{Groups: []api.FailureGroup{
		{Service: "<script>", StepType: "OCR", ErrorCode: "<b>", Count: 5000, FirstAt: ago(time.Hour), LastAt: ago(time.Minute), Histogram: []int{1, 5}},
	}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, "5,000 jobs", "&lt;script&gt;", "/ui/do/retry?error_code=%3Cb%3E", "no worker has polled for <time", "Everything else is well: 0/min accepted, 0 live jobs",
		`Attention <span class="hot">2</span>`, `<figure class="spark bad"><svg`, "Live jobs and steps are exact")
	hasNot(t, page, "<script>", "<b>:")
	if strings.Index(page, "5,000 jobs") > strings.Index(page, "3,000 directives") {
		t.Error("the smaller one comes first")
	}
	has(t, b.get(t, "/ui/pauses"), `Attention <span class="hot">2</span>`)
}

func TestAttention_OfAUserOfOneTenant(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/overview"] = refuse(403, "It is for all tenants.")
	answers["GET /v1/admin/pauses"] = api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:tenant_a", TenantID: "tenant_a", State: api.PauseStatePaused, CreatedAt: ago(time.Hour)}}}
	b := newBrowser(t, answers)
	b.token = "bound"
	page := b.get(t, "/ui/")
	has(t, page, "<b>Tenant tenant_a</b> is paused for", "Nothing else needs attention at tenant_a.", "for users who may read all tenants", `Attention <span>1</span>`)
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
	b.set("GET /v1/admin/pauses", api.PauseList{})
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
	held := runningJob()
	held.Waiting = &api.Waiting{Reason: api.WaitingReasonScopePaused, Detail: "paused until " + at(90).String()}
	b.set("GET /v1/jobs", api.JobPage{Jobs: []api.Job{held, held}, NextPageToken: "more"})
	page = b.get(t, "/ui/")
	if asked := b.requests(); !slices.Contains(asked, "GET /v1/jobs?tenant_id=tenant_a&waiting=scope_paused&limit=100") {
		t.Errorf("the API was asked %q", asked)
	}
	has(t, page, "<b>More than 2 jobs are</b> held back by a pause, of tenant tenant_a", "paused until",
		`href="/ui/jobs?tenant_id=tenant_a&amp;waiting=scope_paused"`)
}

// A blocked line needs a person. Its order key may be personal data, and is on the page of lines only.
func TestAttention_CountsBlockedLines(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/lines"] = api.LinePage{Lines: []api.Line{blockedLine(), blockedLine()}, NextPageToken: "more"}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, `id="finding-blocked-lines" class="card finding bad`, "<b>At least 2 lines are</b> blocked by a failed job; at least 4 jobs wait",
		"the oldest has been blocked for <time", `href="/ui/lines?state=blocked">Show the lines`, `Attention <span class="hot">1</span>`)
	hasNot(t, page, "alert(1)")
	if n := strings.Count(strings.Join(b.scripted.asked, "\n"), "GET /v1/lines?state=blocked&limit=100"); n != 1 {
		t.Errorf("the lines were asked for %d times", n)
	}
	b.token = "bound"
	b.set("GET /v1/lines", api.LinePage{Lines: []api.Line{blockedLine()}})
	has(t, b.get(t, "/ui/"), `id="finding-blocked-lines@tenant_a"`, "<b>1 line is</b> blocked by a failed job; 2 jobs wait, of tenant tenant_a",
		`href="/ui/lines/l1">Show the line<`)
}

// A schedule that missed something is named, with a link to its page.
func TestAttention_NamesSchedulesThatMissedSomething(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/schedules:lost"] = lostNightly()
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, `id="finding-schedule:tenant_a/nightly" class="card finding bad`, "<b>Schedule nightly</b> missed 2 occurrences within a day",
		`href="/ui/schedules/tenant_a/nightly">Show the schedule`)
	hasNot(t, page, hostile)
}

func TestAttention_SaysWhichTenantsItLookedAt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	b.token = "many"
	page := b.get(t, "/ui/")
	has(t, page, "Nothing needs attention at t00, t01,", ", t09.", "2 more tenants</a> of yours were not looked at.")
	hasNot(t, page, "t10")
}

// A finding that one operator acknowledged comes last for all users, and does not count.
func TestAttention_KnowsWhatOperatorsSaid(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/services"] = api.ServiceList{Services: []api.Service{diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)}}
	answers["GET /readyz"] = api.Readiness{Warnings: []string{"the disk is nearly full"}}
	answers["POST /v1/admin/marks"] = api.Mark{}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, "<title>(2) Attention · Lucius</title>", `Attention <span class="hot">2</span>`, `id="finding-no-worker:ocr" class="card finding bad`,
		`href="/ui/do/finding-mark?as=acknowledged&amp;finding=no-worker%3Aocr"`)
	hasNot(t, page, "<h2>Known</h2>")
	b.set("GET /v1/admin/marks", api.MarkList{Marks: []api.Mark{{
		FindingID: "no-worker:ocr", State: api.MarkStateSnoozed, Actor: hostile, Note: hostile, At: ago(time.Minute), Until: ago(-time.Hour),
	}}})
	page = b.get(t, "/ui/")
	has(t, page, "<title>(1) Attention · Lucius</title>", `Attention <span>1</span>`, "snoozed by &lt;script&gt;", "Reopen…", `id="finding-no-worker:ocr" class="card finding`)
	hasNot(t, page, hostile, `id="finding-no-worker:ocr" class="card finding bad`)
	if strings.Index(page, "the disk is nearly full") > strings.Index(page, "<h2>Known</h2>") || strings.Index(page, "3,000 directives") < strings.Index(page, "<h2>Known</h2>") {
		t.Error("what is known does not come last")
	}
	b.token = "reader"
	has(t, b.get(t, "/ui/pauses"), "<title>(1) Pauses · Lucius</title>")
	hasNot(t, b.get(t, "/ui/"), "do/finding-mark")
}

func TestMarkFinding_SaysItToTheAPI(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/marks": api.Mark{}})
	b.token = "bound"
	const form = "/ui/do/finding-mark?as=acknowledged&finding=webhooks%40tenant_a&tenant_id=tenant_a"
	has(t, b.get(t, form), "Mark “webhooks@tenant_a”?", "<option selected>acknowledged</option>",
		"lucius attention mark webhooks@tenant_a --as acknowledged", `data-flag="note"`)
	values := url.Values{
		"finding": {"webhooks@tenant_a"}, "tenant_id": {"tenant_a"}, "as": {"snoozed"}, "for": {"2 h"}, "note": {"they know"},
	}
	if to := b.submits(t, "finding-mark", values); to != "/ui/" {
		t.Errorf("the browser goes to %s", to)
	}
	b.asks(t, `POST /v1/admin/marks {"finding_id":"webhooks@tenant_a","for_seconds":7200,"note":"they know","state":"snoozed","tenant_id":"tenant_a"}`)
	values.Set("for", "soon")
	has(t, b.send(http.MethodPost, "/ui/do/finding-mark", values).Body.String(), "How long it lasts is a number with a unit")
	for target, status := range map[string]int{
		"/ui/do/finding-mark?as=open&finding=stuck": http.StatusForbidden, "/ui/do/finding-mark?as=open&finding=--all": http.StatusBadRequest,
	} {
		if w := b.send(http.MethodGet, target, nil); w.Code != status {
			t.Errorf("%s is answered %d, want %d", target, w.Code, status)
		}
	}
}

func TestAttention_SaysWhetherItHelped(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/failures"] = api.FailureList{Groups: []api.FailureGroup{
		{Service: "ocr", ErrorCode: "bad_scan", Count: 25, FirstAt: ago(time.Hour), LastAt: ago(time.Minute)},
	}}
	op := api.Operation{
		OperationID: "op1", Kind: api.OperationKindRetry, State: api.OperationStateDone, Matched: 81, Applied: 81, Caller: "ops-2", CreatedAt: ago(time.Hour),
		Filter: api.OperationFilter{Service: "ocr"},
	}
	answers["GET /v1/admin/operations"] = api.OperationPage{Operations: []api.Operation{op}}
	op.Results = &api.OperationResults{Counted: 81, Succeeded: 54, Failed: 25, Live: 2}
	answers["GET /v1/admin/operations/op1"] = op
	b := newBrowser(t, answers)
	has(t, b.get(t, "/ui/"), "retried 81 jobs <time", "by ops-2: 54 succeeded, 25 failed again, 2 still run", `href="/ui/operations/op1">Show the operation`)
	b.asks(t, "GET /v1/admin/operations/op1?include=results&limit=1")
	has(t, b.get(t, "/ui/operations/op1"), "Of its jobs 54 succeeded, 25 failed again, 2 still run.")
	b.token = "reader" // It may not see operations.
	hasNot(t, b.get(t, "/ui/"), "op1")
}
