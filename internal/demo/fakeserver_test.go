package demo_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// services are the steps of a job, in their order.
var services = []string{"extract", "embed", "index"}

// fakeServer carries jobs through three steps in memory. A test may answer
// requests in its place.
type fakeServer struct {
	t *testing.T
	// spoil answers a request instead of the server if it returns true.
	spoil func(w http.ResponseWriter, r *http.Request) bool

	mu      sync.Mutex
	jobs    []*fakeJob
	keys    map[string]*fakeJob
	changed chan struct{} // is closed and replaced with each change
	// runs says of each run whose workers have sent a claim whether it has ended. Its id ends their names.
	runs map[string]bool
}

// fakeJob is one job.
type fakeJob struct {
	api.Job
	input   json.RawMessage // of the current step
	claimed bool
	owner   string
	failed  bool // its last attempt: it waits for the next one
}

func serve(t *testing.T) (*fakeServer, string) {
	t.Helper()
	f := &fakeServer{t: t, keys: map[string]*fakeJob{}, changed: make(chan struct{}), runs: map[string]bool{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.spoil != nil && f.spoil(w, r) {
		return
	}
	path, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), ":")
	id := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case path == "commands":
		f.submit(w, decode[api.Command](f.t, r))
	case verb == "claim":
		f.claim(w, r, decode[api.ClaimRequest](f.t, r))
	case path == "work" && verb == "complete":
		var answer api.WorkCompletionResults
		for _, completion := range decode[api.WorkCompletionBatch](f.t, r).Items {
			f.complete(completion.WorkID, completion.ResultRef)
			answer.Results = append(answer.Results, api.WorkCompletionResult{WorkID: completion.WorkID, Status: http.StatusOK})
		}
		f.answer(w, http.StatusOK, answer)
	case verb == "complete":
		f.complete(id, decode[api.WorkCompletion](f.t, r).ResultRef)
		f.answer(w, http.StatusOK, api.WorkItem{WorkID: id, Directive: json.RawMessage("{}")})
	case verb == "fail":
		f.fail(w, id, decode[api.WorkFailure](f.t, r))
	default:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.answer(w, http.StatusOK, f.shown(f.job(id)))
	}
}

func (f *fakeServer) submit(w http.ResponseWriter, command api.Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	job, replayed := f.keys[command.IdempotencyKey]
	if !replayed {
		job = &fakeJob{input: command.InputRef}
		job.JobID, job.State = fmt.Sprintf("job-%d", len(f.jobs)), api.JobStateDispatching
		job.InputRef, job.OutputRef = command.InputRef, command.OutputRef
		f.jobs, f.keys[command.IdempotencyKey] = append(f.jobs, job), job
		f.tell()
	}
	f.answer(w, http.StatusAccepted, api.CommandAccepted{JobID: job.JobID, State: job.State, Replayed: replayed})
}

// tell wakes the waiting claims.
func (f *fakeServer) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// job finds a job by its id, which is its work item's as well.
func (f *fakeServer) job(id string) *fakeJob {
	return f.jobs[slices.IndexFunc(f.jobs, func(j *fakeJob) bool { return j.JobID == id })]
}

func (f *fakeServer) claim(w http.ResponseWriter, r *http.Request, request api.ClaimRequest) {
	over := time.NewTimer(time.Duration(request.WaitSeconds * float64(time.Second)))
	defer over.Stop()
	for {
		items, changed := f.take(request)
		if len(items) > 0 {
			f.answer(w, http.StatusOK, api.ClaimedWork{Items: items})
			return
		}
		select {
		case <-changed:
		case <-over.C:
			f.answer(w, http.StatusOK, api.ClaimedWork{Items: []api.WorkItem{}})
			return
		case <-r.Context().Done():
			return
		}
	}
}

// take claims the ready items.
func (f *fakeServer) take(request api.ClaimRequest) ([]api.WorkItem, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run := request.Owner[strings.LastIndexByte(request.Owner, '-')+1:]
	if f.runs[run] {
		return nil, f.changed
	}
	f.runs[run] = false
	var items []api.WorkItem
	for _, job := range f.jobs {
		open := job.State == api.JobStateDispatching || job.State == api.JobStateInProgress
		if job.claimed || job.failed || !open || services[job.CurrentStepIndex] != request.Services[0] || len(items) == int(request.Max) {
			continue
		}
		job.claimed, job.owner, job.State = true, request.Owner, api.JobStateInProgress
		job.CurrentStepID = services[job.CurrentStepIndex]
		directive, err := json.Marshal(api.Directive{
			JobID: job.JobID, InputRef: job.input, OutputRef: job.OutputRef, Payload: json.RawMessage(`{"language":"en"}`),
			WorkspaceRef: json.RawMessage("null"),
		})
		if err != nil {
			f.t.Error(err)
		}
		items = append(items, api.WorkItem{WorkID: job.JobID, Rev: 1, Directive: directive})
	}
	return items, f.changed
}

func (f *fakeServer) complete(id string, result json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	job := f.job(id)
	job.input, job.claimed = result, false
	if job.CurrentStepIndex++; job.CurrentStepIndex == len(services) {
		job.State, job.FinalOutput = api.JobStateSucceeded, result
	}
	f.tell()
}

func (f *fakeServer) fail(w http.ResponseWriter, id string, failure api.WorkFailure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	job := f.job(id)
	if failure.Retryable {
		f.t.Errorf("job %s failed as if another attempt could help: %+v", id, failure.Error)
	}
	job.State, job.ErrorCode, job.ErrorMessage = api.JobStateFailedFinal, failure.Error.Code, failure.Error.Message
	f.answer(w, http.StatusOK, api.WorkItem{WorkID: id, Directive: json.RawMessage("{}")})
}

// leaseEnd is when all leases and delays end.
var leaseEnd = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.Local)

// shown returns the job with what it waits for.
func (f *fakeServer) shown(job *fakeJob) api.Job {
	shown := job.Job
	reason := api.WaitingReasonRunning
	switch {
	case job.failed:
		reason = api.WaitingReasonBackoff
	case !job.claimed:
		return shown
	}
	wait := &api.Waiting{Reason: reason, Until: api.NewTime(leaseEnd)}
	shown.Steps = []api.Step{{StepID: job.CurrentStepID, Owner: job.owner, Waiting: wait}}
	return shown
}

// end refuses items to all runs so far. A claim of a run that has ended may still be in transit, and an item that
// it took would stay claimed: the server has no leases that expire.
func (f *fakeServer) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for run := range f.runs {
		f.runs[run] = true
	}
}

// expire ends the leases of all workers: their steps wait for the next attempt.
func (f *fakeServer) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, job := range f.jobs {
		job.failed, job.claimed = job.claimed, false
	}
}

// release takes all items from workers, and offers them again.
func (f *fakeServer) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, job := range f.jobs {
		job.claimed, job.failed = false, false
	}
	f.tell()
}

func (f *fakeServer) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		f.t.Errorf("answer: %v", err)
	}
}

func decode[T any](t *testing.T, r *http.Request) T {
	t.Helper()
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		t.Errorf("%s: %v", r.URL.Path, err)
	}
	return body
}
