package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/worker"
)

// errNoAnswer is what a client sees of a server that went away.
var errNoAnswer = errors.New("connection reset by peer")

// call is one request that reached the queue, and when.
type call struct {
	Verb   string // claim, heartbeat, complete or fail
	WorkID string
	At     time.Duration
	Body   body
}

// body is what any of the requests may hold.
type body struct {
	Owner       string             `json:"owner"`
	Services    []string           `json:"services"`
	Max         int                `json:"max"`
	WaitSeconds float64            `json:"wait_seconds"`
	Start       bool               `json:"start"`
	RequestID   string             `json:"request_id"`
	ExpectedRev int64              `json:"expected_rev"`
	ResultRef   json.RawMessage    `json:"result_ref"`
	Retryable   bool               `json:"retryable"`
	Error       *api.ReportedError `json:"error"`
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

	mu      sync.Mutex
	calls   []call
	queued  []api.WorkItem
	revs    map[string]int64
	arrived chan struct{}
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
		q.queued = append(q.queued, api.WorkItem{
			WorkID: id, Rev: 3, Status: api.WorkStatusRunning,
			Directive: fmt.Appendf(nil, `{"stepId":%q,"service":"ocr","attempt_no":1,"payload":{"language":"en"}}`, id),
		})
		q.revs[id] = 3
	}
	close(q.arrived)
	q.arrived = make(chan struct{})
}

// Do answers one request of the client.
func (q *fakeQueue) Do(r *http.Request) (*http.Response, error) {
	c := q.record(r)
	if q.script != nil {
		if status, answer, ok := q.script(c); ok {
			return q.respond(status, answer)
		}
	}
	switch c.Verb {
	case "claim":
		items, err := q.claim(r.Context(), c)
		if err != nil {
			return nil, err
		}
		return q.respond(http.StatusOK, api.ClaimedWork{Items: items})
	default:
		return q.respond(http.StatusOK, q.move(c))
	}
}

// record notes a request.
func (q *fakeQueue) record(r *http.Request) *call {
	c := &call{At: time.Since(q.begun)}
	path := strings.TrimPrefix(r.URL.Path, "/v1/work")
	c.WorkID, c.Verb, _ = strings.Cut(strings.TrimPrefix(path, "/"), ":")
	if err := json.NewDecoder(r.Body).Decode(&c.Body); err != nil {
		q.t.Errorf("%s: %v", r.URL.Path, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, *c)
	return c
}

// claim gives items, and waits for the first.
func (q *fakeQueue) claim(ctx context.Context, c *call) ([]api.WorkItem, error) {
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
			items[i].Lease = &api.WorkLease{ExpiresAt: api.NewTime(time.Now().Add(q.lease))}
		}
		if n > 0 {
			return items, nil
		}
		select {
		case <-arrived:
		case <-over.C:
			return []api.WorkItem{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// move raises the item's rev, as each verb does.
func (q *fakeQueue) move(c *call) api.WorkItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rev := q.revs[c.WorkID]; c.Body.ExpectedRev != rev {
		q.t.Errorf("%s of %s at rev %d, it is at %d", c.Verb, c.WorkID, c.Body.ExpectedRev, rev)
	}
	q.revs[c.WorkID]++
	return api.WorkItem{
		WorkID: c.WorkID, Rev: q.revs[c.WorkID], Directive: json.RawMessage(`{}`),
		Lease: &api.WorkLease{ExpiresAt: api.NewTime(time.Now().Add(q.lease))},
	}
}

func (q *fakeQueue) respond(status int, answer any) (*http.Response, error) {
	if status == 0 {
		return nil, errNoAnswer
	}
	text, err := json.Marshal(answer)
	if err != nil {
		q.t.Errorf("answer: %v", err)
	}
	kind := "application/json"
	if status >= 400 {
		kind = "application/problem+json"
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader(text)),
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

// config is a worker's, with the handler.
func (q *fakeQueue) config(handle func(context.Context, api.Directive) (json.RawMessage, error)) worker.Config {
	q.t.Helper()
	client, err := api.NewClientWithResponses("http://server.test", api.WithHTTPClient(q))
	if err != nil {
		q.t.Fatal(err)
	}
	return worker.Config{Client: client, Owner: "worker-7", Services: []string{"ocr"}, Handle: handle}
}

// run starts a worker, and returns what stops it and waits for its end.
func run(t *testing.T, cfg worker.Config) (stop func() error) {
	t.Helper()
	w, err := worker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
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
func succeed(context.Context, api.Directive) (json.RawMessage, error) {
	return json.RawMessage(`{"uri":"s3://b/done"}`), nil
}
