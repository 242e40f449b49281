package console

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
)

// hidden returns the value that the form sends again for the parameter.
func hidden(t *testing.T, page, name string) string {
	t.Helper()
	found := regexp.MustCompile(`<input type="hidden" name="` + name + `" value="([^"]*)">`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the form does not send %s:\n%s", name, page)
	}
	return html.UnescapeString(found[1])
}

// Without script a form is sent to its own URL, which has the parameters once more.
func TestForm_IsSentAgainWithTheSameParameters(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.OperationPreview{Matched: 2}})
	const target = "/ui/do/jobs-cancel?tenant_id=acme&state=QUEUED"
	w := b.send(http.MethodPost, target, url.Values{"tenant_id": {"acme"}, "state": {"QUEUED"}, "reason": {" "}})
	has(t, w.Body.String(), "Give a reason")
	if tenant := hidden(t, w.Body.String(), "tenant_id"); tenant != "acme" {
		t.Errorf("the form sends the tenant %q", tenant)
	}

	b.set("POST /v1/jobs/j1:pause", refuse(http.StatusConflict, "The job has ended."))
	w = b.send(http.MethodPost, "/ui/do/job-pause?job=j1", url.Values{"job": {"j1"}})
	has(t, w.Body.String(), "The job has ended.")
	if job := hidden(t, w.Body.String(), "job"); job != "j1" {
		t.Errorf("the form sends the job %q", job)
	}
}

// A form is for the jobs of all the tags that it was opened with.
func TestForm_SendsEachTagAgain(t *testing.T) {
	t.Parallel()
	const target = "/ui/do/jobs-cancel?tenant_id=t&tag=a%3D1&tag=b%3D2"
	const asked = `POST /v1/admin/cancellations {"reason":"wrong","tags":{"a":"1","b":"2"},"tenant_id":"t"}`
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.OperationPreview{Matched: 2}})
	form := url.Values{}
	for _, input := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(b.get(t, target), -1) {
		form.Add(html.UnescapeString(input[1]), html.UnescapeString(input[2]))
	}
	form.Set("reason", "wrong")
	b.set("POST /v1/admin/cancellations", api.Operation{OperationID: "op1"})
	b.submits(t, "jobs-cancel", form)
	b.asks(t, asked)
	if w := b.send(http.MethodPost, target, form); w.Code != http.StatusSeeOther { // Without script.
		t.Errorf("it answers %d: %s", w.Code, w.Body)
	}
	b.asks(t, asked)
	form["tag"] = []string{"a=1"}
	b.submits(t, "jobs-cancel?tag=a%3D1", form)
	b.asks(t, `POST /v1/admin/cancellations {"reason":"wrong","tags":{"a":"1"},"tenant_id":"t"}`)
}

func TestForm_NamesOneReasonInItsCommand(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.OperationPreview{Matched: 2}})
	has(t, b.get(t, "/ui/do/jobs-cancel"), "lucius jobs cancel --all --reason WHY<")
	has(t, b.get(t, "/ui/do/dispatch-pause?service=ocr"), "lucius pause --service ocr --reason WHY<")
	w := b.send(http.MethodPost, "/ui/do/dispatch-pause", url.Values{"kind": {"lane"}, "name": {"x"}, "reason": {"down"}})
	has(t, w.Body.String(), "a whole number from 0 on.", "lucius pause --lane x --reason down<")
}

// What was entered is not lost with the sign-in.
func TestForm_OutlivesTheSignIn(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, nil)
	b.scripted.token = true
	b.token = "revoked"
	form := url.Values{"kind": {"service"}, "name": {"ocr"}, "for": {"2h"}, "reason": {"the disk is full"}}
	w := b.sendsForm("dispatch-pause", form)
	if to := w.Header().Get("HX-Retarget"); w.Code != http.StatusUnauthorized || to != "find .refused" {
		t.Errorf("it answers %d for %q", w.Code, to)
	}
	has(t, w.Body.String(), `role="alert"`, "nothing was done", `href="/ui/sign-in" target="_blank"`)
	hasNot(t, w.Body.String(), "<form", "<html")

	w = b.send(http.MethodPost, "/ui/do/dispatch-pause", form)
	to, err := url.Parse(w.Header().Get("Location"))
	if err != nil || w.Code != http.StatusSeeOther || to.Path != "/ui/sign-in" {
		t.Fatalf("it answers %d, to %v, %v", w.Code, to, err)
	}
	b.token = "good"
	has(t, b.get(t, to.Query().Get("next")), "<option selected>service</option>", `value="ocr"`, `value="2h"`, `value="the disk is full"`)

	b.token = "revoked"
	form.Set("reason", strings.Repeat("x", maxFilled))
	w = b.send(http.MethodPost, "/ui/do/dispatch-pause?service=ocr", form)
	if to := w.Header().Get("Location"); to != "/ui/sign-in?next=%2Fui%2Fdo%2Fdispatch-pause%3Fservice%3Docr" {
		t.Errorf("a long form leads to %.200s", to)
	}
}

// A refusal that is no form must not take its place.
func TestForm_OutlivesARefusal(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/retries": refuse(http.StatusServiceUnavailable, "The store does not answer.")})
	w := b.sendsForm("retry", url.Values{"ticked": {"1"}, "reason": {"fixed"}})
	if to := w.Header().Get("HX-Retarget"); w.Code != http.StatusBadRequest || to != "find .refused" {
		t.Errorf("it answers %d for %q", w.Code, to)
	}
	has(t, w.Body.String(), `role="alert"`, "Tick the jobs first.")
	hasNot(t, w.Body.String(), "<h1>", "Sign in")
	has(t, b.sendsForm("retry", url.Values{"service": {"ocr"}, "reason": {"fixed"}, "shown": {"1"}}).Body.String(),
		`role="alert"`, "The store does not answer.", `value="ocr"`, `value="fixed"`)
}

// A dialog can be closed without a keyboard, whatever it shows.
func TestDialog_HasAButtonThatClosesIt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, nil)
	for target, says := range map[string]string{"jobs-cancel?ticked=1": "Tick the jobs first.", "dispatch-pause": "Pause dispatch?"} {
		w := b.send(http.MethodGet, "/ui/do/"+target, nil, "HX-Request", "true", "HX-Target", "dialog")
		has(t, w.Body.String(), says)
		if n := strings.Count(w.Body.String(), `<button type="button" class="close">`); n != 1 {
			t.Errorf("%s has %d such buttons: %s", target, n, w.Body)
		}
	}
}

// The dialog of an action on many jobs opens before the jobs are counted, and its button is disabled
// until then. Without script there is no dialog, and the page waits for the count.
func TestDialog_IsThereBeforeItsCount(t *testing.T) {
	t.Parallel()
	count := make(chan any, 1)
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, <-count)
	})})
	part := func(target string) string {
		return b.send(http.MethodGet, "/ui/do/jobs-cancel?service=ocr", nil, "HX-Request", "true", "HX-Target", target).Body.String()
	}
	dialog := part("dialog")
	has(t, dialog, `hx-get="/ui/do/jobs-cancel?service=ocr" hx-trigger="load"`, "Counting the jobs…", "disabled>Cancel</button>")
	if asked := b.requests(); len(asked) > 0 {
		t.Errorf("before it opens, the API is asked %q", asked)
	}
	count <- api.OperationPreview{Matched: 12}
	counted := part("count")
	has(t, counted, "12 jobs match", `<span id="submit" hx-swap-oob="true">`, `<button class="danger">Cancel 12 jobs</button>`, `name="few"`)
	hasNot(t, counted, "<form", "<html", `name="key"`)
	count <- api.OperationPreview{}
	counted = part("count")
	has(t, counted, "No job matches.", `<span id="submit" hx-swap-oob="true"></span>`)
	hasNot(t, counted, "<button")
	count <- refuse(http.StatusServiceUnavailable, "The store does not answer.")
	if refused := part("count"); refused != `<p class="fault" role="alert">The store does not answer.</p>` {
		t.Errorf("a count that fails is %s", refused)
	}
	count <- api.OperationPreview{Matched: 3}
	page := b.get(t, "/ui/do/jobs-cancel?service=ocr")
	has(t, page, "3 jobs match", ">Cancel 3 jobs</button>")
	hasNot(t, page, "disabled", "Counting")
}

// An operation on more than 1,000 jobs starts only after the user has typed their number, or with three of them.
func TestDialog_AsksForTheNumberOfManyJobs(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.OperationPreview{Matched: 1214}})
	page := b.get(t, "/ui/do/jobs-cancel?service=ocr")
	has(t, page, `<input type="hidden" name="shown" value="1214">`, "Type 1,214 to confirm", `name="few" value="1" formnovalidate>Try three first`)
	b.set("POST /v1/admin/cancellations", api.OperationPreview{Matched: 3})
	hasNot(t, b.get(t, "/ui/do/jobs-cancel?service=ocr"), "to confirm", `name="few"`)
	b.set("POST /v1/admin/cancellations", api.Operation{OperationID: "op1"})
	before := len(b.requests())
	send := func(query string, fields ...string) string {
		form := url.Values{"reason": {"wrong"}, "key": {"k"}}
		for pair := range slices.Chunk(fields, 2) {
			form.Set(pair[0], pair[1])
		}
		w := b.send(http.MethodPost, "/ui/do/jobs-cancel?"+query, form, "HX-Target", "dialog")
		return w.Body.String() + w.Header().Get("HX-Redirect") + w.Header().Get("Location")
	}
	for _, typed := range []string{"", "1213", "yes"} {
		has(t, send("service=ocr", "shown", "1214", "typed", typed), "Type how many jobs it changes, 1,214, or try three first.")
	}
	if asked := b.requests()[before:]; len(asked) > 0 {
		t.Errorf("the API is asked %q", asked)
	}
	has(t, send("service=ocr", "shown", "1214", "typed", "1,214"), "/ui/operations/op1")
	b.asks(t, `POST /v1/admin/cancellations {"reason":"wrong","service":"ocr"}`)
	has(t, send("service=ocr", "shown", "1214", "few", "1"), "/ui/operations/op1")
	b.asks(t, `POST /v1/admin/cancellations {"limit":3,"reason":"wrong","service":"ocr"}`)
	has(t, send("ticked=1&job=j1&job=j2&job=j3&job=j4", "shown", "4", "few", "1"), "/ui/operations/op1")
	b.asks(t, `POST /v1/admin/cancellations {"job_ids":["j1","j2","j3"],"reason":"wrong"}`)
}

// A form that stood open while many more jobs came starts nothing that its user did not see.
func TestDialog_CountsAgainIfManyMoreMatch(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.OperationPreview{Matched: 9000}})
	form := url.Values{"service": {"ocr"}, "reason": {"wrong"}, "shown": {"12"}}
	has(t, b.sendsForm("jobs-cancel", form).Body.String(), "Now 9,000 jobs match, many more than when they were counted.", "Counting the jobs…")
	if asked := b.requests(); len(asked) != 1 || !strings.Contains(asked[0], `"dry_run":true`) {
		t.Errorf("the API is asked %q", asked)
	}
	form["shown"], form["typed"] = []string{"8500"}, []string{"8500"}
	b.sendsForm("jobs-cancel", form)
	b.asks(t, `POST /v1/admin/cancellations {"reason":"wrong","service":"ocr"}`)
}

// A dialog starts nothing before its user has seen the count.
func TestDialog_WaitsForItsCount(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/cancellations": api.Operation{OperationID: "op1"}})
	form := url.Values{"service": {"ocr"}, "reason": {"wrong"}, "key": {"k"}}
	has(t, b.sendsForm("jobs-cancel", form).Body.String(), `role="alert">Wait for the count.`, "Counting the jobs…")
	if asked := b.requests(); len(asked) > 0 {
		t.Errorf("the API is asked %q", asked)
	}
	form.Set("shown", "12")
	if to := b.sendsForm("jobs-cancel", form).Header().Get("HX-Redirect"); to != "/ui/operations/op1" {
		t.Errorf("it leads to %q", to)
	}
	b.asks(t, `POST /v1/admin/cancellations {"reason":"wrong","service":"ocr"}`)
}

// A form shows an API error about one of its fields next to that field, and any other error at the top.
func TestForm_SaysWhatIsWrongBesideItsField(t *testing.T) {
	t.Parallel()
	refused := &refusal{Status: http.StatusBadRequest, Problem: api.Problem{
		Detail: "/service must be one of embed, ocr.", Errors: []api.Violation{{Pointer: "/service", Message: "must be one of embed, ocr"}},
	}}
	b := newBrowser(t, map[string]any{"POST /v1/admin/pauses": refused, "GET /v1/protocols": api.ProtocolList{}})
	send := func() string {
		values := url.Values{"kind": {"service"}, "name": {"orc"}, "for": {"2h"}, "reason": {"x"}}
		return b.send(http.MethodPost, "/ui/do/dispatch-pause", values).Body.String()
	}
	const beside = `<small class="bad" role="alert">`
	page := send()
	has(t, page, beside+"Name must be one of embed, ocr.</small>", `value="orc" autofocus`, `value="2h"`)
	hasNot(t, page, `class="fault"`)
	refused.Problem.Errors = append(refused.Problem.Errors, api.Violation{Pointer: "/reason"})
	page = send()
	has(t, page, `<p class="fault" role="alert">/service must be one of embed, ocr.`)
	hasNot(t, page, beside)
}

// Fields for names offer those that there are, as far as the user may pause them.
func TestForm_OffersTheNamesThatExist(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/jobs": api.JobPage{}, "GET /v1/admin/failures": api.FailureList{},
		"GET /v1/protocols": api.ProtocolList{Protocols: []api.Protocol{{
			ProtocolID: "ingest_v1", RequestTypes: []string{"doc.ingest"},
			Steps: []api.ProtocolStep{{StepID: "a", Service: "ocr"}, {StepID: "b", Service: "extract"}, {StepID: "c", Service: "ocr"}},
		}}},
	})
	const services = `<datalist id="offers-service"><option value="extract">service</option><option value="ocr">service</option></datalist>`
	for _, page := range []string{"/ui/jobs", "/ui/failures"} {
		has(t, b.get(t, page), services, `<datalist id="offers-type"><option value="doc.ingest">request type</option></datalist>`)
	}
	has(t, b.get(t, "/ui/do/dispatch-pause"), `list="offers-name"`, `<datalist id="offers-name"><option value="ingest_v1">protocol</option>`+
		`<option value="extract">service</option><option value="ocr">service</option></datalist>`)
	b.token = "bound"
	has(t, b.get(t, "/ui/do/dispatch-pause"), `<datalist id="offers-name"><option value="tenant_a">tenant</option></datalist>`)
}
