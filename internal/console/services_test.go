package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

// serving returns the answers of a busy server.
func serving(s *situation) map[string]any {
	answers := quiet()
	s.Overview.AsOf, s.Overview.Exact, s.Overview.Pauses = api.NewTime(now), true, s.Pauses
	answers["GET /v1/admin/overview"] = s.Overview
	answers["GET /v1/admin/services"] = api.ServiceList{Bus: s.Overview.Bus, Services: s.Services}
	return answers
}

func TestServices_AsATable(t *testing.T) {
	t.Parallel()
	s := busyServer()
	s.Services[1].Service = hostile
	s.Overview.Accepted.ByMinute = &api.MinuteCounts{Counts: diagnosistest.Minutes(1, 50, 7), Failed: diagnosistest.Minutes()}
	s.Pauses = []api.Pause{
		{PauseID: "service:index", Actor: "ops-1", CreatedAt: ago(10 * time.Minute), State: api.PauseStatePaused},
		{PauseID: "all", CreatedAt: ago(2 * time.Hour), State: api.PauseStatePaused},
	}
	s.Overview.Since, s.Overview.CompleteSince = ago(58*time.Minute), ago(20*time.Minute)
	answers := serving(s)
	answers["GET /v1/admin/operations"] = api.OperationPage{Operations: []api.Operation{
		{Kind: api.OperationKindRetry, Matched: 81, Caller: "ops-2", CreatedAt: ago(5 * time.Minute)},
	}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/services")
	has(t, page, `<a href="/ui/services/ocr">ocr</a> <span class="pill bad">no worker</span>`,
		`<td data-label="ready" class="r"><a href="/ui/jobs?service=ocr&amp;step_type=OCR&amp;waiting=queued%2Cno_worker">3,000</a></td>`, "&lt;script&gt;", "2,500/min", "Live jobs and steps are exact as of", `data-copy="lucius services"`,
		`data-chart="{&#34;from&#34;:1769504580,&#34;marks&#34;:[{&#34;at&#34;:1769504670,`, `&#34;open&#34;:true,&#34;series&#34;:[{&#34;label&#34;:&#34;accepted&#34;`, "accepted: at most 50, 7 so far in this minute", "<rect",
		`<span class="mark">09:04 counting began</span> <span class="mark">09:42 a server started after a crash</span>`,
		`<span class="mark">09:52 pause service:index by ops-1</span> <span class="mark">09:57 retry of 81 jobs by ops-2</span></small>`)
	hasNot(t, page, "<script>alert", "style=")
	if strings.Index(page, "/ui/services/ocr") > strings.Index(page, "/ui/services/extract") {
		t.Error("what is in trouble does not come first")
	}
	b = newBrowser(t, quiet())
	has(t, b.get(t, "/ui/services"), "No protocol is loaded", "lucius init")
	b.token = "bound"
	has(t, b.get(t, "/ui/services"), "counted for all tenants together")
	has(t, b.get(t, "/ui/services/ocr"), "counted for all tenants together")
}

func TestService_SaysWhatItHasToDo(t *testing.T) {
	t.Parallel()
	s := busyServer()
	embed := diagnosistest.OCRWork(now, 2, time.Second, time.Second)
	embed.StepType, embed.DurationSeconds = "EMBED", api.Percentiles{Count: 7, P50: 1, P95: 41, P99: 90}
	embed.Attempts.ByMinute = &api.MinuteCounts{Counts: diagnosistest.Minutes(9, 4), Failed: diagnosistest.Minutes(1, 0)}
	s.Services = append(s.Services, embed)
	b := newBrowser(t, serving(s))
	page := b.get(t, "/ui/services/ocr")
	has(t, page, "3,000 directives wait, and no worker has polled for", "ocr-7", "/ui/do/dispatch-pause?service=ocr", "41 s",
		"waiting: at most 3,002, now 3,002", "ended: at most 9, 4 so far in this minute; failed: at most 1, 0 so far in this minute", `aria-current="page">Services`)
	hasNot(t, page, "extract")
	page = b.get(t, "/ui/services/index")
	has(t, page, "/ui/do/dispatch-resume?pause=service%3Aindex", "is paused for", "No worker has asked for work", `services=[&#34;index&#34;]`)
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/services/index"), "dispatch-resume")
	b.token = ""
	s.Overview.Bus = api.BusServiceBus
	b.set("GET /v1/admin/overview", s.Overview)
	has(t, b.get(t, "/ui/services/index"), "On Service Bus workers are not known")
	if w := b.send("GET", "/ui/services/%3Cscript%3Ealert(1)%3C%2Fscript%3E", nil); w.Code != 404 || strings.Contains(w.Body.String(), hostile) {
		t.Errorf("an unknown service is answered %d: %s", w.Code, w.Body)
	}
}

// A command to copy names the server by the URL that the browser uses.
func TestExamples_UseTLSAsTheBrowserDoes(t *testing.T) {
	t.Parallel()
	answers := serving(busyServer())
	answers["GET /v1/protocols"] = api.ProtocolList{Protocols: []api.Protocol{{ProtocolID: "p", RequestTypes: []string{"r"}}}}
	b := newBrowser(t, answers)
	for path, shows := range map[string]string{"protocols": "curl https://example.com/v1/commands", "services/index": `"https://example.com" + path`} {
		r := httptest.NewRequest(http.MethodGet, "/ui/"+path, nil)
		r.Header.Set("X-Forwarded-Proto", "https")
		w := httptest.NewRecorder()
		b.console.ServeHTTP(w, r)
		has(t, w.Body.String(), shows)
	}
}

func TestProtocols_WithTheirSteps(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/protocols"] = api.ProtocolList{LoadedAt: ago(time.Hour), Protocols: []api.Protocol{{
		ProtocolID: "doc_ingest_v1", Version: "1", Digest: "87f4dbde31c2126a9b8350ed9744f4b6", RequestTypes: []string{"doc.ingest", "it's"},
		SchemaVersions: []string{"2"}, File: "doc_ingest.yaml", Steps: []api.ProtocolStep{{StepID: "ocr", StepType: "OCR", Service: hostile}},
	}}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/protocols")
	has(t, page, "doc_ingest_v1", "version 1", "<code>doc.ingest</code>", "87f4dbde", "curl http://example.com/v1/commands", "&lt;script&gt;",
		"&#34;schema_version&#34;:&#34;2&#34;", "/ui/flow?protocol=doc_ingest_v1", "&#34;tenant_id&#34;:&#34;my_tenant&#34;")
	hasNot(t, page, "<script>alert", "Authorization")
	b.token = "bound"
	page = b.get(t, "/ui/protocols")
	has(t, page, "&#34;tenant_id&#34;:&#34;tenant_a&#34;", "-H &#34;Authorization: Bearer $LUCIUS_TOKEN&#34;")
	hasNot(t, page, "/ui/flow", "/ui/services/", "bound\"")
	b.set("GET /v1/protocols", api.ProtocolList{})
	has(t, b.get(t, "/ui/protocols"), "No protocol is loaded", "lucius init")
}
