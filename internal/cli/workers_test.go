package cli_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
)

func workerList() api.WorkerList {
	return api.WorkerList{Bus: api.BusQueue, Total: 1002, Workers: []api.Worker{
		{
			Owner: "worker-1", Services: []string{"ocr", "embed"}, StepTypes: []string{}, Polling: true, Holds: 1, Version: "2.4.1", Host: "node-3",
			ActiveAt: at(0), LastDay: api.AttemptCounts{Ended: 81, Failed: 2, Lost: 1},
		},
		{Owner: "worker-2\x1b[2J", Services: []string{}, StepTypes: []string{"OCR"}, ActiveAt: at(90 * time.Second)},
	}}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	shows(t, "workers", "GET /v1/admin/workers?service=ocr", workerList(), "workers --service ocr")
	shows(t, "workers-servicebus", "GET /v1/admin/workers", api.WorkerList{Bus: api.BusServiceBus, Workers: []api.Worker{}}, "workers")

	list := workerList()
	list.Total, list.Workers, list.Others = 1, list.Workers[:1], api.AttemptCounts{Ended: 1000, Failed: 500}
	one := &list.Workers[0]
	one.Library, one.Holds = "lucius-go", 2
	attempt := api.WorkerAttempt{
		TenantID: "acme", JobID: "job-1", StepID: "scan", Service: "ocr", StepType: "OCR", AttemptNo: 2, ClaimedAt: at(2 * time.Minute),
	}
	held, lost, done := attempt, attempt, attempt
	held.LastHeartbeatAt, held.LeaseExpiresAt = at(10*time.Second), at(-time.Minute)
	lost.Outcome, lost.ErrorCode, lost.EndedAt = api.WorkerAttemptOutcomeLost, "lease_expired", at(time.Minute)
	done.Outcome, done.EndedAt = api.WorkerAttemptOutcomeSucceeded, at(30*time.Second)
	one.Held, one.Attempts = []api.WorkerAttempt{held}, []api.WorkerAttempt{done, lost}
	shows(t, "worker", "GET /v1/admin/workers?owner=worker-1", list, "workers show worker-1")

	idle := api.WorkerList{Bus: api.BusQueue, Total: 1, Workers: workerList().Workers[1:]}
	shows(t, "worker-idle", "GET /v1/admin/workers?owner=pods%2Fw", idle, "workers show pods/w")
	none := newScripted(t, map[string][]any{"GET /v1/admin/workers": {api.WorkerList{Workers: []api.Worker{}}}})
	if _, err := newLine(t, none.url).run(t, "workers", "show", "none"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("a worker that is not there: %v", err)
	}
}
