package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
)

// services returns the server's report on its services, once it has counted its jobs.
func (s *testServer) services(t *testing.T) *api.ServiceList {
	t.Helper()
	var list *api.ServiceList
	waittest.Until(t, "the jobs are counted", func() bool {
		response, err := s.client.ListServicesWithResponse(t.Context(), nil)
		if err != nil || response.JSON200 == nil {
			t.Fatalf("services: %v, %s", err, bodyOf(response))
		}
		list = response.JSON200
		return list.Exact
	})
	return list
}

// service returns the service of that name.
func service(t *testing.T, list *api.ServiceList, name string) *api.Service {
	t.Helper()
	for i := range list.Services {
		if list.Services[i].Service == name {
			return &list.Services[i]
		}
	}
	t.Fatalf("there is no service %s", name)
	return nil
}

// A backlog without a worker is counted exactly, also by the next process, and so are the
// actions of workers.
func TestServe_CountsABacklogOfAnySize(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serveOn(t, dir, longTimeouts...)
	const jobs = manyWaiting
	for n := 0; n < jobs; n += 100 {
		var batch api.BatchRequest
		for m := range 100 {
			batch.Commands = append(batch.Commands, api.Command{
				TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
				InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
				IdempotencyKey: fmt.Sprint("k", n+m),
			})
		}
		response, err := s.client.SubmitBatchWithResponse(t.Context(), batch)
		if err != nil || response.JSON200 == nil {
			t.Fatalf("submit: %v, %s", err, bodyOf(response))
		}
	}
	check := func(backlog, running int) {
		t.Helper()
		extract := service(t, s.services(t), "extract")
		if extract.Backlog != backlog || extract.Running != running || extract.OldestWaitingAt.IsZero() {
			t.Errorf("want %d waiting and %d running: %+v", backlog, running, extract)
		}
		text := scrape(t, s)
		for _, want := range []string{
			fmt.Sprintf(`lucius_work_items{service="extract",state="queued",step_type="%s"} %d`, extract.StepType, backlog),
			fmt.Sprintf(`lucius_work_items{service="extract",state="running",step_type="%s"} %d`, extract.StepType, running),
			fmt.Sprintf(`lucius_jobs{state="in_progress"} %d`, running), `lucius_work_oldest_seconds{service="extract"`,
		} {
			if !strings.Contains(text, "\n"+want) {
				t.Errorf("the metrics have no %s", want)
			}
		}
		overview, err := s.client.GetOverviewWithResponse(t.Context(), nil)
		if err != nil || overview.JSON200 == nil || overview.JSON200.Backlog != backlog || overview.JSON200.Jobs["IN_PROGRESS"] != running ||
			overview.JSON200.Accepted.Total != jobs || overview.JSON200.OldestWaiting.Service != "extract" ||
			overview.JSON200.Bus != api.BusQueue {
			t.Errorf("overview: %v, %s", err, bodyOf(overview))
		}
	}
	check(jobs, 0)
	if workers := service(t, s.services(t), "embed").Workers; len(workers) > 0 {
		t.Errorf("a service without claims has workers: %+v", workers)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = serveOn(t, dir, longTimeouts...)
	check(jobs, 0)
	s.claim(t, "c1", true)
	check(jobs-1, 1)
	if workers := service(t, s.services(t), "extract").Workers; len(workers) != 1 || workers[0].Owner != "w" {
		t.Errorf("%+v", workers)
	}
}

// A process that is killed stores nothing. The next one counts the jobs that it finds.
func TestCrash_JobsAreCountedAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	s := &testServer{client: site.client}
	p := site.start(longTimeouts...)
	const jobs = 40
	for n := range jobs {
		s.submitAs(t, fmt.Sprint(n))
	}
	for n := range 3 {
		s.claim(t, fmt.Sprint("c", n), true)
	}
	p.kill()
	p = site.start(longTimeouts...)
	list := s.services(t) // It waits until the counts are exact.
	if extract := service(t, list, "extract"); extract.Backlog != jobs-3 || extract.Running != 3 || extract.OldestWaitingAt.IsZero() {
		t.Errorf("%+v", extract)
	}
	p.terminate()
}
