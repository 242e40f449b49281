package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contract is the OpenAPI document.
var contract = sync.OnceValue(func() *contracttest.Contract {
	made, err := contracttest.New()
	if err != nil {
		panic(err)
	}
	return made
})

// harness is a server on the real use cases, over a store in memory. A second server
// on the same use cases, which admits every caller without limits, creates the objects
// that a test needs. Each accepted request, and each response, is checked against the
// OpenAPI document.
type harness struct {
	*httpapi.Server

	useCases httpapi.UseCases
	prepare  *httpapi.Server
	contract *contracttest.Contract
	store    *testStore
	ledger   *ledger.Ledger
	relay    *outbox.Relay
	registry *prometheus.Registry
	log      *buffer
	closures closures
	// tenant owns the objects that fill creates. Its default is t.
	tenant   string
	commands int
}

// buffer is a log that may be read while it is written to.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(data)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// newHarness returns a harness; configure may change the server's configuration.
func newHarness(t testing.TB, configure ...func(*httpapi.Config)) *harness {
	t.Helper()
	h := &harness{
		contract: contract(), store: newTestStore(), log: &buffer{}, tenant: "t",
	}
	musttest.NoError(t, h.assemble(t.Context()))
	go refresh(t.Context(), h.useCases.Gate)
	h.prepare = h.serve(t)
	h.Server = h.serve(t, configure...)
	h.store.reset()
	return h
}

// serve returns a server on the use cases of the harness, which admits every caller.
func (h *harness) serve(t testing.TB, configure ...func(*httpapi.Config)) *httpapi.Server {
	t.Helper()
	config := h.config()
	for _, change := range configure {
		change(&config)
	}
	server, err := httpapi.New(config)
	musttest.NoError(t, err)
	h.registry = config.Registry
	return server
}

// config is the configuration of a server that admits every caller, with its own
// registry.
func (h *harness) config() httpapi.Config {
	return httpapi.Config{
		UseCases: h.useCases, Ready: h.ready, Registry: prometheus.NewRegistry(), Auth: open(), Lanes: 16,
		Log: slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// ready reports the state of the store, as the program does, and a warning.
func (h *harness) ready(ctx context.Context) ([]string, error) {
	_, _, err := h.ledger.Live(ctx, "", 0, 1, "")
	return []string{"The circuit to the bus is open."}, ledger.Problem(err)
}

// quiet discards the log.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// open admits every caller that addresses the hosts of the tests.
func open() *auth.Authenticator {
	return auth.New(auth.Config{Hosts: []string{"example.com", "lucius"}})
}

// do serves a request, in which names such as $job are replaced by objects (see fill), and
// checks the response against the document. Headers are "Name: value" lines; a body is
// declared as JSON unless they say otherwise, and its length unless they say that it is
// chunked.
func (h *harness) do(t testing.TB, method, target, body string, headers ...string) answer {
	t.Helper()
	target, body = h.fill(t, target, body)
	h.store.reset()
	return h.send(t, h.Server, newRequest(t, method, target, body, headers...), body)
}

// newRequest is a request with those headers.
func newRequest(t testing.TB, method, target, body string, headers ...string) *http.Request {
	request := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if body == "" {
		request.Body, request.ContentLength = http.NoBody, 0
	} else {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case value == "":
			request.Header.Del(name)
		case name == "Transfer-Encoding":
			request.ContentLength = -1
		case name == "Content-Type":
			request.Header.Set(name, value)
		default:
			request.Header.Add(name, value)
		}
	}
	return request
}

// send sends a request to one of the servers, and checks both against the contract.
func (h *harness) send(t testing.TB, server *httpapi.Server, request *http.Request, body string) answer {
	t.Helper()
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	got := answer{Status: recorder.Code, Header: recorder.Header(), Body: recorder.Body.String()}
	exchange := &contracttest.Exchange{
		Request: request, Sent: []byte(body), Status: got.Status, Header: got.Header, Received: recorder.Body.Bytes(),
	}
	if err := h.contract.Check(exchange); err != nil {
		t.Error(err)
	}
	return got
}

// answer is a response that was read to its end.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// decoded is the body of an answer.
func decoded[T any](t testing.TB, got answer) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(got.Body), &value); err != nil {
		t.Fatalf("%d %s: %v", got.Status, got.Body, err)
	}
	return value
}

// problemOf returns the response's problem, and fails the test if there is none or its
// fields contradict each other.
func problemOf(t *testing.T, response answer) api.Problem {
	t.Helper()
	if got := response.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("%d with content type %q is no problem: %s", response.Status, got, response.Body)
	}
	found := decoded[api.Problem](t, response)
	want := api.Problem{
		Type: found.Code.Type(), Title: found.Code.Title(), Status: int32(found.Code.Status()), Code: found.Code,
		Detail: found.Detail, Instance: "urn:lucius:request:" + response.Header.Get("X-Request-Id"), Errors: found.Errors,
		CurrentRev: found.CurrentRev,
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("the problem does not agree with itself (-want +got):\n%s", diff)
	}
	if response.Status != found.Code.Status() {
		t.Errorf("status %d with code %s", response.Status, found.Code)
	}
	return found
}

// wantProblem fails the test unless the response is a problem of that code and
// detail.
func wantProblem(t *testing.T, response answer, code apierror.Code, detail string) {
	t.Helper()
	found := problemOf(t, response)
	if found.Code != code || found.Detail != detail {
		t.Errorf("got %s %q, want %s %q", found.Code, found.Detail, code, detail)
	}
}

// split cuts "METHOD /path" in two.
func split(target string) (method, path string) {
	method, path, _ = strings.Cut(target, " ")
	return method, path
}

// measures fails the test unless /metrics shows each of the lines.
func (h *harness) measures(t *testing.T, lines ...string) {
	t.Helper()
	metrics := h.do(t, http.MethodGet, "/metrics", "").Body
	for _, line := range lines {
		if !strings.Contains("\n"+metrics, "\n"+line+"\n") {
			t.Errorf("/metrics does not show %s\n%s", line, metrics)
		}
	}
}

// listen serves the harness over the loopback interface until the test ends.
func listen(t *testing.T, h *harness) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config = httpapi.NewHTTPServer(h, slog.New(slog.NewTextHandler(h.log, nil)))
	server.Start()
	t.Cleanup(server.Close)
	return server
}
