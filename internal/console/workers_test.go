package console

import (
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

// busyWorker is a worker that holds an attempt, and has lost one.
func busyWorker() api.Worker {
	attempt := api.WorkerAttempt{
		TenantID: "tenant_a", JobID: "j1", StepID: "scan", Service: "ocr", StepType: "OCR", AttemptNo: 2, ClaimedAt: ago(2 * time.Minute),
	}
	held, idle, lost, taken := attempt, attempt, attempt, attempt
	held.LastHeartbeatAt, held.LeaseExpiresAt, held.Progress = ago(10*time.Second), ago(-time.Minute), api.Progress{Fraction: 0.4, Message: "page 4"}
	lost.Outcome, lost.ErrorCode, lost.EndedAt = api.WorkerAttemptOutcomeLost, "lease_expired", ago(time.Minute)
	taken.Outcome, taken.EndedAt = api.WorkerAttemptOutcomeTaken, ago(time.Minute)
	done := taken
	done.Outcome = api.WorkerAttemptOutcomeSucceeded
	return api.Worker{
		Owner: "pods/ocr 7", Services: []string{"ocr", "embed"}, StepTypes: []string{"OCR"}, Polling: true, Holds: 3, Version: "2.4.1", Host: "node-3",
		Library: "lucius-go", LastPollAt: ago(0), ActiveAt: ago(0), LastHeartbeatAt: ago(10 * time.Second),
		LastDay: api.AttemptCounts{Ended: 80, Failed: 2, Lost: 4}, Held: []api.WorkerAttempt{held, idle}, Attempts: []api.WorkerAttempt{done, taken, lost},
	}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	answers := quiet()
	list := api.WorkerList{Bus: api.BusQueue, Total: 1200, Workers: []api.Worker{busyWorker(), {Owner: hostile, LastPollAt: ago(time.Hour)}}}
	answers["GET /v1/admin/workers"] = list
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/workers?service=ocr")
	has(t, page, "Workers of ocr", `<a class="url" href="/ui/workers/pods%2Focr%207">pods/ocr 7</a>`, "waits for work", "ocr, embed", "any", "1 h ago", "2.4.1", "node-3",
		"5.0 % <small>(4)", "the latest 2 of 1,200", "&lt;script&gt;", `data-copy="lucius workers --service ocr"`, "Show all workers")
	hasNot(t, page, "<script>alert")
	if strings.Index(page, "&lt;script&gt;") > strings.Index(page, "pods/ocr 7") {
		t.Error("the workers are not sorted by name")
	}
	b.token = "bound"
	hasNot(t, b.get(t, "/ui/workers"), "ended, 1 day")
	b.token = ""
	b.set("GET /v1/admin/workers", api.WorkerList{Bus: api.BusQueue})
	has(t, b.get(t, "/ui/workers"), "No worker was active in the last day.")
	b.set("GET /v1/admin/workers", api.WorkerList{Bus: api.BusServiceBus})
	has(t, b.get(t, "/ui/workers"), "On Service Bus workers are not known")
}

func TestWorker_BesideTheOthers(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/workers"] = api.WorkerList{
		Bus: api.BusQueue, Total: 1, Workers: []api.Worker{busyWorker()}, Others: api.AttemptCounts{Ended: 1000, Failed: 5},
	}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/workers/pods%2Focr%207")
	has(t, page, "<h1>pods/ocr 7", "node-3", "lucius-go", "5.0 % <small>(4)", "0.5 % <small>(5)", `href="/ui/jobs/j1"`, "40 %", "in 1 min",
		"The first 2 of 3.", `<span class="pill bad">lost</span> <code>lease_expired</code>`, `<span class="pill idle">taken</span>`,
		`<span class="pill ok">succeeded</span>`, "lucius workers show &#39;pods/ocr 7&#39;", `aria-current="page">Workers`)
	b.set("GET /v1/admin/workers", api.WorkerList{Bus: api.BusQueue, Total: 1, Workers: []api.Worker{{Owner: "new"}}})
	has(t, b.get(t, "/ui/workers/new"), "It holds nothing.", "No attempt of it has ended in the last day.")
	b.set("GET /v1/admin/workers", api.WorkerList{Bus: api.BusQueue, Total: 1, Workers: []api.Worker{{Owner: "--url=http://evil"}}})
	has(t, b.get(t, "/ui/workers/--url=http:%2F%2Fevil"), "lucius workers show -- &#39;--url=http://evil&#39;")
	b.set("GET /v1/admin/workers", api.WorkerList{Bus: api.BusQueue})
	if w := b.send("GET", "/ui/workers/gone", nil); w.Code != 404 {
		t.Errorf("a worker that is not there is answered %d", w.Code)
	}
}

func TestQueue_SaysWhatWaitsForWhom(t *testing.T) {
	t.Parallel()
	s := busyServer()
	ocr := diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)
	ocr.Held, ocr.HeldBy, ocr.Claimed = 11, []api.HeldBy{{PauseID: "tenant:acme", Count: 11}}, 2
	embed := ocr
	embed.Service, embed.HeldBy = "embed", []api.HeldBy{{PauseID: "tenant:acme", Count: 4}, {PauseID: "all", Count: 7}}
	answers := quiet()
	s.Overview.OldestWaiting = api.OldestWaiting{Service: "ocr", StepType: "OCR", At: ago(time.Hour)}
	answers["GET /v1/admin/overview"] = s.Overview
	answers["GET /v1/admin/services"] = api.ServiceList{
		Bus: api.BusQueue, Services: []api.Service{embed, ocr, {Service: "idle"}},
		Tenants: []api.TenantWork{{TenantID: "acme", Backlog: 2999, Held: 22, Claimed: 1, Running: 8, OldestWaitingAt: ago(time.Hour)}},
	}
	answers["GET /v1/admin/workers"] = api.WorkerList{Bus: api.BusQueue, Total: 5, Workers: []api.Worker{busyWorker(), {Owner: "w"}}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/queue")
	has(t, page, "1 wait for work, of 5", `<a href="/ui/services/embed">embed</a>`, `<a href="/ui/pauses">tenant:acme</a></td><td class="r">15`, `href="/ui/jobs?tenant_id=acme"`,
		"2,999", "1 h", "The busiest 100 tenants")
	hasNot(t, page, "/ui/services/idle")
	b.token = "bound"
	has(t, b.get(t, "/ui/queue"), "counted for all tenants together")
	b.token = ""
	s.Overview.Bus = api.BusServiceBus
	b.set("GET /v1/admin/overview", s.Overview)
	b.set("GET /v1/admin/services", api.ServiceList{Services: []api.Service{}})
	has(t, b.get(t, "/ui/queue"), "Directives go to Service Bus here", "Nothing waits")
}

// The history of a job and its timeline name the worker whose lease expired.
func TestJob_NamesTheWorkerThatWasLost(t *testing.T) {
	t.Parallel()
	lost := happened(60, api.EventTypeStepFailedRetry, "ocr", 1, "lease_expired")
	lost.Owner = "pods/ocr 7"
	job := runningJob()
	job.Steps[1].Owner = ""
	page := newBrowser(t, answersOf(job, append(ran(10, "ocr", 1), lost)...)).get(t, "/ui/jobs/j1")
	has(t, page, `<code>lease_expired</code> by <a class="url" href="/ui/workers/pods%2Focr%207">pods/ocr 7</a>`, `<b>ocr</b> 1 <small>pods/ocr 7</small>`)
}
