package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/internal/musttest"
)

// answersOf returns the API's answers about a job with that history.
func answersOf(found api.Job, events ...api.Event) map[string]any {
	path := "GET /v1/jobs/" + found.JobID
	return map[string]any{
		path: found, path + "/events": api.EventPage{Events: events}, path + "/rejected": api.RejectedCallbacks{},
		path + "/webhooks": api.WebhookPage{},
	}
}

// runningJob returns a job whose second step is running.
func runningJob() api.Job {
	w := &api.Waiting{Reason: api.WaitingReasonRunning, Since: at(13), Until: at(110), Detail: "w-1 runs attempt 1"}
	return api.Job{
		JobID: "j1", TenantID: "tenant_a", State: api.JobStateInProgress, CreatedAt: at(0), RequestType: "doc.ingest", CorrelationID: "c & d",
		CurrentStepIndex: 1, CurrentStepID: "ocr", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Waiting: w,
		Steps: []api.Step{
			{StepID: "extract", State: api.StepStateSucceeded, AttemptNo: 1, CompletedAt: at(10), ResultRef: []byte(`{"uri":"s3://r"}`)},
			{
				StepID: "ocr", Service: "o/cr", State: api.StepStateInProgress, AttemptNo: 1, Owner: hostile, WorkID: "j1.1.1", Waiting: w,
				Progress: &api.Progress{Fraction: 0.4, Message: hostile}, Payload: []byte(`{"language":"</pre>"}`),
			},
		},
	}
}

func TestJob_SaysWhyItWaitsAndShowsItsCourse(t *testing.T) {
	t.Parallel()
	answers := answersOf(runningJob(), append(append(ran(0, "extract", 1), happened(10, api.EventTypeStepSucceeded, "extract", 1, "")), ran(10, "ocr", 1)...)...)
	answers["GET /v1/jobs/j1/rejected"] = api.RejectedCallbacks{Rejected: []api.RejectedCallback{
		{StepID: "extract", AttemptNo: 1, Type: "RESULT", Cause: "stale_attempt", Caller: hostile, Count: 3, LastAt: at(50)},
	}}
	answers["GET /v1/work/j1.1.1"] = api.WorkItem{WorkID: "j1.1.1", Directive: []byte(`{"type":"DIRECTIVE"}`)}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/jobs/j1")
	has(t, page, "runs ocr, 40 % done", `its lease ends <time class="in"`, `sse-connect="/ui/jobs/j1"`, `aria-current="step"`,
		"queued 2.0 s, claimed 1.0 s, ran 7.0 s", `<rect class="done" x="2.73%" width="6.36%"`, `class="deadline"`, "stale attempt",
		"4bf92f35…4736", "/ui/jobs?correlation_id=c&#43;%26&#43;d", "Pause…", "Cancel…", "lucius why j1", "&#34;type&#34;: &#34;DIRECTIVE&#34;", "&#34;uri&#34;: &#34;s3://r&#34;")
	has(t, page, `<progress value="0.4"`, `scope="rowgroup">ocr, attempt 1</th>`, `scope="rowgroup">extract, attempt 1</th>`)
	at := 0
	for _, part := range []string{"runs ocr, 40 % done", `class="steps"`, `class="card timeline"`, `class="canvas"`, ">ocr, attempt", ">extract, attempt"} {
		next := strings.Index(page, part)
		if next < at {
			t.Errorf("%s is not below what comes first", part)
		}
		at = next
	}
	hasNot(t, page, hostile, "</pre>\"", "Rerun…", "Resume…")
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/jobs/j1"), "Pause…", "Cancel…")
	if w := b.send(http.MethodGet, "/ui/jobs/j2", nil); w.Code != http.StatusNotFound {
		t.Errorf("an unknown job is answered %d", w.Code)
	}
}

func TestJob_OffersWhatHelps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state  api.JobState
		change func(*api.Job)
		want   []string
		not    string
	}{
		"paused":     {api.JobStatePaused, func(j *api.Job) { wait(j, api.WaitingReasonJobPaused) }, []string{`primary" href="/ui/do/job-resume?job=j1"`, "Cancel…"}, "Pause…"},
		"pausing":    {api.JobStatePausing, func(j *api.Job) { wait(j, api.WaitingReasonPausing) }, []string{"Resume…", "Cancel…"}, "primary\""},
		"cancelling": {api.JobStateCancelling, func(j *api.Job) { wait(j, api.WaitingReasonCancelling) }, nil, "Cancel…"},
		"held": {api.JobStateDispatching, func(j *api.Job) {
			wait(j, api.WaitingReasonScopePaused)
			j.Waiting.BlockedBy = &api.Blocker{Type: api.BlockerTypePause, ID: "service:ocr"}
		}, []string{"/ui/do/dispatch-resume?pause=service%3Aocr", "Held by pause service:ocr", "Pause…"}, ""},
		"running": {api.JobStateInProgress, func(j *api.Job) { j.Steps[1].WorkID = "j1.1.1" },
			[]string{"/ui/do/work-stall?job=j1&amp;work=j1.1.1"}, "work-requeue"},
		"in backoff": {api.JobStateInProgress, func(j *api.Job) {
			wait(j, api.WaitingReasonBackoff)
			j.Steps[1].WorkID, j.Steps[1].State = "j1.1.1", api.StepStateFailedRetry // Its worker has ended the item.
		}, []string{"/ui/do/outbox-retry?job=j1&amp;tenant_id=tenant_a", "Try again now…"}, "/ui/do/work-"},
		"in backoff on Service Bus": {api.JobStateInProgress, func(j *api.Job) {
			wait(j, api.WaitingReasonBackoff)
			j.Steps[1].Owner, j.Steps[1].State = "", api.StepStateFailedRetry
		}, []string{"/ui/do/outbox-retry?job=j1&amp;tenant_id=tenant_a", "Try again now…"}, "/ui/do/work-"},
		"stalled": {api.JobStateInProgress, func(j *api.Job) {
			wait(j, api.WaitingReasonBackoff)
			j.Steps[1].WorkID, j.Steps[1].Owner, j.Steps[1].State = "j1.1.1", "", api.StepStateFailedRetry
		}, []string{"/ui/do/work-requeue?job=j1&amp;work=j1.1.1", "Try again now…"}, "outbox-retry"},
		"withdrawn": {api.JobStatePaused, func(j *api.Job) {
			wait(j, api.WaitingReasonJobPaused)
			j.Steps[1].State = api.StepStateFailedRetry
		}, []string{"Resume…"}, "Try again now…"},
		"no worker": {api.JobStateDispatching, func(j *api.Job) { wait(j, api.WaitingReasonNoWorker) }, []string{`primary" href="/ui/services/o%2Fcr"`, "See the workers"}, ""},
		"failed": {api.JobStateFailedFinal, func(j *api.Job) {
			j.ErrorCode, j.ErrorMessage = "bad_scan", hostile
			end(j)
		}, []string{`primary" href="/ui/do/job-rerun?job=j1"`, "bad_scan: &lt;script&gt;"}, "Cancel…"},
		"failed and rerun": {api.JobStateFailedFinal, func(j *api.Job) {
			j.SupersededBy = "j2"
			end(j)
		}, []string{`primary" href="/ui/jobs/j2"`, "See its rerun", "Rerun…"}, "Cancel…"},
		"succeeded": {api.JobStateSucceeded, end, []string{"The job succeeded", `/ui/do/job-rerun?from=start&amp;job=j1"`}, "Cancel…"},
	} {
		found := runningJob()
		found.State, found.Steps[1].WorkID = test.state, ""
		test.change(&found)
		page := newBrowser(t, answersOf(found)).get(t, "/ui/jobs/j1")
		t.Log(name)
		has(t, page, test.want...)
		hasNot(t, page, hostile)
		if test.not != "" {
			hasNot(t, page, test.not)
		}
		if live := strings.Contains(page, "sse-connect"); live == !found.CompletedAt.IsZero() {
			t.Errorf("%s: live is %t", name, live)
		}
	}
}

// A step that was withdrawn for a pause of its job is to be tried again, but says that it is paused.
func TestJob_SaysOfAPausedStepThatItIsPaused(t *testing.T) {
	t.Parallel()
	found := runningJob()
	found.State, found.Steps[1].State = api.JobStatePaused, api.StepStateFailedRetry
	wait(&found, api.WaitingReasonJobPaused)
	page := newBrowser(t, answersOf(found, append(ran(10, "ocr", 1), happened(40, api.EventTypeStepFailedRetry, "ocr", 1, ""),
		api.Event{Type: api.EventTypeJobPaused, Object: api.EventObjectJob, From: "PAUSING", To: "PAUSED", At: at(40)})...)).get(t, "/ui/jobs/j1")
	has(t, page, `<li class="warn" aria-current="step"><b>ocr</b> <span class="pill warn">PAUSED</span>`, `<rect class="paused"`, "stopped after 27 s, paused for <time")
	hasNot(t, page, "FAILED_RETRY", "backoff ")
}

func wait(j *api.Job, reason api.WaitingReason) { j.Waiting.Reason = reason }

func end(j *api.Job) {
	j.Waiting, j.Steps[1].Waiting, j.CompletedAt = nil, nil, at(100)
}

// An ended job is live until its webhooks are delivered.
func TestJob_ShowsItsWebhooks(t *testing.T) {
	t.Parallel()
	found := runningJob()
	found.State, found.Steps[1].WorkID = api.JobStateSucceeded, ""
	end(&found)
	answers := answersOf(found)
	answers["GET /v1/jobs/j1/webhooks"] = api.WebhookPage{Webhooks: []api.Webhook{{WebhookID: "j1.0", TenantID: "tenant_a", URL: "https://a/?" + hostile, State: api.WebhookStatePending, LastError: "503"}}}
	page := newBrowser(t, answers).get(t, "/ui/jobs/j1")
	has(t, page, "https://a/?&lt;script&gt;", "PENDING", "sse-connect", "/ui/do/webhook-replay?tenant_id=tenant_a&amp;webhook=j1.0")
	hasNot(t, page, hostile)
}

func TestJob_ReadsALongHistoryInPages(t *testing.T) {
	t.Parallel()
	answers := answersOf(runningJob())
	page := api.EventPage{NextPageToken: "next"}
	for i := range 1000 {
		page.Events = append(page.Events, happened(float64(i)/100, api.EventTypeStepExtended, "ocr", 1, fmt.Sprint("entry ", i)))
	}
	answers["GET /v1/jobs/j1/events"] = page
	answers["GET /v1/work/j1.1.1"] = refuse(http.StatusNotFound, "It is purged.")
	b := newBrowser(t, answers)
	has(t, b.get(t, "/ui/jobs/j1"), "lucius jobs events j1", "entry 999")
	if asked := strings.Join(b.requests(), "\n"); strings.Count(asked, "/events?") != 2 || !strings.Contains(asked, "limit=1000&page_token=next") {
		t.Errorf("the API was asked %s", asked)
	}
}

func TestJobChanges_FollowsTheHistory(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	b := newBrowser(t, map[string]any{"GET /v1/jobs/j1/events": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != eventStream {
			t.Errorf("it asks for %q", r.Header.Get("Accept"))
		}
		for range more {
			fmt.Fprint(w, "data: {}\n\n")
		}
	})})
	r := httptest.NewRequest(http.MethodGet, "/ui/jobs/j1", nil)
	r.SetPathValue("id", "j1")
	user, err := b.console.request(r)
	musttest.NoError(t, err)
	changes := jobChanges(user)
	for range 3 {
		more <- struct{}{}
		if _, open := <-changes; !open {
			t.Fatal("it ends too early")
		}
	}
	close(more)
	for range changes { // until it is closed
	}
	b.set("GET /v1/jobs/j1/events", refuse(http.StatusTooManyRequests, "There are too many streams."))
	for range jobChanges(user) {
		t.Error("a refused stream reports a change")
	}
}

// A page with a stream of changes is read after each change, and otherwise rarely, until it
// is final. In between it is rendered from what it has, so that its times move on.
func TestLive_RendersWhenThePageSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, quiet())
		changes := make(chan struct{})
		var renders, reads atomic.Int64
		p := &page{live: true, changes: func(*request) <-chan struct{} { return changes }, show: func(r *request) (view, error) {
			renders.Add(1)
			n := reads.Load()
			if r.fresh {
				n = reads.Add(1)
			}
			text := fmt.Sprint("rendered ", n)
			return view{Title: "x", Template: "attention", Data: attentionPage{Findings: []diagnosis.Finding{{Subject: text}}}, Still: n == 5}, nil
		}}
		r := httptest.NewRequest(http.MethodGet, "/ui/x", nil)
		r.Header.Set("Accept", eventStream)
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			b.console.serve(p).ServeHTTP(w, r)
			close(done)
		}()
		expect := func(want int64) {
			t.Helper()
			synctest.Wait()
			if got := reads.Load(); got != want {
				t.Errorf("it was read %d times, not %d", got, want)
			}
		}
		expect(1)
		changes <- struct{}{}
		expect(2)
		time.Sleep(liveRarely)
		expect(3)
		if got := renders.Load(); got != 2+int64(liveRarely/liveInterval) {
			t.Errorf("it was rendered %d times", got)
		}
		close(changes)
		expect(4) // Once: the page may be final now.
		time.Sleep(liveRarely)
		<-done
		if body := w.Body.String(); !strings.Contains(body, "rendered 5") || !strings.HasSuffix(body, "event: end\ndata:\n\n") {
			t.Errorf("the stream is %s", body)
		}
	})
}

// Between changes the timeline and its text move on without a read.
func TestJob_ItsTimelineMovesWithoutARead(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, answersOf(runningJob(), ran(0, "extract", 1)...))
	r := httptest.NewRequest(http.MethodGet, "/ui/jobs/j1", nil)
	r.SetPathValue("id", "j1")
	user, err := b.console.request(r)
	musttest.NoError(t, err)
	user.live, user.fresh = true, true
	shown := func() jobPage {
		t.Helper()
		v, err := job(user)
		musttest.NoError(t, err)
		return v.Data.(jobPage)
	}
	first, asked := shown(), len(b.requests())
	user.fresh, user.now = false, user.now.Add(10*time.Second)
	second := shown()
	if got := len(b.requests()); got != asked {
		t.Errorf("the API is asked again: %q", b.requests()[asked:])
	}
	if reflect.DeepEqual(first.Timeline, second.Timeline) || !reflect.DeepEqual(first.Events, second.Events) {
		t.Error("the timeline has not moved, or the history has changed")
	}
	if user.fresh = true; len(shown().Events) == 0 || len(b.requests()) == asked {
		t.Error("nothing is read after a change")
	}
}

func TestJobActions_AskAndThenDo(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"pause", "resume"} {
		b := newBrowser(t, map[string]any{"POST /v1/jobs/j1:" + verb: api.Job{JobID: "j1"}})
		has(t, b.get(t, "/ui/do/job-"+verb+"?job=j1"), titled(verb)+" job j1?", "lucius jobs "+verb+" j1")
		if to := b.submits(t, "job-"+verb, url.Values{"job": {"j1"}, "reason": {"why"}}); to != "/ui/jobs/j1" {
			t.Errorf("%s leads to %s", verb, to)
		}
		b.asks(t, `POST /v1/jobs/j1:`+verb+` {"reason":"why"}`)
	}
	b := newBrowser(t, map[string]any{"GET /v1/jobs/j1": runningJob(), "POST /v1/jobs/j1:rerun": api.CommandAccepted{JobID: "j2"}})
	has(t, b.get(t, "/ui/do/job-rerun?job=j1"), "<option selected>failed</option>", "<option>ocr</option>", "lucius jobs rerun j1 --newest --from failed")
	if to := b.submits(t, "job-rerun", url.Values{"job": {"j1"}, "from": {"start"}}); to != "/ui/jobs/j2" {
		t.Errorf("a rerun leads to %s", to)
	}
	b.asks(t, `POST /v1/jobs/j1:rerun {"from":"start","newest":true}`)
	corrected := url.Values{
		"job": {"j1"}, "from": {"failed"}, "from_step": {"ocr"}, "payload_patch": {`{"language": "de"}`}, "protocol": {"current"},
		"resolve:extract": {"s3://b/hand?a=1"}, "callbacks": {"none"},
	}
	has(t, b.get(t, "/ui/do/job-rerun?"+corrected.Encode()),
		`lucius jobs rerun j1 --newest --from-step ocr --patch &#39;{&#34;language&#34;: &#34;de&#34;}&#39; --protocol current --no-callbacks --resolve &#39;extract=s3://b/hand?a=1&#39;`)
	if to := b.submits(t, "job-rerun", corrected); to != "/ui/jobs/j2" {
		t.Errorf("a corrected rerun leads to %s", to)
	}
	b.asks(t, `POST /v1/jobs/j1:rerun {"callbacks":"none","from_step":"ocr","newest":true,"payload_patch":{"language":"de"},"protocol":"current","resolve":[{"output_ref":{"uri":"s3://b/hand?a=1"},"step_id":"extract"}]}`)
	wrong := b.send(http.MethodPost, "/ui/do/job-rerun", url.Values{"job": {"j1"}, "payload_patch": {"{"}})
	has(t, wrong.Body.String(), `value="{" autofocus><small class="bad" role="alert">The change of the payload is no JSON.</small>`)
	b.set("POST /v1/jobs/j1:rerun", refuse(http.StatusConflict, "The job has not ended."))
	w := b.send(http.MethodPost, "/ui/do/job-rerun", url.Values{"job": {"j1"}, "reason": {"it's off"}})
	has(t, w.Body.String(), "The job has not ended.", `lucius jobs rerun j1 --newest --from failed --reason &#39;it&#39;\&#39;&#39;s off&#39;`)
}

// A job whose current step the API omits is shown without it.
func TestJob_WithoutItsCurrentStep(t *testing.T) {
	t.Parallel()
	for _, index := range []int{-1, 2} {
		one := runningJob()
		one.CurrentStepIndex = index
		b := newBrowser(t, map[string]any{
			"GET /v1/jobs/j1": one, "GET /v1/jobs/j1/events": api.EventPage{}, "GET /v1/jobs/j1/rejected": api.RejectedCallbacks{},
		})
		page := b.get(t, "/ui/jobs/j1")
		has(t, page, "IN_PROGRESS", "/ui/do/job-cancel?job=j1")
		hasNot(t, page, "/ui/do/work-stall")
	}
}

// scheduledJob returns a job that waits for its date.
func scheduledJob() api.Job {
	one := runningJob()
	w := &api.Waiting{
		Reason: api.WaitingReasonScheduled, Since: at(0), Until: at(7300),
		Detail: "the job begins at " + at(7300).String() + "; it expires at " + at(9000).String() + " unless a worker has started it",
	}
	one.State, one.Waiting, one.NotBefore, one.NotAfter, one.CurrentStepIndex = api.JobStateQueued, w, at(7300), at(9000), 0
	one.Steps[0] = api.Step{StepID: "extract", Service: "extract", State: api.StepStatePending, Waiting: w}
	one.Steps[1] = api.Step{StepID: "ocr", StepIndex: 1, Service: "o/cr", State: api.StepStatePending}
	return one
}

func TestJob_SaysThatItWaitsForItsDate(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, answersOf(scheduledJob()))
	has(t, b.get(t, "/ui/jobs/j1"), `<p class="why">The job begins at `+at(7300).String()+`, <time class="in"`, "it expires <time",
		"<dt>not before</dt>", "<dt>not after</dt>", `<li class="warn" aria-current="step">`, `<b>extract</b>`, "● scheduled",
		"/ui/do/job-reschedule?begins=now&amp;job=j1", "Begin now…", "Reschedule…", "Pause…", "Cancel…")
	paused := scheduledJob()
	paused.State, paused.Waiting.Reason, paused.Waiting.Until = api.JobStatePaused, api.WaitingReasonJobPaused, api.Time{}
	b = newBrowser(t, answersOf(paused))
	has(t, b.get(t, "/ui/jobs/j1"), "Resume…", "Reschedule…")
	b = newBrowser(t, answersOf(runningJob()))
	hasNot(t, b.get(t, "/ui/jobs/j1"), "Reschedule…", "<dt>not before</dt>")
}

func TestReschedule_SendsTheDatesOfItsForm(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/jobs/j1:reschedule": api.Job{JobID: "j1"}})
	has(t, b.get(t, "/ui/do/job-reschedule?job=j1&begins=now"), "Reschedule job j1?", "<option selected>now</option>", "lucius jobs reschedule j1 --now<")
	for _, test := range []struct {
		form url.Values
		sent string
	}{
		{url.Values{"begins": {"now"}, "reason": {"why"}}, `{"delay_seconds":0,"reason":"why"}`},
		{url.Values{"at": {"2026-01-28T03:00:00+01:00"}, "expiry": {"removed"}}, `{"never_expires":true,"not_before":"2026-01-28T02:00:00.000Z"}`},
		{url.Values{"in": {"2d"}, "expires": {"2026-01-31T02:00:00Z"}}, `{"delay_seconds":172800,"not_after":"2026-01-31T02:00:00.000Z"}`},
		{url.Values{"in": {"90 m"}}, `{"delay_seconds":5400}`},
	} {
		test.form.Set("job", "j1")
		if to := b.submits(t, "job-reschedule", test.form); to != "/ui/jobs/j1" {
			t.Errorf("%v leads to %s", test.form, to)
		}
		b.asks(t, "POST /v1/jobs/j1:reschedule "+test.sent)
	}
	b.submits(t, "job-reschedule", url.Values{"job": {"j1"}, "expires": {"4h"}})
	has(t, strings.Join(b.requests(), "\n"), `POST /v1/jobs/j1:reschedule {"not_after":"`)
	for _, test := range []struct {
		form url.Values
		says string
	}{
		{url.Values{}, "Say what to change"},
		{url.Values{"begins": {"now"}, "in": {"1h"}}, "choose one."},
		{url.Values{"at": {"soon"}}, "The new date is a time"},
		{url.Values{"in": {"soon"}}, "How long it waits is a number with a unit"},
		{url.Values{"expires": {"-1h"}}, "It expires by a time"},
		{url.Values{"expires": {"1h"}, "expiry": {"removed"}}, "either set or removed"},
	} {
		test.form.Set("job", "j1")
		has(t, b.send(http.MethodPost, "/ui/do/job-reschedule", test.form).Body.String(), test.says)
	}
	b.set("POST /v1/jobs/j1:reschedule", refuse(http.StatusConflict, "The job has begun."))
	has(t, b.send(http.MethodPost, "/ui/do/job-reschedule", url.Values{"job": {"j1"}, "in": {"1h"}}).Body.String(),
		"The job has begun.", `value="1h"`, "lucius jobs reschedule j1 --in 1h<")
}
