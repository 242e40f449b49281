//go:build sdk

package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// call is one request of a worker, with its answer. A batch of completions is a call for each.
type call struct {
	// verb is claim, heartbeat, complete or fail.
	verb, workID string
	// task is the one of the item.
	task

	traceparent string
	// together is how many completions share the request, 0 if it is alone.
	together int
	body     struct {
		WorkID     string  `json:"work_id"`
		RequestID  string  `json:"request_id"`
		Owner      string  `json:"owner"`
		Rev        int64   `json:"expected_rev"`
		Retryable  bool    `json:"retryable"`
		RetryAfter float64 `json:"retry_after_seconds"`
		Scope      string  `json:"scope"`
		Lease      float64 `json:"lease_seconds"`
		Error      struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	// status is the server's answer, 0 if the request did not reach it or had none.
	status int
	items  int // that a claim got
}

// fault is what the proxy does to calls of one verb.
type fault struct {
	verb string
	// scenario and attempt narrow it, unless they are empty.
	scenario string
	attempt  int
	// times is how many calls suffer it.
	times int
	// shared says that it may happen to a batch. The proxy refuses a batch with any other
	// fault ahead, so that each of its completions comes alone.
	shared bool
	// One of these is set. A claim's answer is dropped only if it has tasks.
	dropAnswer bool // Pass the request on, and break the connection.
	hold       bool // Answer nothing until the worker gives up.
	refuse     bool // Answer 503 with Retry-After in the server's place.
	expire     bool // Answer 401 in the server's place.
	stray      bool // Answer 404 with a code of its own, as a proxy without a way to the server.
	raiseRev   bool // Extend the lease first in the worker's name, so that its rev is old.
}

func (f *fault) matches(c *call) bool {
	return f.times > 0 && c.verb == f.verb && (!f.dropAnswer || c.verb != "claim" || c.items > 0) && (f.scenario == "" || c.scenario == f.scenario) &&
		(f.attempt == 0 || c.attempt == f.attempt)
}

// proxy stands between the worker and the server.
type proxy struct {
	t      *testing.T
	url    string
	target atomic.Value // host:port, empty if the server is away.
	delay  atomic.Int64 // of each request and of each answer
	// token is the one that requests must have, empty if it does not matter.
	token atomic.Value
	// lose, unless it is nil, says whether the answer to this request is dropped.
	lose   func(method, path string) bool
	server *http.Client

	mu     sync.Mutex // Guards what follows.
	calls  []*call
	faults []*fault
	tasks  map[string]task // by work id
}

// task is what a claim handed out.
type task struct {
	jobID    string
	attempt  int
	scenario string
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	p := &proxy{t: t, tasks: map[string]task{}, server: &http.Client{Transport: transport}}
	p.target.Store("")
	p.token.Store("")
	front := httptest.NewServer(p)
	p.url = front.URL
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *proxy) inject(f *fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
}

// faultFor returns the fault that a request suffers before or once it is answered, or an
// empty one, with the call that it is meant for.
func (p *proxy) faultFor(calls []*call, answered bool) (fault, *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		for _, c := range calls {
			if f.matches(c) && f.dropAnswer == answered {
				f.times--
				return *f, c
			}
		}
	}
	return fault{}, nil
}

// seen returns the calls that match.
func (p *proxy) seen(match func(*call) bool) []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []call
	for _, c := range p.calls {
		if match(c) {
			found = append(found, *c)
		}
	}
	return found
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // The worker gave up.
	}
	calls := p.record(r, body)
	if calls == nil {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	f, meant := p.faultFor(calls, false)
	if token := p.token.Load().(string); token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		f = fault{expire: true}
	}
	switch {
	case f.expire:
		p.unauthenticated(w, calls)
		return
	case f.stray:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"code":404,"message":"no route"}`) // The worker may have given up.
		return
	case f.hold:
		<-r.Context().Done()
		return
	case f.refuse:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case f.raiseRev:
		p.extend(r, meant)
	}
	p.wait(r)
	if r.Header.Get("Accept") == "text/event-stream" {
		p.stream(w, r)
		return
	}
	answer, err := p.forward(r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	p.learn(calls, answer)
	if p.loses(r) {
		panic(http.ErrAbortHandler)
	}
	if f, _ := p.faultFor(calls, true); f.dropAnswer {
		panic(http.ErrAbortHandler)
	}
	p.wait(r)
	maps.Copy(w.Header(), answer.header)
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body) // The worker may have given up.
}

// unauthenticated refuses a request for its token.
func (p *proxy) unauthenticated(w http.ResponseWriter, calls []*call) {
	p.learn(calls, answer{status: http.StatusUnauthorized})
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"status":401,"code":"unauthenticated","detail":"The token has expired."}`) // The worker may have given up.
}

// stream passes a stream on as it comes.
func (p *proxy) stream(w http.ResponseWriter, r *http.Request) {
	p.loses(r)
	target := &url.URL{Scheme: "http", Host: p.target.Load().(string)}
	(&httputil.ReverseProxy{
		Transport: p.server.Transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}).ServeHTTP(w, r)
}

// loses returns whether the answer is lost by lose, of which one call is made at a time.
func (p *proxy) loses(r *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lose != nil && p.lose(r.Method, r.URL.Path)
}

func (p *proxy) wait(r *http.Request) {
	select {
	case <-time.After(time.Duration(p.delay.Load())):
	case <-r.Context().Done():
	}
}

// record notes a request before it is passed on, as one call or as those of a batch. It
// returns none for a batch that is to be refused.
func (p *proxy) record(r *http.Request, body []byte) (calls []*call) {
	path, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/work"), ":")
	parts := []json.RawMessage{body}
	if verb == "complete" && path == "" {
		var batch struct{ Items []json.RawMessage }
		if err := json.Unmarshal(body, &batch); err != nil {
			p.t.Errorf("%s %s is no batch: %v", r.Method, r.URL, err)
		}
		parts = batch.Items
	}
	for _, part := range parts {
		c := &call{verb: verb, workID: strings.TrimPrefix(path, "/"), traceparent: r.Header.Get("traceparent")}
		if err := json.Unmarshal(part, &c.body); err != nil && len(part) > 0 {
			p.t.Errorf("%s %s is no JSON: %v", r.Method, r.URL, err)
		}
		if c.body.WorkID != "" {
			c.workID, c.together = c.body.WorkID, len(parts)
		}
		calls = append(calls, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range calls {
		c.task = p.tasks[c.workID]
		if c.together > 0 && slices.ContainsFunc(p.faults, func(f *fault) bool { return !f.shared && f.matches(c) }) {
			return nil
		}
	}
	p.calls = append(p.calls, calls...)
	return calls
}

// extend makes a heartbeat of its own for the call's task.
func (p *proxy) extend(r *http.Request, c *call) {
	beat := r.Clone(context.WithoutCancel(r.Context())) // The worker may give up meanwhile.
	beat.URL.Path = "/v1/work/" + c.workID + ":heartbeat"
	body := fmt.Sprintf(`{"owner":%q,"expected_rev":%d,"request_id":"of the proxy"}`, c.body.Owner, c.body.Rev)
	answer, err := p.forward(beat, []byte(body))
	if err != nil || answer.status != http.StatusOK && answer.status != http.StatusConflict { // The rev may be old already.
		p.t.Errorf("the proxy's heartbeat: %d %v %s", answer.status, err, answer.body)
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (p *proxy) forward(r *http.Request, body []byte) (answer, error) {
	target := "http://" + p.target.Load().(string) + r.URL.RequestURI()
	request, err := http.NewRequestWithContext(r.Context(), r.Method, target, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header = r.Header.Clone()
	response, err := p.server.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }() // It is read.
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, content}, err
}

// learn notes the server's answer, and which tasks a claim handed out.
func (p *proxy) learn(calls []*call, a answer) {
	var said struct {
		Items []struct { // of a claim
			WorkID    string `json:"work_id"`
			Directive struct {
				JobID   string `json:"jobId"`
				Attempt int    `json:"attempt_no"`
				Payload struct {
					Scenario string `json:"scenario"`
				} `json:"payload"`
			} `json:"directive"`
		} `json:"items"`
		Results []struct { // of a batch
			Status int `json:"status"`
		} `json:"results"`
	}
	together := calls[0].together > 0
	if (together || calls[0].verb == "claim") && a.status == http.StatusOK {
		if err := json.Unmarshal(a.body, &said); err != nil || together && len(said.Results) != len(calls) {
			p.t.Errorf("the answer to a claim or a batch of %d: %v, %s", len(calls), err, a.body)
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range calls {
		if c.status = a.status; len(said.Results) > 0 {
			c.status = said.Results[i].Status
		}
	}
	calls[0].items = len(said.Items)
	for _, item := range said.Items {
		p.tasks[item.WorkID] = task{item.Directive.JobID, item.Directive.Attempt, item.Directive.Payload.Scenario}
	}
}
