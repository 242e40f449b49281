package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// searches returns the target of the search's redirect, or else its page.
func (b *browser) searches(t *testing.T, sought string) (location, page string) {
	t.Helper()
	w := b.send(http.MethodGet, "/ui/search?"+url.Values{"q": {sought}}.Encode(), nil)
	return w.Header().Get("Location"), w.Body.String()
}

const (
	soughtID   = "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77"
	soughtLine = "3f0d1b0c5a7e0a4a7a4c7a52e9d3c8f4b3f7a6d5e2c1b0a9f8e7d6c5b4a39281"
)

// findable scripts a server with one job.
func findable() map[string]any {
	job := runningJob()
	job.JobID, job.TenantID, job.CorrelationID, job.ErrorCode = soughtID, "t03", "corr 1", "ocr_timeout"
	job.DocID, job.Tags = "s3://in/a&b.pdf", api.Tags{"customer": "42", "env": "a=b"}
	answers := answersOf(job)
	answers["GET /v1/jobs/"+soughtID] = job
	answers["GET /v1/protocols"] = api.ProtocolList{Protocols: []api.Protocol{{
		ProtocolID: "doc_pipeline", RequestTypes: []string{"doc.ingest"},
		Steps: []api.ProtocolStep{{Service: "ocr", StepType: "OCR"}, {Service: "ocr-fast", StepType: "OCR"}, {Service: "ocr", StepType: "X"}},
	}}}
	answers["GET /v1/lines/"+soughtLine] = api.Line{LineID: soughtLine, TenantID: "t03"}
	answers["GET /v1/lines"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := api.LinePage{}
		if r.FormValue("tenant_id") == "t03" && r.FormValue("order_key") == "customer/42" {
			list.Lines = []api.Line{{LineID: soughtLine, TenantID: "t03", OrderKey: "customer/42"}}
		}
		answerJSON(w, list)
	})
	answers["GET /v1/admin/workers"] = api.WorkerList{Workers: []api.Worker{{Owner: "pods/w-1"}}}
	answers["GET /v1/jobs"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := api.JobPage{}
		is := func(name, value string) bool { return r.FormValue(name) == "" || r.FormValue(name) == value }
		if strings.Index(r.FormValue("created_before"), "-") > len("9999") {
			answerJSON(w, refuse(http.StatusBadRequest, "created_before must be a time."))
			return
		}
		if is("tenant_id", job.TenantID) && is("correlation_id", job.CorrelationID) && is("error_code", job.ErrorCode) &&
			is("doc_id", job.DocID) && (r.FormValue("tag") == "" || slices.Contains([]string{"customer=42", "env=a=b"}, r.FormValue("tag"))) &&
			(r.FormValue("created_before") == "" || r.FormValue("created_after") < "2025-07-09T19:56:03" && r.FormValue("created_before") > "2025-07-09T19:56:03") {
			list.Jobs = []api.Job{job}
		}
		answerJSON(w, list)
	})
	return answers
}

func TestSearch_OpensTheOneThingThatMatches(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, findable())
	for sought, want := range map[string]string{
		" " + soughtID + " ":        "/ui/jobs/" + soughtID,
		strings.ToUpper(soughtID):   "/ui/jobs/" + soughtID,
		soughtID + ".0.1":           "/ui/jobs/" + soughtID, // A work item.
		diagnosis.ShortID(soughtID): "/ui/jobs/" + soughtID,
		"0197f0c2":                  "/ui/jobs/" + soughtID,
		"0197F0C2...8E77":           "/ui/jobs/" + soughtID,
		strings.ToUpper(soughtLine): "/ui/lines/" + soughtLine,
		"0" + soughtLine[1:]:        "", // There is no such line.
		"customer/42":               "/ui/lines/" + soughtLine,
		"customer/4":                "", // A line is found by its whole key.
		"corr 1":                    "/ui/jobs?correlation_id=corr+1",
		"s3://in/a&b.pdf":           "/ui/document?doc_id=s3%3A%2F%2Fin%2Fa%26b.pdf&tenant_id=t03",
		"env=a=b":                   "/ui/jobs?tag=env%3Da%3Db&tenant_id=t03",
		"customer=4":                "", // A tag is found by its whole value.
		"ocr_timeout":               "/ui/jobs?error_code=ocr_timeout",
		"t03":                       "/ui/jobs?tenant_id=t03",
		"OCR":                       "/ui/services/ocr", // The whole name hides those that contain it.
		"fast":                      "/ui/services/ocr-fast",
		"pipeline":                  "/ui/flow?protocol=doc_pipeline",
		"doc.ingest":                "/ui/jobs?request_type=doc.ingest",
		"audit":                     "/ui/audit",
		"attention":                 "/ui/",
		"w-1":                       "/ui/workers/pods%2Fw-1",
		"pause dispatch":            "/ui/do/dispatch-pause",
		"0197f0c2…0000":             "",
		"f00dbabe":                  "", // As the begin of an id it would be of the year 10333.
		"1" + soughtID[1:]:          "", // There is no such job.
		"https://evil.example/x":    "",
		"<script>alert(1)</script>": "",
		strings.Repeat("x", 1000):   "",
	} {
		got, page := b.searches(t, sought)
		if got != want {
			t.Errorf("%q leads to %q, want %q", sought, got, want)
		}
		if want == "" {
			has(t, page, "Nothing matches")
			hasNot(t, page, "<script>alert")
		}
	}
	_, page := b.searches(t, "oc")
	has(t, page, "5 matches", `<a href="/ui/services/ocr-fast">ocr-fast</a> <small>service</small>`, "doc.ingest</a> <small>request type</small>")
	for sought, request := range map[string]string{soughtID: "GET /v1/jobs/" + soughtID, soughtLine: "GET /v1/lines/" + soughtLine} {
		b.set(request, refuse(http.StatusServiceUnavailable, "The store does not answer."))
		if w := b.send(http.MethodGet, "/ui/search?q="+sought, nil); w.Code != http.StatusServiceUnavailable {
			t.Errorf("it answers %d", w.Code)
		}
	}
}

// The search covers each tenant of the user, and finds no page that the user may not see.
func TestSearch_LooksInEachTenantOfTheUser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, findable())
	b.token = "many"
	for sought, want := range map[string]string{
		"corr 1": "/ui/jobs?correlation_id=corr+1&tenant_id=t03", "corr 2": "", "audit": "", "customer=42": "/ui/jobs?tag=customer%3D42&tenant_id=t03", "customer/42": "/ui/lines/" + soughtLine, "ocr-fast": "/ui/jobs?service=ocr-fast",
		"t03": "/ui/jobs?tenant_id=t03", "ocr_timeout": "/ui/jobs?error_code=ocr_timeout&tenant_id=t03", "0197f0c2": "/ui/jobs/" + soughtID,
	} {
		if got, _ := b.searches(t, sought); got != want {
			t.Errorf("%q leads to %q, want %q", sought, got, want)
		}
	}
	has(t, b.get(t, "/ui/jobs/"+soughtID), `href="/ui/jobs?correlation_id=corr&#43;1&amp;tenant_id=t03"`)
	b.token = "good"
	has(t, b.get(t, "/ui/jobs/"+soughtID), `href="/ui/jobs?correlation_id=corr&#43;1"`,
		`<a href="/ui/document?doc_id=s3%3A%2F%2Fin%2Fa%26b.pdf&amp;tenant_id=t03">s3://in/a&amp;b.pdf</a>`,
		`<a class="pill" href="/ui/jobs?tag=env%3Da%3Db&amp;tenant_id=t03">env=a=b</a>`)
}
