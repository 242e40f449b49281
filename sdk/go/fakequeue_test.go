package lucius_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// errNoAnswer is what a client sees of a server that went away.
var errNoAnswer = errors.New("connection reset by peer")

// call is one request that reached the queue, and when.
type call struct {
	Verb   string // claim, heartbeat, complete or fail
	WorkID string
	Batch  int // how many completions share its request, 0 if it is alone
	At     time.Duration
	Body   body
}

// body is what any of the requests may hold. A batch of completions is recorded as one
// call for each.
type body struct {
	WorkID      string                `json:"work_id"`
	Owner       string                `json:"owner"`
	Services    []string              `json:"services"`
	StepTypes   []string              `json:"step_types"`
	Max         int                   `json:"max"`
	WaitSeconds float64               `json:"wait_seconds"`
	Lease       float64               `json:"lease_seconds"`
	Start       bool                  `json:"start"`
	Version     string                `json:"version"`
	Host        string                `json:"host"`
	RequestID   string                `json:"request_id"`
	ExpectedRev int64                 `json:"expected_rev"`
	OutputRef   json.RawMessage       `json:"output_ref"`
	ResultRef   json.RawMessage       `json:"result_ref"`
	Progress    *lucius.Progress      `json:"progress"`
	Retryable   bool                  `json:"retryable"`
	RetryAfter  float64               `json:"retry_after_seconds"`
	Scope       lucius.ThrottleScope  `json:"scope"`
	Error       *lucius.ReportedError `json:"error"`
	Items       []body                `json:"items"`
}

// fakeQueue is a pull queue without a network, so that a test's time is its
// bubble's. A test may answer calls in its place.
type fakeQueue struct {
	t     *testing.T
	lease time.Duration
	begun time.Time
	// script answers a call instead of the queue if it returns true. An
	// answer with status 0 is none: the connection breaks.
	script func(c *call) (status int, answer any, ok bool)
	// retryAfter is the Retry-After of the script's answers with 503.
	retryAfter string

	mu      sync.Mutex
	calls   []call
	batches []int // the sizes of the batches of completions
	queued  []lucius.WorkItem
	revs    map[string]int64
	// warnings are those of each claim, after which there are none.
	warnings [][]lucius.ClaimWarning
	arrived  chan struct{}
}

func newQueue(t *testing.T) *fakeQueue {
	t.Helper()
	return &fakeQueue{
		t: t, lease: time.Minute, begun: time.Now(), revs: map[string]int64{}, arrived: make(chan struct{}),
	}
}

// enqueue makes work ready.
func (q *fakeQueue) enqueue(workIDs ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range workIDs {
		q.queued = append(q.queued, lucius.WorkItem{
			WorkID: id, Rev: 3, Status: lucius.WorkStatusRunning,
			Directive: fmt.Appendf(nil, `{"jobId":"j1","stepId":%q,"service":"ocr","step_type":"OCR","attempt_no":1,
				"input_ref":{"uri":"s3://b/in"},"output_ref":null,"payload":{"language":"en"},
				"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`, id),
		})
		q.revs[id] = 3
	}
	close(q.arrived)
	q.arrived = make(chan struct{})
}

// RoundTrip answers one request of the client.
func (q *fakeQueue) RoundTrip(r *http.Request) (*http.Response, error) {
	defer func() { _ = r.Body.Close() }()
	c := call{At: time.Since(q.begun)}
	path := strings.TrimPrefix(r.URL.Path, "/v1/work")
	c.WorkID, c.Verb, _ = strings.Cut(strings.TrimPrefix(path, "/"), ":")
	if err := json.NewDecoder(r.Body).Decode(&c.Body); err != nil {
		q.t.Errorf("%s: %v", r.URL.Path, err)
	}
	if c.Verb == "complete" && c.WorkID == "" {
		return q.completeBatch(c)
	}
	if status, answer, ok := q.record(&c); ok {
		return q.respond(status, answer)
	}
	if c.Verb != "claim" {
		return q.respond(q.move(&c))
	}
	items, err := q.claim(r.Context(), &c)
	if err != nil {
		return nil, err
	}
	return q.respond(http.StatusOK, lucius.ClaimedWork{Items: items, Warnings: q.nextWarnings()})
}

// nextWarnings are those of the next claim.
func (q *fakeQueue) nextWarnings() (next []lucius.ClaimWarning) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.warnings) > 0 {
		next, q.warnings = q.warnings[0], q.warnings[1:]
	}
	return next
}

// record notes a call and asks the script for its answer.
func (q *fakeQueue) record(c *call) (status int, answer any, ok bool) {
	q.mu.Lock()
	q.calls = append(q.calls, *c)
	q.mu.Unlock()
	if q.script == nil {
		return 0, nil, false
	}
	return q.script(c)
}

// completeBatch completes each item of a batch. An answer of the script without a status,
// or with 500 and more, is that of the whole batch.
func (q *fakeQueue) completeBatch(batch call) (*http.Response, error) {
	q.mu.Lock()
	q.batches = append(q.batches, len(batch.Body.Items))
	q.mu.Unlock()
	var results lucius.WorkCompletionResults
	for _, item := range batch.Body.Items {
		c := call{Verb: "complete", WorkID: item.WorkID, Batch: len(batch.Body.Items), At: batch.At, Body: item}
		result := lucius.WorkCompletionResult{WorkID: item.WorkID, Status: http.StatusOK}
		if status, answer, ok := q.record(&c); !ok {
			_, _ = q.move(&c)
		} else if problem, isProblem := answer.(lucius.Problem); isProblem && status != 0 && status < 500 {
			problem.Status = int32(status)
			result.Status, result.Error = problem.Status, &problem
		} else {
			return q.respond(status, answer)
		}
		results.Results = append(results.Results, result)
	}
	return q.respond(http.StatusOK, results)
}

// claim gives items, and waits for the first.
func (q *fakeQueue) claim(ctx context.Context, c *call) ([]lucius.WorkItem, error) {
	over := time.NewTimer(time.Duration(c.Body.WaitSeconds * float64(time.Second)))
	defer over.Stop()
	for {
		q.mu.Lock()
		n := min(c.Body.Max, len(q.queued))
		items := q.queued[:n:n]
		q.queued = q.queued[n:]
		arrived := q.arrived
		q.mu.Unlock()
		for i := range items {
			items[i].UpdatedAt = q.serverTime()
			items[i].Lease = &lucius.WorkLease{ExpiresAt: q.serverTime().Add(q.lease)}
		}
		if n > 0 {
			return items, nil
		}
		select {
		case <-arrived:
		case <-over.C:
			return []lucius.WorkItem{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serverTime is the server's clock, which is an hour behind the worker's.
func (q *fakeQueue) serverTime() time.Time { return time.Now().Add(-time.Hour) }

// move raises the item's rev, as each verb does.
func (q *fakeQueue) move(c *call) (status int, answer any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rev := q.revs[c.WorkID]; c.Body.ExpectedRev != rev {
		return http.StatusConflict, lucius.Problem{Code: lucius.ProblemCodeRevConflict, CurrentRev: rev}
	}
	q.revs[c.WorkID]++
	return http.StatusOK, q.item(c.WorkID, q.revs[c.WorkID])
}

// item is an item as a heartbeat shows it.
func (q *fakeQueue) item(workID string, rev int64) lucius.WorkItem {
	return lucius.WorkItem{
		WorkID: workID, Rev: rev, Directive: json.RawMessage(`{}`), UpdatedAt: q.serverTime(),
		Lease: &lucius.WorkLease{ExpiresAt: q.serverTime().Add(q.lease)},
	}
}

// respond answers with a body, a problem if the status says so.
func (q *fakeQueue) respond(status int, answer any) (*http.Response, error) {
	if status == 0 {
		return nil, errNoAnswer
	}
	if problem, ok := answer.(lucius.Problem); ok {
		problem.Status = int32(status)
		answer = problem
	}
	text, err := json.Marshal(answer)
	if err != nil {
		q.t.Errorf("answer: %v", err)
	}
	kind := "application/json"
	if _, isProblem := answer.(lucius.Problem); isProblem {
		kind = "application/problem+json"
	}
	header := http.Header{"Content-Type": {kind}}
	if status == http.StatusServiceUnavailable {
		header.Set("Retry-After", q.retryAfter)
	}
	return &http.Response{
		StatusCode: status, Header: header, Body: io.NopCloser(bytes.NewReader(text)),
	}, nil
}

// made are the calls of one verb.
func (q *fakeQueue) made(verb string) []call {
	q.mu.Lock()
	defer q.mu.Unlock()
	var made []call
	for _, c := range q.calls {
		if c.Verb == verb {
			made = append(made, c)
		}
	}
	return made
}

// only is the one call of a verb.
func (q *fakeQueue) only(verb string) call {
	q.t.Helper()
	made := q.made(verb)
	if len(made) != 1 {
		q.t.Fatalf("%d calls of %s, want one: %+v", len(made), verb, made)
	}
	return made[0]
}

// client returns a client of the transport.
func client(t *testing.T, transport http.RoundTripper) *lucius.Client {
	t.Helper()
	c, err := lucius.NewClient(lucius.ClientConfig{URL: "http://server.test", HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// config is the configuration of a worker of the queue.
func (q *fakeQueue) config() lucius.WorkerConfig {
	q.t.Helper()
	return lucius.WorkerConfig{
		Client: client(q.t, q), Owner: "worker-7", Service: "ocr", Log: slog.New(slog.DiscardHandler),
	}
}

// worker is a worker with the handler of OCR.
func (q *fakeQueue) worker(handler lucius.Handler) *lucius.Worker {
	q.t.Helper()
	w := lucius.NewWorker(q.config())
	w.Handle("OCR", handler)
	return w
}

// start starts a worker, and returns what stops it and waits for its end.
func start(t *testing.T, w *lucius.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// once answers the first call of a verb so, and no other.
func once(verb string, status int, answer any) func(*call) (int, any, bool) {
	var mu sync.Mutex
	var used bool
	return func(c *call) (int, any, bool) {
		mu.Lock()
		defer mu.Unlock()
		if c.Verb != verb || used {
			return 0, nil, false
		}
		used = true
		return status, answer, true
	}
}

// succeed is a handler that has nothing to do.
func succeed(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://b/done"), nil }

// lasting is a handler that takes so long, or until its context ends.
func lasting(d time.Duration) lucius.Handler {
	return func(ctx context.Context, _ *lucius.Task) (any, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
