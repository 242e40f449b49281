package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
)

// fakeServer carries jobs through their steps in memory. A test may replace its responses to
// one kind of request.
type fakeServer struct {
	t   *testing.T
	url string
	// spoil, if it returns true, has answered the request instead of the server.
	spoil func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	jobs     map[string]*fakeJob   // by job id
	keys     map[string]bool       // the idempotency keys and request ids that were used
	queues   map[string][]*fakeJob // jobs with a step that waits for a worker, by service
	arrived  chan struct{}         // closed and replaced when a job is queued
	payloads map[int]int           // how many commands had a payload of this size
	running  int                   // servers that have been started but not stopped
	starts   int                   // servers that have been started
	claims   int                   // claims that are being answered

	retention time.Duration // of the server that was started last
	dataDir   string
	purges    int  // how many of ten jobs are purged
	growing   bool // whether each look at the metrics makes the data directory larger
}

// fakeJob is one job.
type fakeJob struct {
	id, correlationID, orderKey, service string
	steps, step, rev                     int
	acked                                bool
	bulk                                 bool
}

// serve returns a fake server.
func serve(t *testing.T, spoil func(w http.ResponseWriter, r *http.Request) bool) *fakeServer {
	t.Helper()
	f := &fakeServer{
		t: t, spoil: spoil, jobs: map[string]*fakeJob{}, keys: map[string]bool{}, arrived: make(chan struct{}),
		payloads: map[int]int{}, queues: map[string][]*fakeJob{},
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// start starts a server. All servers share the fake's state.
func (f *fakeServer) start(_ context.Context, dataDir, protocolsDir string, retention time.Duration) (bench.Server, error) {
	_, err := os.Stat(protocolsDir)
	if err != nil {
		return bench.Server{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts++
	f.retention = retention
	f.dataDir = dataDir
	f.running++
	return bench.Server{URL: f.url, Stop: func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running--
		return nil
	}}, nil
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.spoil != nil && f.spoil(w, r) {
		return
	}
	switch path := r.URL.Path; path {
	case "/v1/commands":
		f.submit(w, r)
	case "/v1/commands:batch":
		f.submitBatch(w, r)
	case "/v1/work:claim":
		f.claim(w, r)
	case "/v1/callbacks/ack":
		f.ack(w, r)
	case "/v1/callbacks/result":
		f.result(w, r)
	case "/metrics":
		f.metrics(w)
	case "/v1/work:complete":
		f.complete(w, r)
	case "/v1/admin/limits/service:bench":
		f.answer(w, http.StatusOK, api.StartLimit{ID: "service:bench"})
	default:
		f.answer(w, http.StatusOK, map[string]any{"state": f.state(strings.TrimPrefix(path, "/v1/jobs/"))})
	}
}

func (f *fakeServer) submit(w http.ResponseWriter, r *http.Request) {
	command := decode[api.Command](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer(w, http.StatusAccepted, api.CommandAccepted{JobID: f.accept(&command).id, State: api.JobStateDispatching})
}

func (f *fakeServer) submitBatch(w http.ResponseWriter, r *http.Request) {
	request := decode[api.BatchRequest](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	var answer api.BatchResult
	for i := range request.Commands {
		answer.Results = append(answer.Results, api.BatchItem{Status: 202, JobID: f.accept(&request.Commands[i]).id})
	}
	f.answer(w, http.StatusOK, answer)
}

// accept creates the command's job. The caller holds mu.
func (f *fakeServer) accept(command *api.Command) *fakeJob {
	f.once(command.IdempotencyKey)
	f.payloads[len(command.Payload)]++
	job := &fakeJob{
		id: fmt.Sprintf("job-%d", len(f.jobs)), correlationID: command.CorrelationID, steps: 1, rev: 1, orderKey: command.OrderKey,
		service: map[string]string{"bench.live": "bench_live", "bench.waiting": "bench_waiting", "bench.line": "bench_waiting"}[command.RequestType],
	}
	if job.service == "" {
		job.service = "bench"
	}
	job.bulk = command.RequestType == "bench.bulk"
	if command.RequestType == "bench.3" {
		job.steps = 3
	}
	f.jobs[job.id] = job
	f.enqueue(job)
	return job
}

func (f *fakeServer) metrics(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const name = "lucius_store_commits_total"
	_, _ = fmt.Fprintf(w, "# TYPE %s counter\n%s %d\n", name, name, len(f.keys))
	ended := 0
	for _, job := range f.jobs {
		if job.step > job.steps {
			ended++
		}
	}
	const inFlight = "lucius_http_requests_in_flight"
	_, _ = fmt.Fprintf(w, "# TYPE %s gauge\n%s %d\n", inFlight, inFlight, f.claims+1)
	const purged = "lucius_retention_entries_total"
	_, _ = fmt.Fprintf(w, "# TYPE %s counter\n%s{outcome=\"purged\"} %d\n%s{outcome=\"later\"} %d\n",
		purged, purged, ended*f.purges/10, purged, ended)
	f.grow()
}

// grow makes the data directory of a server that purges larger if it is growing. The caller
// holds mu.
func (f *fakeServer) grow() {
	if f.retention == 0 {
		return
	}
	err := os.MkdirAll(f.dataDir, 0o750)
	if size, name := int64(1000), filepath.Join(f.dataDir, "rows"); err == nil {
		if info, missing := os.Stat(name); missing == nil && f.growing {
			size += info.Size()
		}
		// A reader must never see a file that is written again from its start.
		var rows *os.File
		if rows, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			err = errors.Join(rows.Truncate(size), rows.Close())
		}
	}
	if err != nil {
		f.t.Error(err)
	}
}

// once fails the test if a name that must be unique was used before.
func (f *fakeServer) once(name string) {
	if name == "" || f.keys[name] {
		f.t.Errorf("the name %q is used again", name)
	}
	f.keys[name] = true
}

func (f *fakeServer) enqueue(job *fakeJob) {
	job.step++
	job.acked = false
	f.queues[job.service] = append(f.queues[job.service], job)
	close(f.arrived)
	f.arrived = make(chan struct{})
}

func (f *fakeServer) claim(w http.ResponseWriter, r *http.Request) {
	request := decode[api.ClaimRequest](f.t, r)
	if len(request.Services) != 1 {
		f.t.Errorf("the claim is not of one service: %+v", request)
		return
	}
	service := request.Services[0]
	f.mu.Lock()
	f.claims++
	f.once(request.RequestID)
	jobs := f.take(service, request.Owner, int(request.Max))
	for ; len(jobs) == 0; jobs = f.take(service, request.Owner, int(request.Max)) {
		arrived := f.arrived
		f.mu.Unlock()
		select {
		case <-arrived:
		case <-r.Context().Done():
		}
		f.mu.Lock()
		if r.Context().Err() != nil {
			f.claims--
			f.mu.Unlock()
			return
		}
	}
	defer f.mu.Unlock()
	defer func() { f.claims-- }()
	items := make([]map[string]any, len(jobs))
	for i, job := range jobs {
		if request.Start {
			job.acked = true
		}
		items[i] = map[string]any{"work_id": job.id, "rev": job.rev, "directive": map[string]any{
			"jobId": job.id, "stepId": fmt.Sprintf("step_%d", job.step), "correlation_id": job.correlationID,
			"tenant_id": "tenant", "attempt_no": job.step, "lease_id": fmt.Sprint("lease-", job.rev),
		}}
	}
	f.answer(w, http.StatusOK, map[string]any{"items": items})
}

// take removes at most most jobs of the run with that name, and bulk jobs, from a queue. The fake
// has no leases, so a claim of an ended run, whose client has gone, must not take a job that the next
// run waits for. At most one of the jobs is bulk, so that normal jobs wait for none, as in the
// program. The caller holds mu.
func (f *fakeServer) take(service, run string, most int) (taken []*fakeJob) {
	bulk := false
	f.queues[service] = slices.DeleteFunc(f.queues[service], func(job *fakeJob) bool {
		switch {
		case len(taken) == most, job.bulk && bulk, !job.bulk && !strings.HasPrefix(job.correlationID, run+"-"):
			return false
		}
		bulk = bulk || job.bulk
		taken = append(taken, job)
		return true
	})
	return taken
}

func (f *fakeServer) complete(w http.ResponseWriter, r *http.Request) {
	request := decode[api.WorkCompletionBatch](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	var answer api.WorkCompletionResults
	for _, completion := range request.Items {
		f.once(completion.RequestID)
		job := f.jobs[completion.WorkID]
		if completion.ExpectedRev != int64(job.rev) || !job.acked {
			f.t.Errorf("completion of rev %d, the item is at %d and was started: %t", completion.ExpectedRev, job.rev, job.acked)
		}
		f.finish(job)
		answer.Results = append(answer.Results, api.WorkCompletionResult{WorkID: completion.WorkID, Status: 200, Rev: int64(job.rev)})
	}
	f.answer(w, http.StatusOK, answer)
}

func (f *fakeServer) ack(w http.ResponseWriter, r *http.Request) {
	c := decode[api.AckCallback](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	job := f.jobs[c.JobID]
	if job.acked || c.LeaseID != fmt.Sprint("lease-", job.rev) || int(c.AttemptNo) != job.step || c.TenantID != "tenant" {
		f.t.Errorf("ACK %+v of job %+v", c, job)
	}
	job.acked = true
	f.answer(w, http.StatusOK, map[string]any{})
}

func (f *fakeServer) result(w http.ResponseWriter, r *http.Request) {
	c := decode[api.ResultCallback](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	job := f.jobs[c.JobID]
	if !job.acked || c.LeaseID != fmt.Sprint("lease-", job.rev) || c.Status != api.ResultStatusSucceeded {
		f.t.Errorf("result %+v of job %+v", c, job)
	}
	f.finish(job)
	f.answer(w, http.StatusOK, map[string]any{})
}

// finish ends the job's step. The caller holds mu.
func (f *fakeServer) finish(job *fakeJob) {
	job.rev++
	if job.step < job.steps {
		f.enqueue(job)
	} else {
		job.step++
	}
}

// state returns the state of a job.
func (f *fakeServer) state(jobID string) api.JobState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if job := f.jobs[jobID]; job.step > job.steps {
		return api.JobStateSucceeded
	}
	return api.JobStateInProgress
}

func (f *fakeServer) answer(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		f.t.Errorf("answer: %v", err)
	}
}

func decode[T any](t *testing.T, r *http.Request) T {
	t.Helper()
	var body T
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		t.Errorf("%s: %v", r.URL.Path, err)
	}
	return body
}

// at returns a spoil function for requests whose path has that suffix.
func at(suffix string, status int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, suffix) {
			return false
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
		return true
	}
}

// statusOf returns the *bench.StatusError that a test expects.
func statusOf(method, path string, status int, body string) *bench.StatusError {
	return &bench.StatusError{Method: method, Path: path, Status: status, Body: body}
}
