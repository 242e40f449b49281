package console

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
	"github.com/lucius-project/lucius/internal/musttest"
)

// pictured compares the picture of the canvas with a golden file.
func pictured(t *testing.T, name string, c *canvas) {
	t.Helper()
	templates, err := parseTemplates(&Config{Now: func() time.Time { return now }})
	musttest.NoError(t, err)
	var got bytes.Buffer
	musttest.NoError(t, templates.ExecuteTemplate(&got, "canvas", c))
	musttest.Golden(t, filepath.Join("testdata", name), got.String(), *update)
}

func perMinute(count, failed int) api.Rates {
	r := api.Rate{Count: count, Failed: failed, OverSeconds: 60, PerSecond: float64(count) / 60, ErrorRate: diagnosis.Share(failed, count)}
	return api.Rates{LastMinute: r, LastHour: api.Rate{Count: 60 * count, Failed: 60 * failed}}
}

// busyServer is a server with one service in trouble, and one that is paused.
func busyServer() *situation {
	pending := 0.4
	extract := api.Service{Service: "extract", StepType: "EXTRACT", Backlog: 18, Running: 30, Claimed: 1, WorkersTotal: 6, Attempts: perMinute(2500, 3)}
	extract.Workers, extract.OldestWaitingAt = []api.ServiceWorker{{Owner: "x-1", LastPollAt: ago(0)}}, ago(200*time.Millisecond)
	index := api.Service{Service: "index", StepType: "INDEX", Dispatching: 12, Backoff: 4}
	return &situation{Situation: diagnosis.Situation{
		Now: now, Services: []api.Service{extract, index, diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)},
		Pauses: []api.Pause{{PauseID: "service:index", Service: "index", State: api.PauseStatePaused}},
		Overview: &api.Overview{
			Bus: api.BusQueue, Jobs: map[string]int{"IN_PROGRESS": 96, "DISPATCHING": 3012, "PAUSED": 120}, Accepted: perMinute(2496, 0),
			Refused: perMinute(8, 8), Published: perMinute(5000, 0), Started: perMinute(2502, 0), OldestJobAt: ago(2 * time.Hour),
			OldestRunningAt: ago(90 * time.Second), NextRetryAt: ago(-3 * time.Second), OldestPendingSeconds: &pending, Ended: map[string]api.Rates{
				"SUCCEEDED": perMinute(2390, 0), "FAILED_FINAL": perMinute(3, 3), "CANCELLED": perMinute(0, 0),
			},
		},
	}}
}

func TestFlow_Canvas(t *testing.T) {
	t.Parallel()
	c := flowCanvas(busyServer())
	pictured(t, "flow.svg", &c)
}

func TestFlow_FoldsQuietServices(t *testing.T) {
	t.Parallel()
	s := busyServer()
	for i := range 20 {
		quiet := api.Service{Service: fmt.Sprintf("quiet-%02d", i), StepType: "Q"}
		if i == 7 {
			quiet.Attempts = perMinute(60, 0)
		}
		s.Services = append(s.Services, quiet)
	}
	shown := s.flowServices()
	var titles []string
	for _, one := range shown {
		titles = append(titles, one.Title+": "+one.Text)
	}
	want := "extract: 18 ready · 31 run · 6 workers · 200 ms · 2,500/min, index: 0 ready · paused · 0/min, " +
		"ocr: 3,000 ready · no worker · 4 min · 0/min, quiet-00: 0 ready · 0/min, quiet-01: 0 ready · 0/min, " +
		"quiet-02: 0 ready · 0/min, quiet-07: 0 ready · 60/min, 16 quieter services: 0 ready · 0/min"
	if got := strings.Join(titles, ", "); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Of several pauses of a service, the one that ends last counts.
func TestFlow_SaysHowLongAServiceIsPaused(t *testing.T) {
	t.Parallel()
	s := busyServer()
	s.Pauses = []api.Pause{
		{PauseID: "all", State: api.PauseStatePaused, Until: ago(-time.Hour)},
		{PauseID: "service:extract", Service: "extract", State: api.PauseStatePaused},
		{PauseID: "service:index", Service: "index", State: api.PauseStatePaused, Until: ago(-2 * time.Hour)},
	}
	var got []string
	for _, one := range s.serviceStates() {
		got = append(got, one.Service+": "+one.Trouble)
	}
	if want := "extract: paused, index: paused for 2 h more, ocr: no worker"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// On Service Bus there is a relay, and the server does not know of claims.
func TestFlow_OnServiceBus(t *testing.T) {
	t.Parallel()
	s := busyServer()
	s.Overview.Bus, s.Overview.Published = api.BusServiceBus, perMinute(5000, 40)
	s.Overview.OldestWaiting.At = ago(251 * time.Second)
	s.Overview.Refused = perMinute(2496, 2496)
	c := flowCanvas(s)
	got := map[string]string{}
	for _, node := range c.Nodes {
		got[node.Title] = strings.Join([]string{node.Big, node.Text, node.More, node.Level}, ", ")
	}
	for title, want := range map[string]string{
		"Relay": "4,960/min, 40 rejected in 1 min, 2,400 in 1 h, ", "AWAITING_ACK": "3,018, published · oldest 4 min, 2,502/min start, ",
		"Checks": "50 %, refused · 2,496/min, 149,760 refused in 1 h, bad",
	} {
		if got[title] != want {
			t.Errorf("%s is %q, want %q", title, got[title], want)
		}
	}
	if notes := strings.Join(s.flowNotes(), " "); !strings.Contains(notes, "cannot be told from") || strings.Contains(notes, "pull queue") {
		t.Errorf("got the notes %s", notes)
	}
}

func TestFlow_CanvasOfAProtocol(t *testing.T) {
	t.Parallel()
	p := api.Protocol{ProtocolID: "p"}
	for _, step := range []string{"extract", "ocr", "embed", "index", "notify-the-owner-of-the-document"} {
		p.Steps = append(p.Steps, api.ProtocolStep{StepID: step, StepType: strings.ToUpper(step), Service: step})
	}
	s := busyServer()
	s.protocol, s.ended = "p", map[string]api.Rates{
		string(api.JobStateSucceeded): perMinute(2400, 0), string(api.JobStateFailedFinal): perMinute(3, 3),
	}
	c := protocolCanvas(s, &p)
	pictured(t, "flow-protocol.svg", &c)
}

func TestFlow_SaysWhereTheTimeGoes(t *testing.T) {
	t.Parallel()
	work := func(service string, backlog, running int, perMinute, wait, run float64) api.Service {
		of := api.Service{Service: service, StepType: "S", Backlog: backlog, Running: running}
		of.Attempts.LastMinute.PerSecond = perMinute / 60
		of.QueueWaitSeconds = api.Percentiles{Count: 10, P50: wait, P95: 2 * wait}
		of.DurationSeconds = api.Percentiles{Count: 10, P50: run, P95: 3 * run}
		return of
	}
	p := api.Protocol{Steps: []api.ProtocolStep{
		{StepID: "a", StepType: "S", Service: "a"}, {StepID: "b", StepType: "S", Service: "b"}, {StepID: "c", StepType: "S", Service: "c"},
		{StepID: "d", StepType: "S", Service: "d"},
	}}
	s := &situation{Situation: diagnosis.Situation{Now: now, Services: []api.Service{
		work("a", 10, 1, 60, 2, 8), work("b", 3000, 5, 10, 20, 30), work("c", 7, 0, 0, 0, 40),
	}}}
	got := s.waterfallOf(&p, false)
	want := waterfall{Total: 100 * time.Second, Rows: []waterfallRow{
		{
			StepID: "a", URL: "/ui/services/a", Waits: "2.0 s, p95 4.0 s", Runs: "8.0 s, p95 24 s", Share: "10 %",
			Backlog: "10 wait, done in about 10 s if nothing new arrives", Wait: waterfallBar{0, 7, 7}, Run: waterfallBar{7, 27, 53},
		},
		{
			StepID: "b", URL: "/ui/services/b", Waits: "20 s, p95 40 s", Runs: "30 s, p95 1 min 30 s", Share: "50 %",
			Backlog: "3,000 wait, done in about 5 h if nothing new arrives; about 20 more concurrent attempts would finish it within the hour",
			Wait:    waterfallBar{33, 67, 67}, Run: waterfallBar{100, 100, 200},
		},
		{
			StepID: "c", URL: "/ui/services/c", Waits: "0 ms, p95 0 ms", Runs: "40 s, p95 2 min", Share: "40 %",
			Backlog: "7 wait, and no attempt has ended in the last minute", Wait: waterfallBar{200, 0, 0}, Run: waterfallBar{200, 133, 267},
		},
		{StepID: "d", URL: "/ui/services/d", Waits: "–", Runs: "–", Wait: waterfallBar{X: 333}, Run: waterfallBar{X: 333}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFlow_Page(t *testing.T) {
	t.Parallel()
	s := busyServer()
	s.Services[1].Service = hostile
	answers := quiet()
	s.Overview.AsOf, s.Overview.Since = api.NewTime(now), ago(time.Hour)
	answers["GET /v1/admin/overview"] = s.Overview
	answers["GET /v1/admin/services"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		services := s.Services
		if r.FormValue("protocol_id") == "doc_ingest" { // Its jobs have only a few of the steps.
			services = []api.Service{{
				Service: "extract", StepType: "EXTRACT", Backlog: 2, Backoff: 1, Attempts: perMinute(30, 1),
				DurationSeconds: api.Percentiles{Count: 9, P50: 1, P95: 1.25}, DurationSecondsInDay: api.Percentiles{Count: 90, P50: 3, P95: 4},
			}, diagnosistest.OCRWork(now, 1, time.Second, 0)}
		}
		answerJSON(w, api.ServiceList{
			Services: services, Ended: map[string]api.Rates{string(api.JobStateSucceeded): perMinute(7, 0)},
			EndedInDay: map[string]int{string(api.JobStateSucceeded): 2500}, DaySince: ago(26 * time.Hour),
		})
	})
	answers["GET /v1/protocols"] = api.ProtocolList{Protocols: []api.Protocol{
		{ProtocolID: "doc_ingest", Steps: []api.ProtocolStep{
			{StepID: "extract", StepType: "EXTRACT", Service: "extract"}, {StepID: "ocr", StepType: "OCR", Service: "ocr"},
			{StepID: "many", StepType: "MANY", Service: "many"},
		}},
	}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/flow")
	has(t, page, `href="/ui/services/ocr"`, "3,000 ready · no worker", `class="node bad"`, "Live jobs and steps are estimated as of ", "10:02:30 UTC", "&lt;script&gt;",
		`href="/ui/flow?protocol=doc_ingest"`)
	hasNot(t, page, "<script>alert", "style=")
	page = b.get(t, "/ui/flow?protocol=doc_ingest")
	has(t, page, "Flow: doc_ingest", "2 ready", "1 waits for a retry", "30/min · p95 1.2 s · 60 failed in 1 h", "1 ready", "not counted apart", "this protocol&#39;s jobs alone",
		"Where the time goes", "1.0 s, p95 1.2 s", "the median of the last hour", "7/min · 420 in 1 h",
		"/ui/jobs?ended_after=2026-01-27T09%3A02%3A00.000Z&amp;protocol_id=doc_ingest&amp;state=SUCCEEDED")
	has(t, b.get(t, "/ui/flow?protocol=doc_ingest&over=day"), "3.0 s, p95 4.0 s", "the median of the last day",
		"2,500 succeeded, 0 failed for good and 0 were cancelled in the last day, which is counted from <time", ">2026-01-26 08:02:30</time>")
	hasNot(t, page, "no worker", "18 ready", "3,000", `class="node bad"`)
	for _, b.token = range []string{"good", "reader", "bound"} { // Protocols belong to no tenant.
		if w := b.send("GET", "/ui/flow?protocol=none", nil); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "There is no protocol none.") {
			t.Errorf("of an unknown protocol %s sees %d: %s", b.token, w.Code, w.Body)
		}
	}
	has(t, b.get(t, "/ui/flow?protocol=doc_ingest"), "this page is for users")
}

// The job is in one box, and the arrows of its way are lit.
func TestFlow_OfAJob(t *testing.T) {
	t.Parallel()
	job := runningJob()
	job.Steps[1].Owner, job.Steps[1].Service = "w-1", "ocr"
	var events []api.Event
	for _, kind := range []api.EventType{
		api.EventTypeOutboxPending, api.EventTypeOutboxSent, api.EventTypeStepAwaitingAck, api.EventTypeStepInProgress, api.EventTypeStepSucceeded,
		api.EventTypeOutboxPending, api.EventTypeOutboxSent, api.EventTypeStepAwaitingAck, api.EventTypeStepInProgress,
	} {
		events = append(events, api.Event{Type: kind})
	}
	events = append(events, api.Event{Type: api.EventTypeStepFailedRetry, Detail: "TIMEOUT"}, api.Event{Type: api.EventTypeStepFailedRetry})
	c := jobCanvas(&job, events, true)
	pictured(t, "flow-job.svg", &c)
	step := &job.Steps[1]
	ends := func(state api.JobState) {
		job.State, job.CompletedAt, job.Waiting, job.ErrorCode = state, ago(0), nil, "corrupt"
	}
	for want, change := range map[string]func(){
		"here IN_PROGRESS: ● w-1":        func() {},
		"here IN_PROGRESS: ● silent":     func() { wait(&job, api.WaitingReasonSilent) },
		"warn IN_PROGRESS: ● pausing":    func() { job.State = api.JobStatePausing; wait(&job, api.WaitingReasonPausing) },
		"here Outbox: ● here":            func() { step.State = api.StepStateDispatching },
		"warn Outbox: ● held by a pause": func() { step.State = api.StepStateDispatching; wait(&job, api.WaitingReasonScopePaused) },
		"bad Outbox: ● circuit open":     func() { step.State = api.StepStateDispatching; wait(&job, api.WaitingReasonCircuitOpen) },
		"here ocr: ● waits for a worker": func() { step.State, step.WorkID, step.Owner = api.StepStateAwaitingAck, "w", "" },
		"bad ocr: ● no worker": func() {
			step.State, step.WorkID, step.Owner = api.StepStateAwaitingAck, "w", ""
			wait(&job, api.WaitingReasonNoWorker)
		},
		"here AWAITING_ACK: ● w-1":            func() { step.State = api.StepStateAwaitingAck },
		"here AWAITING_ACK: ● no ACK yet":     func() { step.State, step.WorkID, step.Owner = api.StepStateAwaitingAck, "", "" },
		"here Waiting for a retry: ● TIMEOUT": func() { step.State, step.LastErrorCode = api.StepStateFailedRetry, "TIMEOUT" },
		"here Ledger: ● here":                 func() { step.State = api.StepStatePending },
		"warn Cancelled, paused: ● PAUSED":    func() { job.State = api.JobStatePaused; wait(&job, api.WaitingReasonJobPaused) },
		"idle Cancelled, paused: ● CANCELLED": func() { ends(api.JobStateCancelled) },
		"ok Succeeded: ● here":                func() { ends(api.JobStateSucceeded) },
		"bad Failed for good: ● corrupt":      func() { ends(api.JobStateFailedFinal) },
	} {
		job = runningJob()
		step = &job.Steps[1]
		step.Owner, step.Service = "w-1", "ocr"
		change()
		c, lit := jobCanvas(&job, nil, false), ""
		for _, node := range c.Nodes {
			if node.Level != "" {
				lit += node.Level + " " + node.Title + ": " + node.Text
			}
			if node.URL != "" {
				t.Errorf("%s leads to %s, which the user may not see", node.Title, node.URL)
			}
		}
		if lit != want {
			t.Errorf("the job is at %q, want %q", lit, want)
		}
	}
}

func TestRate_InWords(t *testing.T) {
	t.Parallel()
	for perSecond, want := range map[float64]string{0: "0/min", 41.6: "2,496/min", 1: "60/min", 0.5: "30/min", 0.01: "0.6/min", 0.0001: "<0.1/min"} {
		if got := rate(perSecond); got != want {
			t.Errorf("%g is %s, not %s", perSecond, got, want)
		}
	}
}

// A crash lowers the rates and totals of what happened before it.
func TestCounts_SayWhenSomeWereLost(t *testing.T) {
	t.Parallel()
	answers := everything()
	overview := answers["GET /v1/admin/overview"].(api.Overview)
	overview.Since, overview.CompleteSince = ago(3*time.Hour), ago(3*time.Hour)
	b := newBrowser(t, answers)
	for _, lost := range []bool{false, true} {
		if lost {
			overview.CompleteSince = ago(5 * time.Minute)
		}
		b.set("GET /v1/admin/overview", overview)
		for _, page := range []string{"", "flow", "services", "services/ocr"} {
			shown := b.get(t, "/ui/"+page)
			has(t, shown, "Counting began <time")
			if strings.Contains(shown, "some counts were lost, last <time") != lost {
				t.Errorf("%q says that counts were lost: %t", page, !lost)
			}
		}
	}
}
