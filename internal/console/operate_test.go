package console

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

const hostile = "<script>alert(1)</script>"

func ago(d time.Duration) api.Time { return api.NewTime(now.Add(-d)) }

// submits sends the form of an action, which must be carried out, and returns where the
// browser goes then.
func (b *browser) submits(t *testing.T, name string, form url.Values) string {
	t.Helper()
	w := b.send(http.MethodPost, "/ui/do/"+name, form)
	if w.Code != http.StatusSeeOther {
		t.Fatalf("%s answers %d: %s", name, w.Code, w.Body)
	}
	return w.Header().Get("Location")
}

// asks fails unless the last request of the API is this one.
func (b *browser) asks(t *testing.T, want string) {
	t.Helper()
	asked := b.requests()
	if len(asked) == 0 || asked[len(asked)-1] != want {
		t.Errorf("the API was asked %q, want %s", asked, want)
	}
}

func TestFailures_ShowsGroupsWithWhatHelps(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/failures": api.FailureList{Truncated: true, From: ago(3 * time.Hour), Groups: []api.FailureGroup{
			{
				Service: "ocr", StepType: "OCR", ErrorCode: hostile, Count: 1214, FirstAt: ago(2 * time.Hour), LastAt: ago(time.Minute),
				SampleJobIds: []string{"j1", "j2"}, SampleMessage: "page 3 " + hostile, Histogram: append(make([]int, 28), 1000, 214), TenantCount: 7,
				Tenants: []api.FailureTenant{{TenantID: "acme", Count: 1200}, {TenantID: hostile, Count: 2}},
			},
			{Service: "embed", ErrorCode: "TIMEOUT", Count: 1, Resolved: true, FirstAt: ago(time.Hour), LastAt: ago(time.Hour), SampleJobIds: []string{"j3"}},
			{Service: "ocr", StepType: "OCR", ErrorCode: "vendor_503", Count: 54, Retrying: true, FirstAt: ago(time.Hour), LastAt: ago(time.Second), SampleMessage: "Service Unavailable"},
		}},
	})
	page := b.get(t, "/ui/failures?service=ocr&since=24+h&include=resolved")
	if asked := b.requests()[0]; asked != "GET /v1/admin/failures?service=ocr&ended_after=2026-01-26T10%3A02%3A30.000Z&include=retrying,resolved" {
		t.Errorf("the API was asked %s", asked)
	}
	has(t, page, "1,214 jobs have failed for good, and there may be more: narrow the time or the tenant", "page 3 &lt;script&gt;", "Retry 1,214…", "Rerun since",
		"acme 1,200, &lt;script&gt;", "of 7 tenants", `<rect x="140" y="0" width="4" height="36"/>`, "214 in the last part", "3 h ago</time>",
		"/ui/do/retry?ended_after=2026-01-26T10%3A02%3A30.000Z&amp;error_code=%3Cscript%3Ealert%281%29%3C%2Fscript%3E&amp;service=ocr&amp;step_type=OCR",
		`<option selected>24 h</option>`, `value="resolved" checked`, "/ui/jobs/j2")
	hasNot(t, page, hostile, "Retry 1…", "Retry 54…")
	has(t, page, "<h2>Retrying</h2>", "<b>54 jobs</b>, retrying", "Service Unavailable", `href="/ui/jobs?error_code=vendor_503&amp;service=ocr&amp;step_type=OCR&amp;waiting=publishing%2C`,
		"--include-retrying --include-resolved")
	b.set("GET /v1/admin/failures", api.FailureList{})
	has(t, b.get(t, "/ui/failures"), "No matching job has failed for good.")
	if w := b.send(http.MethodGet, "/ui/failures?ended_after=yesterday", nil); w.Code != http.StatusBadRequest {
		t.Errorf("a time that is none is answered %d", w.Code)
	}
}

func TestLists_OfAUserOfOneTenant(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/failures":   api.FailureList{},
		"GET /v1/admin/outbox":     api.OutboxPage{},
		"GET /v1/admin/webhooks":   api.WebhookPage{},
		"GET /v1/admin/operations": api.OperationPage{},
		"GET /v1/admin/pauses":     api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:tenant_a", TenantID: "tenant_a"}}},
	})
	b.token = "bound"
	for _, page := range []string{"failures", "outbox", "webhooks", "operations"} {
		before := len(b.requests())
		has(t, b.get(t, "/ui/"+page), `<option selected>tenant_a</option>`)
		for _, asked := range b.requests()[before:] {
			if !strings.Contains(asked, "tenant_id=tenant_a") {
				t.Errorf("%s asks %s", page, asked)
			}
		}
	}
	has(t, b.get(t, "/ui/stuck"), "this page requires the role <code>admin</code> for all of them")
	has(t, b.get(t, "/ui/pauses"), "Tenant tenant_a")
	form := b.get(t, "/ui/do/dispatch-pause")
	has(t, form, "<option selected>tenant</option>")
	hasNot(t, form, "<option>all</option>", "<option>service</option>")
	b.token = "reader"
	page := b.get(t, "/ui/pauses")
	has(t, page, "needs the role <code>admin</code>")
	hasNot(t, page, `href="/ui/operations"`)
	has(t, page, `href="/ui/failures"`)
}

func TestRetry_CountsFirstAndThenBegins(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/retries": api.OperationPreview{
		Matched: 1214, Sample: []api.OperationSample{{JobID: "j1", TenantID: hostile, State: api.JobStateFailedFinal, ErrorCode: "BAD"}},
	}})
	form := b.get(t, "/ui/do/retry?service=ocr&error_code=BAD+SCAN&ended_after=2026-01-26T00:00:00Z&from=start")
	b.asks(t, `POST /v1/admin/retries {"dry_run":true,"ended_after":"2026-01-26T00:00:00.000Z","error_code":"BAD SCAN","from":"start","service":"ocr"}`)
	has(t, form, "1,214 jobs", "&lt;script&gt;", "<option selected>start</option>",
		"lucius retry --service ocr --code &#39;BAD SCAN&#39; --ended-after 2026-01-26T00:00:00.000Z --from start")
	hasNot(t, form, hostile)
	b.set("POST /v1/admin/retries", api.Operation{OperationID: "op1"})
	to := b.submits(t, "retry", url.Values{"job": {"j1, j2"}, "from": {"failed"}, "reason": {"fixed"}})
	b.asks(t, `POST /v1/admin/retries {"from":"failed","job_ids":["j1","j2"],"reason":"fixed"}`)
	if to != "/ui/operations/op1" {
		t.Errorf("it leads to %s", to)
	}
	b.submits(t, "retry", url.Values{})
	b.asks(t, `POST /v1/admin/retries {"all":true,"from":"failed"}`)
}

// An operation changes at most 10,000 jobs, however many match.
func TestRetry_SaysHowManyJobsItChanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		matched      int
		truncated    bool
		lead, button string
	}{
		{12, false, "12 jobs match.", "Rerun 12 jobs"},
		{12_000, false, "12,000 jobs match; one operation changes at most 10,000 of them.", "Rerun 10,000 jobs"},
		{9000, true, "9,000 jobs match, perhaps more.", "Rerun 9,000 jobs"},
	} {
		b := newBrowser(t, map[string]any{"POST /v1/admin/retries": api.OperationPreview{Matched: test.matched, Truncated: test.truncated}})
		has(t, strings.ReplaceAll(b.get(t, "/ui/do/retry"), ", such as these", ""), test.lead, ">"+test.button+"</button>")
	}
}

// TestRetry_BeginsOneOperationForOneForm sends a form twice, as a double click does.
func TestRetry_BeginsOneOperationForOneForm(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/retries": api.OperationPreview{Matched: 1}})
	keyOf := func() string {
		_, rest, _ := strings.Cut(b.get(t, "/ui/do/retry"), `name="key" value="`)
		key, _, _ := strings.Cut(rest, `"`)
		return key
	}
	first, second := keyOf(), keyOf()
	if len(first) < 32 || first == second || len(b.keys) > 0 {
		t.Fatalf("two forms have the keys %q and %q, and %q were sent", first, second, b.keys)
	}
	b.set("POST /v1/admin/retries", api.Operation{OperationID: "op1"})
	for range 2 {
		b.submits(t, "retry", url.Values{"key": {first}})
	}
	if sent := slices.Compact(b.keys); len(b.keys) < 2 || len(sent) != 1 || sent[0] != first {
		t.Errorf("the keys %q were sent", b.keys)
	}
}

func TestOperations_ShowsHowFarTheyAre(t *testing.T) {
	t.Parallel()
	op := api.Operation{
		OperationID: "op1", Kind: api.OperationKindRetry, State: api.OperationStateRunning, Matched: 1200, Done: 300, Applied: 297, Skipped: 2, Failed: 1,
		Filter: api.OperationFilter{Service: "ocr", EndedAfter: ago(time.Hour)}, Caller: "ops-1", Reason: hostile, RatePerSecond: 20,
		CreatedAt: ago(time.Minute), UpdatedAt: ago(time.Second), NextPageToken: "t2",
		Items: []api.OperationItem{
			{JobID: "j1", Outcome: api.OperationItemOutcomeSkipped, Detail: "It was rerun " + hostile},
			{JobID: "j2", Outcome: api.OperationItemOutcomeApplied, NewJobID: "j9"},
		},
	}
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/operations":             api.OperationPage{Operations: []api.Operation{op}, NextPageToken: "n1"},
		"GET /v1/admin/operations/op1":         op,
		"POST /v1/admin/operations/op1:cancel": op,
	})
	list := b.get(t, "/ui/operations?tenant_id=a")
	has(t, list, "service ocr, ended since 2026-01-27 09:02:30 UTC", "300 of 1,200", "1 failed", "2 skipped", `aria-current="page">Operations`,
		"/ui/operations?page_token=n1&amp;tenant_id=a", "/ui/operations/op1")
	hasNot(t, list, hostile)
	page := b.get(t, "/ui/operations/op1")
	has(t, b.get(t, "/ui/operations/op1?outcome=failed"), `<a href="/ui/operations/op1?outcome=failed" aria-current="true">failed</a>`)
	if !slices.Contains(b.requests(), "GET /v1/admin/operations/op1?outcome=failed") {
		t.Errorf("the API was asked %q", b.requests())
	}
	has(t, page, `<progress value="300" max="1200"`, "It was rerun &lt;script&gt;", "/ui/jobs/j9", "Stop…", "/ui/operations/op1?page_token=t2",
		`aria-current="page">Operations`)
	hasNot(t, page, hostile)
	if to := b.submits(t, "operation-cancel", url.Values{"operation": {"op1"}, "reason": {"enough"}}); to != "/ui/operations/op1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/operations/op1:cancel {"reason":"enough"}`)
	op.Filter = api.OperationFilter{TenantID: "t", DocID: "doc-1", Tags: api.Tags{"a": "1", "b": "2"}}
	b.set("GET /v1/admin/operations/op1", op)
	has(t, b.get(t, "/ui/operations/op1"), "<dd>tenant t, document doc-1, tag a=1, tag b=2</dd>")
	op.State, op.Named, op.Filter = api.OperationStateDone, true, api.OperationFilter{}
	b.set("GET /v1/admin/operations/op1", op)
	page = b.get(t, "/ui/operations/op1")
	has(t, page, "jobs selected by id", "1,200 jobs were tried.")
	hasNot(t, page, "Stop…")
}

func TestPauses_SaysWhoAndWhyAndWhatWaits(t *testing.T) {
	t.Parallel()
	lane := int32(7)
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/pauses": api.PauseList{Pauses: []api.Pause{
			{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused, Actor: "ops-1", Reason: hostile, CreatedAt: ago(2 * time.Hour)},
			{PauseID: "tenant:a", TenantID: "a", State: api.PauseStatePaused, Until: ago(-3 * time.Hour)},
			{PauseID: "lane:7", Lane: &lane, State: api.PauseStateRamping, Actor: "ops-2", ResumedAt: ago(time.Second)},
		}},
		"GET /v1/admin/services": api.ServiceList{Services: []api.Service{
			{Service: "ocr", StepType: "OCR", Held: 1200, HeldBy: []api.HeldBy{{PauseID: "service:ocr", Count: 1200}}},
			{Service: "ocr", StepType: "SCAN", Held: 20, HeldBy: []api.HeldBy{{PauseID: "service:ocr", Count: 14}, {PauseID: "tenant:b", Count: 6}}},
			{Service: "embed", Backlog: 5},
		}},
	})
	page := b.get(t, "/ui/pauses")
	has(t, page, "<b>Service ocr</b> is paused: 1,214 directives wait", "2 h</time>", "&lt;script&gt;", "/ui/do/dispatch-resume?pause=service%3Aocr",
		"until it is resumed", "<b>Tenant a</b> is paused", "resumes by itself <time", "in 3 h</time>", "<b>Lane 7</b> is resumed and ramps up")
	hasNot(t, page, hostile, "lane 7</b> is resumed and ramps up:")
	b.set("GET /v1/admin/pauses", api.PauseList{Pauses: []api.Pause{
		{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused, Waiting: new(7)},
		{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, Waiting: new(1)},
		{PauseID: "lane:7", Lane: &lane, State: api.PauseStatePaused, Waiting: new(0)},
	}})
	has(t, b.get(t, "/ui/pauses"), "<b>Service ocr</b> is paused: 7 directives wait", "<b>Tenant acme</b> is paused: 1 directive waits",
		"<b>Lane 7</b> is paused: 0 directives wait")
	b.set("GET /v1/admin/pauses", api.PauseList{})
	has(t, b.get(t, "/ui/pauses"), "Nothing is paused.", "lucius pause --service ocr")
	b.token = "bound"
	page = b.get(t, "/ui/pauses")
	has(t, page, "None of your tenants is paused.", "a lane or everything may be paused too")
	hasNot(t, page, "Nothing is paused.", "lucius pause --service ocr")
}

func TestDispatch_IsPausedAndResumed(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/pauses": api.Pause{}})
	has(t, b.get(t, "/ui/do/dispatch-pause"), "<option selected>service</option>", "<option>lane</option>", "lucius pause --service NAME --reason WHY")
	for target, first := range map[string]string{"": "name", "?kind=all": "reason", "?service=ocr": "reason"} {
		field := regexp.MustCompile(`<input name="(\w+)"[^>]* autofocus>`).FindAllStringSubmatch(b.get(t, "/ui/do/dispatch-pause"+target), -1)
		if len(field) != 1 || field[0][1] != first {
			t.Errorf("%q: to fill first are %q", target, field)
		}
	}
	form := b.get(t, "/ui/do/dispatch-pause?service=ocr")
	has(t, form, "Pause dispatch to service ocr?", `name="service" value="ocr"`, " required")
	hasNot(t, form, `name="kind"`)
	for _, one := range []struct {
		form url.Values
		body string
	}{
		{url.Values{"service": {"ocr"}}, `"service":"ocr"`},
		{url.Values{"kind": {"tenant"}, "name": {"acme"}}, `"tenant_id":"acme"`},
		{url.Values{"kind": {"protocol"}, "name": {"p1"}}, `"protocol_id":"p1"`},
		{url.Values{"pause": {"lane:7"}}, `"lane":7`},
		{url.Values{"kind": {"all"}}, `"all":true`},
		{url.Values{"service": {"ocr"}, "for": {"90 m"}}, `"for_seconds":5400`},
		{url.Values{"service": {"ocr"}, "for": {"2d"}}, `"for_seconds":172800`},
	} {
		one.form.Set("reason", "down")
		if to := b.submits(t, "dispatch-pause", one.form); to != "/ui/pauses" {
			t.Errorf("it leads to %s", to)
		}
		asked := b.requests()
		if last := asked[len(asked)-1]; !strings.HasPrefix(last, "POST /v1/admin/pauses {") || !strings.Contains(last, one.body) {
			t.Errorf("%v asks %s", one.form, last)
		}
	}
	asked := len(b.requests())
	for says, form := range map[string]url.Values{
		"Name what to pause.": {"kind": {"service"}, "reason": {"x"}},
		"How long it is paused is a number with a unit, such as 30m, 2h or 1d.": {"service": {"ocr"}, "for": {"tomorrow"}, "reason": {"x"}},
		"A pause that ends by itself lasts at most 365d.":                       {"service": {"ocr"}, "for": {"366d"}, "reason": {"x"}},
		"A pause is of everything, or of a service,":                            {"kind": {"flow"}, "name": {"x"}, "reason": {"x"}},
		"a whole number from 0 on.":                                             {"kind": {"lane"}, "name": {"seven"}, "reason": {"x"}},
		"Give a reason":                                                         {"service": {"ocr"}},
	} {
		has(t, b.send(http.MethodPost, "/ui/do/dispatch-pause", form).Body.String(), says)
	}
	if len(b.requests()) != asked {
		t.Errorf("a form with a mistake was sent: %q", b.requests()[asked:])
	}
	b.set("POST /v1/admin/pauses/service:ocr:resume", api.Pause{})
	has(t, b.get(t, "/ui/do/dispatch-resume?pause=service:ocr"), "Resume dispatch to service ocr?", "lucius resume --service ocr")
	b.submits(t, "dispatch-resume", url.Values{"service": {"ocr"}, "ramp": {"30"}, "reason": {"up"}})
	b.asks(t, `POST /v1/admin/pauses/service:ocr:resume {"ramp_seconds":30,"reason":"up"}`)
	has(t, b.send(http.MethodPost, "/ui/do/dispatch-resume", url.Values{"service": {"ocr"}, "ramp": {"soon"}}).Body.String(), "a number of seconds")
}

// The id of a pause escapes what a path may not hold.
func TestDispatch_OfATenantWithAnyName(t *testing.T) {
	t.Parallel()
	const id = "tenant:m~C3~BCller~7E~3Cb~3E"
	b := newBrowser(t, map[string]any{"POST /v1/admin/pauses": api.Pause{}, "POST /v1/admin/pauses/" + id + ":resume": api.Pause{}})
	has(t, b.get(t, "/ui/do/dispatch-resume?pause="+id), "Resume dispatch to tenant müller~&lt;b&gt;?",
		"lucius resume --tenant &#39;müller~&lt;b&gt;&#39;")
	b.submits(t, "dispatch-resume", url.Values{"pause": {id}})
	b.asks(t, "POST /v1/admin/pauses/"+id+":resume {}")
	b.submits(t, "dispatch-pause", url.Values{"pause": {id}, "reason": {"again"}})
	b.asks(t, `POST /v1/admin/pauses {"reason":"again","tenant_id":"müller~\u003cb\u003e"}`)
	has(t, b.get(t, "/ui/do/dispatch-resume?pause=tenant:~zz"), "Resume dispatch to tenant ~zz?")
	operator := request{Who: api.Identity{Grants: grants("müller~<b>", "admin")}}
	if !operator.MayDo(link("do/dispatch-resume", "pause", id)) || operator.MayDo(link("do/dispatch-resume", "pause", "tenant:m~C3~BCller")) {
		t.Error("an operator of the tenant may resume it, and no other")
	}
}

func TestOutbox_ShowsWhatWaits(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/outbox": api.OutboxPage{NextPageToken: "n1", SearchedTo: ago(3 * time.Hour), Outbox: []api.OutboxRow{{
			OutboxID: "j1.0.2", JobID: "j1", TenantID: "acme", StepID: "ocr", State: api.OutboxStatePending, AttemptNo: 2, Lane: 7,
			LastErrorCode: "rejected", LastErrorMessage: hostile, CreatedAt: ago(time.Hour), NextAttemptAt: api.NewTime(now.Add(time.Minute)),
		}}},
	})
	page := b.get(t, "/ui/outbox?lane=7")
	if asked := b.requests()[0]; asked != "GET /v1/admin/outbox?state=PENDING&lane=7&limit=50" {
		t.Errorf("the API was asked %s", asked)
	}
	has(t, page, "1 h</time>", "1 min</time>", "&lt;script&gt;", "/ui/do/outbox-retry?job=j1&amp;tenant_id=acme", `href="/ui/stuck"`,
		"/ui/outbox?lane=7&amp;page_token=n1", "/ui/do/outbox-retry?lane=7", "matches among the jobs accepted within", "3 h</time>")
	hasNot(t, page, hostile, "dead-letters") // There are none.
	b.set("GET /readyz", api.Readiness{Warnings: []string{"2 replies are dead letters, the oldest since noon"}})
	has(t, b.get(t, "/ui/outbox?state=ALL"), `id="dead-letters"`, "2 replies are dead letters", "lucius azure dead-letters list",
		"<option selected>ALL</option>")
	if w := b.send(http.MethodGet, "/ui/outbox?lane=x", nil); w.Code != http.StatusBadRequest {
		t.Errorf("a lane that is none is answered %d", w.Code)
	}
	b.set("GET /v1/admin/outbox", api.OutboxPage{})
	has(t, b.get(t, "/ui/outbox"), "Nothing waits to be published")
	b.set("GET /v1/admin/outbox", api.OutboxPage{NextPageToken: "n2", SearchedTo: ago(2 * time.Hour)})
	page = b.get(t, "/ui/outbox")
	has(t, page, "No match among the jobs accepted within", "2 h</time>", "page_token=n2")
	hasNot(t, page, "Nothing waits to be published")
}

func TestStuck(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/admin/stuck": api.StuckList{
		Checked: 1204, RoundEndedAt: ago(time.Minute), Repaired: 2,
		Stuck: []api.StuckJob{{JobID: "j2", State: api.JobStateInProgress, Reason: "no timer", FoundAt: ago(time.Hour)}},
	}})
	has(t, b.get(t, "/ui/stuck"), "no timer", "/ui/jobs/j2", "1 h ago</time>", "checked 1,204 live jobs", "repaired 2 defects", "lucius stuck")
	b.set("GET /v1/admin/stuck", api.StuckList{})
	unknown := b.get(t, "/ui/stuck")
	has(t, unknown, "This process has not checked the jobs.")
	hasNot(t, unknown, "No job is stuck")
	b.token = "bound"
	page := b.get(t, "/ui/stuck")
	has(t, page, "the role <code>admin</code> for all of them")
	hasNot(t, page, "No job is stuck")
}

func TestOutbox_ActsOnRowsAndWork(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"POST /v1/admin/outbox/retry":    api.OutboxRetryResult{Matched: 1, Retried: 1},
		"GET /v1/work/w1":                api.WorkItem{WorkID: "w1", Status: api.WorkStatusRunning, Owner: "<worker>", Rev: 5},
		"POST /v1/admin/work/w1:stall":   api.WorkItem{},
		"POST /v1/admin/work/w1:requeue": api.WorkItem{},
	})
	has(t, b.get(t, "/ui/do/outbox-retry"), "lucius outbox retry --all")
	has(t, b.get(t, "/ui/do/outbox-retry?lane=7&tenant_id=acme"), "lucius outbox retry --tenant acme --lane 7")
	if to := b.submits(t, "outbox-retry", url.Values{"job": {"j1"}, "tenant_id": {"acme"}}); to != "/ui/jobs/j1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/outbox/retry {"jobId":"j1","tenant_id":"acme"}`)
	b.set("POST /v1/admin/outbox/retry", api.OutboxRetryResult{Matched: 1, Skipped: []api.OutboxSkip{{Reason: "it was sent"}}})
	has(t, b.send(http.MethodPost, "/ui/do/outbox-retry", url.Values{"job": {"j1"}}).Body.String(), "None of 1 became due: it was sent")
	b.set("POST /v1/admin/outbox/retry", api.OutboxRetryResult{})
	has(t, b.send(http.MethodPost, "/ui/do/outbox-retry", url.Values{"job": {"j1"}}).Body.String(), "Nothing waits for its dispatch.")
	b.set("POST /v1/admin/outbox/retry", api.OutboxRetryResult{More: true})
	has(t, b.send(http.MethodPost, "/ui/do/outbox-retry", nil).Body.String(), "No row was found within 30 seconds.")
	b.set("POST /v1/admin/outbox/retry", api.OutboxRetryResult{Matched: 7, Retried: 7, More: true})
	has(t, b.send(http.MethodPost, "/ui/do/outbox-retry", nil).Body.String(), "7 rows became due, and there may be more: publish again.")
	has(t, b.get(t, "/ui/do/work-stall?work=w1"), "It is running by &lt;worker&gt;, rev 5.", "lucius work stall w1 --expected-rev 5",
		`name="rev" value="5"`, `name="key" value="`)
	seen := url.Values{"work": {"w1"}, "job": {"j1"}, "reason": {"lost"}, "rev": {"4"}, "key": {"k1"}}
	if to := b.submits(t, "work-stall", seen); to != "/ui/jobs/j1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/work/w1:stall {"expected_rev":4,"reason":"lost","request_id":"k1"}`)
	if to := b.submits(t, "work-requeue", url.Values{"work": {"w1"}, "rev": {"5"}, "key": {"k2"}}); to != "/ui/outbox" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/work/w1:requeue {"expected_rev":5,"request_id":"k2"}`)
}

// If the item changed since the form showed it, the form shows it as it is now, and what the
// user sends then is for that rev.
func TestWork_ThatChangedIsShownAgain(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/work/w1":              api.WorkItem{WorkID: "w1", Status: api.WorkStatusClaimed, Owner: "other", Rev: 7},
		"POST /v1/admin/work/w1:stall": refuse(http.StatusConflict, "The item is at rev 7."),
	})
	seen := url.Values{"work": {"w1"}, "rev": {"5"}, "key": {"k1"}}
	page := b.send(http.MethodPost, "/ui/do/work-stall", seen).Body.String()
	has(t, page, "The item is at rev 7.", "It is claimed by other, rev 7.", `name="rev" value="7"`, `name="key" value="k1"`)
	hasNot(t, page, `value="5"`)
	seen.Del("rev")
	has(t, b.send(http.MethodPost, "/ui/do/work-stall", seen).Body.String(), "which rev of the item you saw")
}

func TestInbox_IsTriedAgainOrDiscarded(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/admin/outbox": api.OutboxPage{}, "GET /v1/admin/stuck": api.StuckList{}})
	has(t, b.get(t, "/ui/inbox"), "is not PostgreSQL")
	hasNot(t, b.get(t, "/ui/outbox"), "/ui/inbox")
	b.set("GET /v1/admin/inbox", api.InboxPage{Commands: []api.InboxCommand{{
		CommandID: "c/1", TenantID: "acme", SubmittedBy: "shop", Code: "unknown_request_type", Detail: hostile, Body: "{" + hostile,
		SubmittedAt: ago(time.Hour), RefusedAt: ago(time.Hour), Errors: []api.Violation{{Pointer: "/request_type", Message: hostile}},
	}}})
	page := b.get(t, "/ui/inbox")
	has(t, page, "unknown_request_type", "{&lt;script&gt;", "command=c%2F1", "by shop", "<code>/request_type</code>")
	hasNot(t, page, hostile)
	has(t, b.get(t, "/ui/outbox"), "/ui/inbox")
	b.set("POST /v1/admin/inbox:retry", api.InboxResult{})
	if to := b.submits(t, "inbox-retry", url.Values{"command": {"c/1"}}); to != "/ui/inbox" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/inbox:retry {"command_ids":["c/1"]}`)
	b.set("POST /v1/admin/inbox:discard", api.InboxResult{})
	b.submits(t, "inbox-discard", url.Values{"reason": {"old"}})
	b.asks(t, `POST /v1/admin/inbox:discard {"all":true,"reason":"old"}`)
	part := api.InboxResult{More: true, Handled: slices.Repeat([]api.HandledInboxCommand{{Outcome: api.InboxOutcomeDiscarded}}, 100)}
	b.set("POST /v1/admin/inbox:discard", part)
	b.set("POST /v1/admin/inbox:retry", part)
	has(t, b.sendsForm("inbox-discard", url.Values{"reason": {"old"}}).Body.String(),
		"100 commands were discarded, and there are more. Send the form again.", `value="old"`)
	has(t, b.sendsForm("inbox-retry", url.Values{}).Body.String(), "100 commands were queued again, and there are more.")
	gone := api.InboxResult{Handled: []api.HandledInboxCommand{{CommandID: "c/1", Outcome: api.InboxOutcomeAbsent}}}
	b.set("POST /v1/admin/inbox:discard", gone)
	b.set("POST /v1/admin/inbox:retry", gone)
	for _, action := range []string{"inbox-discard", "inbox-retry"} {
		has(t, b.sendsForm(action, url.Values{"command": {"c/1"}, "reason": {"old"}}).Body.String(),
			"The command is not there any more, or in another state.")
	}
	b.set("POST /v1/admin/inbox:discard", api.InboxResult{})

	b.set("GET /v1/admin/inbox", api.InboxPage{
		Commands: []api.InboxCommand{
			{CommandID: "w/1", State: api.InboxStateWaiting, SubmittedAt: ago(time.Hour), Code: "tenant_limit", DueAt: ago(-time.Minute)},
			{CommandID: "w/2", State: api.InboxStateWaiting, SubmittedAt: ago(time.Hour), DiscardReason: hostile},
		},
		Counts: api.InboxCounts{Waiting: 2, OldestWaitingAt: ago(time.Hour), Refused: 1, OldestRefusedAt: ago(time.Hour)},
	})
	has(t, b.get(t, "/ui/inbox"), "2 commands wait", "/ui/inbox?state=waiting")
	page = b.get(t, "/ui/inbox?state=waiting")
	b.asks(t, "GET /v1/admin/inbox?state=waiting")
	has(t, page, "1 command was", "tenant_limit", "command=w%2F1", "once a replica knows that it did not become a job")
	hasNot(t, page, hostile, "inbox-retry", "command=w%2F2")
	if to := b.submits(t, "inbox-discard", url.Values{"state": {"waiting"}, "reason": {"old"}}); to != "/ui/inbox?state=waiting" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/inbox:discard {"all":true,"reason":"old","state":"waiting"}`)
	b.submits(t, "inbox-discard", url.Values{"state": {"waiting"}, "command": {"w/1"}, "reason": {"old"}})
	b.asks(t, `POST /v1/admin/inbox:discard {"command_ids":["w/1"],"reason":"old"}`)
	b.token = "bound"
	has(t, b.get(t, "/ui/inbox"), "admin</code> for all of them")
}

func TestWebhooks_AreSentAgain(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/webhooks": api.WebhookPage{Webhooks: []api.Webhook{{
			WebhookID: "j1.0", JobID: "j1", TenantID: "tenant_b", URL: "https://a.example/?" + hostile, Event: "job.failed",
			State: api.WebhookStateExhausted, Attempts: 8, LastStatus: 503, LastError: hostile, UpdatedAt: ago(time.Hour),
		}}},
		"POST /v1/admin/webhooks/j1.0:replay": api.Webhook{JobID: "j1"},
	})
	page := b.get(t, "/ui/webhooks")
	has(t, page, "EXHAUSTED", "503", "&lt;script&gt;", "/ui/do/webhook-replay?tenant_id=tenant_b&amp;webhook=j1.0")
	hasNot(t, page, hostile)
	if to := b.submits(t, "webhook-replay", url.Values{"webhook": {"j1.0"}, "reason": {"it is up"}}); to != "/ui/jobs/j1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/admin/webhooks/j1.0:replay {"reason":"it is up"}`)
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/webhooks"), "webhook-replay")
	b.set("GET /v1/admin/webhooks", api.WebhookPage{})
	has(t, b.get(t, "/ui/webhooks"), "Every webhook has been delivered")
}

func TestAudit_SaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/admin/audit-trail": api.AuditTrail{Since: ago(3 * time.Hour), NextPageToken: "n1", Records: []api.AuditRecord{
		{At: ago(time.Minute), Caller: "ops-1", Origin: "token", From: "192.0.2.7", Action: "cancelJob", Object: "j1" + hostile, TenantID: "acme", Outcome: api.AuditOutcomeDone, Reason: "wrong " + hostile},
		{At: ago(time.Minute), Caller: "ops-2", Action: "requeueWork", Object: "0197F0C2-6f3a-7c41-9d0e-2b1f6a5c8e77.0.1", Outcome: api.AuditOutcomeDone},
		{At: ago(time.Minute), Caller: "ops-2", Action: "createRetry", Object: "op/1", Outcome: api.AuditOutcomeDone},
		{At: ago(time.Minute), Caller: "ops-2", Action: "resumePause", Object: "service:ocr", Outcome: api.AuditOutcomeDone},
		{At: ago(time.Hour), From: "192.0.2.8", Action: "createPause", Outcome: api.AuditOutcomeDenied},
	}}})
	page := b.get(t, "/ui/audit?caller=ops-1&outcome=done")
	b.asks(t, "GET /v1/admin/audit-trail?caller=ops-1&outcome=done")
	has(t, page, "3 h ago</time>", "cancelJob", "192.0.2.7", "unknown", `<span class="pill bad">denied</span>`, `<option value="done" selected>`,
		"/ui/audit?caller=ops-1&amp;outcome=done&amp;page_token=n1", "/ui/audit?object=j1%3Cscript", ">cancel job</td>", "wrong &lt;script&gt;",
		`<a href="/ui/jobs/0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77">`, `<a href="/ui/operations/op%2F1">`, `<a href="/ui/pauses">`)
	hasNot(t, page, hostile)
	b.set("GET /v1/admin/audit-trail", api.AuditTrail{})
	has(t, b.get(t, "/ui/audit"), "No record matches.")
	b.token = "bound"
	has(t, b.get(t, "/ui/audit"), "admin</code> for all of them")
}

// Every page and every action shows the command that does the same.
func TestCommands_OfOperators(t *testing.T) {
	t.Parallel()
	answers := quiet()
	maps.Copy(answers, map[string]any{
		"GET /v1/admin/operations": api.OperationPage{}, "GET /v1/admin/outbox": api.OutboxPage{}, "GET /v1/admin/audit-trail": api.AuditTrail{},
		"GET /v1/admin/operations/o": api.Operation{OperationID: "o"}, "GET /v1/admin/stuck": api.StuckList{}, "GET /v1/jobs": api.JobPage{},
		"GET /v1/admin/inbox":                api.InboxPage{},
		"GET /v1/admin/workers":              api.WorkerList{Workers: []api.Worker{{Owner: "o"}}},
		"GET /v1/admin/services":             api.ServiceList{Services: []api.Service{{Service: "o"}}},
		"GET /v1/protocols":                  api.ProtocolList{Protocols: []api.Protocol{{ProtocolID: "it's"}}},
		"GET /v1/work/w":                     api.WorkItem{WorkID: "w", Rev: 1},
		"GET /v1/schedules/tenant_a/nightly": nightly(), "GET /v1/schedules/tenant_a/nightly/fires": history(),
		"GET /v1/lines/o": api.Line{LineID: "o"}, "GET /v1/lines/o/jobs": api.LineJobPage{},
	})
	maps.Copy(answers, answersOf(runningJob()))
	b := newBrowser(t, answers)
	var targets []string
	for _, p := range pages() {
		if p.pattern == "search" {
			continue // It asks the API several things.
		}
		targets = append(targets, strings.NewReplacer("{$}", "", "jobs/{id}", "jobs/j1", "{id}", "o", "{service}", "o", "{owner}", "o", "{tenant}", "tenant_a", "{name}", "nightly",
			"document", "document?tenant_id=a+b&doc_id=it%27s").Replace(p.pattern))
	}
	for _, target := range append(targets,
		"failures?tenant_id=a&service=it%27s&error_code=E&request_type=r&since=1+h&include=resolved", "outbox?state=ALL",
		"outbox?tenant_id=a&lane=7", "webhooks?tenant_id=a", "audit?caller=a&action=b&object=c&outcome=done", "operations/o?outcome=failed",
		"flow?protocol=it%27s", "inbox?state=waiting", "do/dispatch-pause", "do/dispatch-pause?all=1", "do/dispatch-pause?service=it%27s", "do/dispatch-pause?lane=7",
		"do/dispatch-pause?protocol=p&for=2h", "do/dispatch-resume?pause=tenant:a", "do/dispatch-resume?pause=all&ramp=30", "do/operation-cancel?operation=o",
		"do/outbox-retry", "do/outbox-retry?job=j&tenant_id=a+b&lane=7", "do/webhook-replay?webhook=w", "do/work-stall?work=w", "do/work-requeue?work=w",
		"do/inbox-retry", "do/inbox-discard?command=c%2F1", "do/inbox-discard?state=waiting",
		"lines?tenant_id=it%27s&state=blocked", "do/line-release?line=l&job=j", "do/line-cancel?line=l",
	) {
		if commandsParse(t, b.get(t, "/ui/"+target)) == 0 {
			t.Errorf("%s shows no command", target)
		}
	}
}
