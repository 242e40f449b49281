package console

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// What a rerun would do is shown in its form, which keeps what was entered, and nothing is done.
func TestRerun_ShowsWhatChangesFirst(t *testing.T) {
	t.Parallel()
	plan := api.RerunPreview{
		DryRun: true, JobID: "j1", ProtocolID: "ingest", ProtocolVersion: "3", ExistingJobID: "j7",
		Steps: []api.PlannedStep{
			{StepID: "extract", Outcome: api.StepOutcomeCarried}, {StepID: "ocr", Outcome: api.StepOutcomeResolved}, {StepID: "index"},
		},
		Changes: []api.CommandChange{
			{Pointer: "/payload/language", Before: json.RawMessage(`"en"`), After: json.RawMessage(`"de"`)},
			{Pointer: "/payload/<b>", Before: json.RawMessage(`3`)}, {Pointer: "/payload/fast", After: json.RawMessage(`true`)},
		},
	}
	b := newBrowser(t, map[string]any{"GET /v1/jobs/j1": runningJob(), "POST /v1/jobs/j1:rerun": plan})
	look := url.Values{
		"job": {"j1"}, "from": {"failed"}, "payload_patch": {`{"language":"<b>"}`}, "resolve:extract": {"s3://b/hand"}, "reason": {"why"}, "look": {"1"},
	}
	for _, headers := range [][]string{nil, {"HX-Request", "true", "HX-Target", "dialog"}} {
		w := b.send(http.MethodPost, "/ui/do/job-rerun", look, headers...)
		b.asks(t, `POST /v1/jobs/j1:rerun {"dry_run":true,"from":"failed","newest":true,"payload_patch":{"language":"\u003cb\u003e"},`+
			`"resolve":[{"output_ref":{"uri":"s3://b/hand"},"step_id":"extract"}]}`)
		page := w.Body.String()
		has(t, page, "The same rerun exists already: job <a href=\"/ui/jobs/j7\">", "ingest, version 3",
			"<b>extract</b> <small>taken over</small>", "<b>ocr</b> <small>done by hand</small>", "<b>index</b> <small>runs</small>",
			"<code>/payload/language</code> <del>&#34;en&#34;</del> → <ins>&#34;de&#34;</ins>",
			"<code>/payload/&lt;b&gt;</code> <del>3</del> → removed", "<code>/payload/fast</code> is new → <ins>true</ins>",
			`value="{&#34;language&#34;:&#34;&lt;b&gt;&#34;}"`, `<details open>`, `value="s3://b/hand"`, `name="reason" data-flag="reason" value="why"`,
			`formnovalidate>Show what changes</button>`, ">Rerun the job</button>")
		hasNot(t, page, `type="hidden" name="look"`)
	}
	plan.Changes, plan.ExistingJobID = nil, ""
	b.set("POST /v1/jobs/j1:rerun", plan)
	page := b.sendsForm("job-rerun", look).Body.String()
	has(t, page, "Nothing changes in the command.")
	hasNot(t, page, "exists already")
	b.set("POST /v1/jobs/j1:rerun", api.RerunPreview{JobID: "j8", Live: true})
	has(t, b.sendsForm("job-rerun", look).Body.String(), "Its newest rerun is still running: <a href=\"/ui/jobs/j8\">")
}

// A rerun with corrections is not answered by the page of an earlier one, which may lack them.
func TestRerun_SaysThatItsCorrectionsMadeNoOther(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/jobs/j1": runningJob(), "POST /v1/jobs/j1:rerun": api.CommandAccepted{JobID: "j8", Replayed: true},
	})
	for name, value := range map[string]string{
		"payload_patch": `{"a":1}`, "from_step": "ocr", "callbacks": "none", "protocol": "current", "priority": "bulk", "resolve:extract": "s3://b/hand",
	} {
		page := b.sendsForm("job-rerun", url.Values{"job": {"j1"}, "from": {"failed"}, name: {value}}).Body.String()
		has(t, page, `role="alert">No other rerun was made: job j8 exists already`)
	}
	if to := b.submits(t, "job-rerun", url.Values{"job": {"j1"}, "from": {"start"}}); to != "/ui/jobs/j8" {
		t.Errorf("without corrections it leads to %q", to)
	}
}

// What a dry run refuses is said beside the fields that it is about.
func TestRerun_SaysBesideItsFieldsWhatIsRefused(t *testing.T) {
	t.Parallel()
	refused := func(pointers ...string) *refusal {
		r := &refusal{Status: http.StatusUnprocessableEntity, Problem: api.Problem{Detail: pointers[0] + " is wrong."}}
		for _, pointer := range pointers {
			r.Problem.Errors = append(r.Problem.Errors, api.Violation{Pointer: pointer, Message: "is wrong"})
		}
		return r
	}
	const beside = `<small class="bad" role="alert">`
	b := newBrowser(t, map[string]any{"GET /v1/jobs/j1": runningJob()})
	for _, test := range []struct {
		of   *refusal
		says []string
	}{
		{refused("/payload/language"), []string{beside + "/payload/language is wrong.</small>"}},
		{refused("/payload/a", "/payload/b"), []string{beside + "/payload/a is wrong. /payload/b is wrong.</small>"}},
		{refused("/payload_patch"), []string{beside + "Change of the payload is wrong.</small>"}},
		{refused("/resolve/0/output_ref/uri", "/payload/a"), []string{beside + "Output of extract is wrong.", beside + "/payload/a is wrong."}},
		{refused("/payload/a", "/tags"), []string{`<p class="fault" role="alert">/payload/a is wrong.</p>`}},
		{&refusal{Status: http.StatusConflict, Problem: api.Problem{Detail: "No step is left."}}, []string{`role="alert">No step is left.</p>`}},
	} {
		b.set("POST /v1/jobs/j1:rerun", test.of)
		has(t, b.sendsForm("job-rerun", url.Values{"job": {"j1"}, "resolve:extract": {"x"}, "look": {"1"}}).Body.String(), test.says...)
	}
}

// Jobs that succeeded are selected up to a time, which the form keeps.
func TestRetry_RepeatsJobsThatSucceeded(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"POST /v1/admin/retries": api.OperationPreview{Kind: api.OperationKindRetry, Matched: 200, Sample: []api.OperationSample{
			{JobID: "j1", State: api.JobStateSucceeded, FirstStep: "embed", Changes: []api.CommandChange{
				{Pointer: "/payload/model", Before: json.RawMessage(`"v2"`), After: json.RawMessage(`"v3"`)},
			}},
			{JobID: "j2", Refused: &api.Refusal{Code: "payload_invalid", Errors: []api.Violation{{Pointer: "/payload/model", Message: "must be " + hostile}}}},
			{JobID: "j3", Refused: &api.Refusal{Code: "nothing_to_run", Detail: "No step is left."}},
		}},
	})
	const target = "/ui/do/retry?state=SUCCEEDED&tenant_id=acme"
	dialog := b.send(http.MethodGet, target, nil, "HX-Target", "dialog").Body.String()
	has(t, dialog, "Rerun the jobs that succeeded?", "jobs accepted before 2026-01-27 10:01:30 UTC", "<option selected>start</option>",
		"lucius retry --tenant acme --created-before 2026-01-27T10:01:30.000Z --state SUCCEEDED --from start",
		`hx-get="/ui/do/retry?created_before=2026-01-27T10%3A01%3A30.000Z&amp;state=SUCCEEDED&amp;tenant_id=acme"`)
	before := hidden(t, dialog, "created_before")
	form := url.Values{
		"state": {"SUCCEEDED"}, "tenant_id": {"acme"}, "created_before": {before}, "from": {"start"}, "payload_patch": {`{"model":"v3"}`},
		"protocol": {"current"}, "rate": {"5"}, "look": {"1"},
	}
	const asked = `"created_before":"2026-01-27T10:01:30.000Z",`
	const edited = `"from":"start",%"payload_patch":{"model":"v3"},"protocol":"current","rate_per_second":5,%"state":"SUCCEEDED","tenant_id":"acme"}`
	b.console.config.Now = func() time.Time { return now.Add(time.Hour) }
	page := b.sendsForm("retry", form).Body.String()
	b.asks(t, "POST /v1/admin/retries {"+asked+`"dry_run":true,`+strings.ReplaceAll(edited, "%", ""))
	has(t, page, "200 jobs match, such as these.", "from embed", "<del>&#34;v2&#34;</del> → <ins>&#34;v3&#34;</ins>", ">Rerun 200 jobs</button>",
		"left out: payload_invalid", "/payload/model must be &lt;script&gt;", "left out: nothing_to_run</span> No step is left.")
	hasNot(t, page, hostile, "Counting")
	if kept := hidden(t, page, "created_before"); kept != before {
		t.Errorf("the time moves on to %s", kept)
	}
	for field, says := range map[string]string{"rate": "Jobs per second is a number", "payload_patch": "is no JSON"} {
		wrong := url.Values{"state": {"SUCCEEDED"}, field: {"{"}, "look": {"1"}}
		has(t, b.sendsForm("retry", wrong).Body.String(), `value="{" autofocus><small class="bad" role="alert">`, says)
	}
	b.set("POST /v1/admin/retries", api.Operation{OperationID: "op1"})
	form.Del("look")
	form.Set("reason", "a new model")
	if to := b.submits(t, "retry", form); to != "/ui/operations/op1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, "POST /v1/admin/retries {"+asked+strings.Replace(strings.Replace(edited, "%", "", 1), "%", `"reason":"a new model",`, 1))
	b.submits(t, "retry", url.Values{"ticked": {"1"}, "job": {"j1"}, "state": {"SUCCEEDED"}})
	b.asks(t, `POST /v1/admin/retries {"from":"start","job_ids":["j1"]}`)
	// A time is no selection, whether the user chose it or not.
	for _, all := range []string{"", "&created_before=2026-01-27T10:01:30Z"} {
		has(t, b.send(http.MethodGet, "/ui/do/retry?state=SUCCEEDED"+all, nil, "HX-Target", "dialog").Body.String(),
			"lucius retry --all --created-before 2026-01-27T")
	}
	b.submits(t, "retry", url.Values{"state": {"SUCCEEDED"}, "created_before": {before}})
	b.asks(t, "POST /v1/admin/retries {\"all\":true,"+asked+`"from":"start","state":"SUCCEEDED"}`)
	b.submits(t, "retry", url.Values{"state": {"CANCELLED"}, "from_step": {"ocr"}, "callbacks": {"none"}})
	b.asks(t, `POST /v1/admin/retries {"all":true,"callbacks":"none","from_step":"ocr","state":"CANCELLED"}`)
}

// A dialog whose request was refused counts the jobs that it is for.
func TestRetry_CountsTheSameJobsAfterARefusal(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/retries": refuse(http.StatusConflict, "Not now.")})
	form := url.Values{"service": {"ocr"}, "payload_patch": {`{"a":1}`}, "reason": {"why"}, "key": {"k"}, "shown": {"1"}}
	page := b.sendsForm("retry", form).Body.String()
	has(t, page, "Not now.", `hx-get="/ui/do/retry?key=k&amp;payload_patch=%7B%22a%22%3A1%7D&amp;service=ocr"`)
}

func TestOperation_SaysWhatItRepeatsAndGoesOn(t *testing.T) {
	t.Parallel()
	op := api.Operation{
		OperationID: "op1", Kind: api.OperationKindRetry, State: api.OperationStateDone, Matched: 200, Truncated: true, RatePerSecond: 5,
		From: api.RerunFromStart, PayloadPatch: json.RawMessage(`{"model":"v3"}`), Protocol: api.RerunProtocolCurrent, Callbacks: api.RerunCallbacksNone,
		Filter: api.OperationFilter{State: api.JobStateSucceeded, TenantID: "acme", CreatedBefore: ago(time.Minute)},
	}
	b := newBrowser(t, map[string]any{
		"GET /v1/admin/operations/op1": op, "GET /v1/admin/operations": api.OperationPage{Operations: []api.Operation{op}},
		"POST /v1/admin/retries": api.OperationPreview{Matched: 1},
	})
	says := html.EscapeString(`Repeats 200 jobs that succeeded, from the first step, with the patch {"model":"v3"}, on the current protocol, without callbacks`)
	has(t, b.get(t, "/ui/operations"), says)
	page := b.get(t, "/ui/operations/op1")
	has(t, page, says, "Go on with the jobs that follow…")
	rest := html.UnescapeString(strings.Split(strings.Split(page, `href="/ui/do/retry`)[1], `"`)[0])
	has(t, b.get(t, "/ui/do/retry"+rest), "goes on with the jobs that follow those of operation op1")
	b.asks(t, `POST /v1/admin/retries {"after":"op1","callbacks":"none","created_before":"2026-01-27T10:01:30.000Z","dry_run":true,"from":"start",`+
		`"payload_patch":{"model":"v3"},"protocol":"current","rate_per_second":5,"state":"SUCCEEDED","tenant_id":"acme"}`)
	for want, change := range map[string]func(*api.Operation){
		"Repeats 1 job that failed, from the step ocr": func(o *api.Operation) {
			*o = api.Operation{Kind: api.OperationKindRetry, Matched: 1, FromStep: "ocr"}
		},
		"Repeats 2 jobs selected by id, from the failed step": func(o *api.Operation) {
			*o = api.Operation{Kind: api.OperationKindRetry, Matched: 2, Named: true}
		},
		"Repeats 2 jobs that had been cancelled, from the failed step": func(o *api.Operation) {
			*o = api.Operation{Kind: api.OperationKindRetry, Matched: 2, Filter: api.OperationFilter{State: api.JobStateCancelled}}
		},
		"": func(o *api.Operation) { *o = api.Operation{Kind: api.OperationKindPause, Matched: 2} },
	} {
		other := op
		if change(&other); repeats(&other) != want || following(&other) != "" {
			t.Errorf("it says %q, not %q, and leads to %q", repeats(&other), want, following(&other))
		}
	}
	op.State = api.OperationStateRunning
	b.set("GET /v1/admin/operations/op1", op)
	hasNot(t, b.get(t, "/ui/operations/op1"), "Go on with")
}
