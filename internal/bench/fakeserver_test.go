package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
)

// fakeServer carries jobs through their steps in memory. A test may spoil one
// kind of request.
type fakeServer struct {
	t *testing.T
	// spoil answers a request instead of the server if it returns true.
	spoil func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	jobs     map[string]*fakeJob // by job id
	keys     map[string]bool     // the idempotency keys and request ids that were used
	queue    []*fakeJob          // jobs with a step that waits for a worker
	arrived  chan struct{}       // is closed and replaced when the queue gets something
	payloads map[int]int         // how many commands had a payload of this size
}

// fakeJob is one job.
type fakeJob struct {
	id, correlationID string
	steps, step, rev  int
}

// serve returns the base URL of a fake server.
func serve(t *testing.T, spoil func(w http.ResponseWriter, r *http.Request) bool) (*fakeServer, string) {
	t.Helper()
	f := &fakeServer{
		t: t, spoil: spoil, jobs: map[string]*fakeJob{}, keys: map[string]bool{}, arrived: make(chan struct{}),
		payloads: map[int]int{},
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.spoil != nil && f.spoil(w, r) {
		return
	}
	switch path := r.URL.Path; {
	case path == "/v1/commands":
		f.submit(w, r)
	case path == "/v1/work:claim":
		f.claim(w, r)
	case strings.HasSuffix(path, ":complete"):
		f.complete(w, r, strings.TrimSuffix(strings.TrimPrefix(path, "/v1/work/"), ":complete"))
	default:
		f.answer(w, http.StatusOK, map[string]any{"state": f.state(strings.TrimPrefix(path, "/v1/jobs/"))})
	}
}

func (f *fakeServer) submit(w http.ResponseWriter, r *http.Request) {
	command := decode[api.Command](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.once(command.IdempotencyKey)
	f.payloads[len(command.Payload)]++
	job := &fakeJob{id: fmt.Sprintf("job-%d", len(f.jobs)), correlationID: command.CorrelationID, steps: 1, rev: 1}
	if command.RequestType == "bench.three" {
		job.steps = 3
	}
	f.jobs[job.id] = job
	f.enqueue(job)
	f.answer(w, http.StatusAccepted, api.CommandAccepted{JobID: job.id, State: api.JobStateDispatching})
}

// once fails the test if a name that must be fresh was used before.
func (f *fakeServer) once(name string) {
	if name == "" || f.keys[name] {
		f.t.Errorf("%q is not a fresh name", name)
	}
	f.keys[name] = true
}

func (f *fakeServer) enqueue(job *fakeJob) {
	job.step++
	f.queue = append(f.queue, job)
	close(f.arrived)
	f.arrived = make(chan struct{})
}

func (f *fakeServer) claim(w http.ResponseWriter, r *http.Request) {
	request := decode[api.ClaimRequest](f.t, r)
	if !request.Start || len(request.Services) != 1 || request.Services[0] != "bench" {
		f.t.Errorf("the claim does not start work of the benchmark: %+v", request)
	}
	f.mu.Lock()
	f.once(request.RequestID)
	for len(f.queue) == 0 {
		arrived := f.arrived
		f.mu.Unlock()
		select {
		case <-arrived:
		case <-r.Context().Done():
			return
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	n := min(int(request.Max), len(f.queue))
	items := make([]map[string]any, n)
	for i, job := range f.queue[:n] {
		items[i] = map[string]any{"work_id": job.id, "rev": job.rev, "directive": map[string]any{
			"jobId": job.id, "stepId": fmt.Sprintf("step_%d", job.step), "correlation_id": job.correlationID,
		}}
	}
	f.queue = f.queue[n:]
	f.answer(w, http.StatusOK, map[string]any{"items": items})
}

func (f *fakeServer) complete(w http.ResponseWriter, r *http.Request, workID string) {
	request := decode[api.WorkCompletion](f.t, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.once(request.RequestID)
	job := f.jobs[workID]
	if request.ExpectedRev != int64(job.rev) {
		f.t.Errorf("completion of rev %d, the item is at %d", request.ExpectedRev, job.rev)
	}
	job.rev++
	if job.step < job.steps {
		f.enqueue(job)
	} else {
		job.step++
	}
	f.answer(w, http.StatusOK, map[string]any{})
}

// state is the state of a job.
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

// at spoils requests whose path ends so with an answer.
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

// statusOf is the *bench.StatusError that a test expects.
func statusOf(method, path string, status int, body string) *bench.StatusError {
	return &bench.StatusError{Method: method, Path: path, Status: status, Body: body}
}
