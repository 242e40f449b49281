package httpapi_test

import (
	"bytes"
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
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
	"github.com/lucius-project/lucius/pkg/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contract is the OpenAPI document. The use cases of a harness take any command:
// they do not read it.
var contract = sync.OnceValue(func() *contracttest.Contract {
	made, err := contracttest.New(contracttest.AnyBody("submitCommand", "orchestrate"))
	if err != nil {
		panic(err)
	}
	return made
})

// harness is a server on use cases that only remember. Each request that it
// accepts, and each response that it gives, is held against the OpenAPI document.
type harness struct {
	*httpapi.Server

	useCases *useCases
	registry *prometheus.Registry
	log      *buffer
}

// buffer is a log that is read while it is written to.
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
func newHarness(t *testing.T, configure ...func(*httpapi.Config)) *harness {
	t.Helper()
	h := &harness{useCases: &useCases{}, registry: prometheus.NewRegistry(), log: &buffer{}}
	config := httpapi.Config{
		Commands: commands{h.useCases}, Jobs: jobs{h.useCases}, Callbacks: callbacks{h.useCases}, Work: work{h.useCases},
		Admin: admin{h.useCases}, Failures: failures{h.useCases}, Pauses: pauses{h.useCases},
		Webhooks: webhooks{h.useCases}, Protocols: protocols{h.useCases}, Readiness: readiness{h.useCases}, Registry: h.registry,
		Access: open(), Owners: owners{},
		Log: slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, change := range configure {
		change(&config)
	}
	server, err := httpapi.New(config)
	if err != nil {
		t.Fatal(err)
	}
	h.Server = server
	return h
}

// open lets everybody in who speaks to the hosts that the tests are for.
func open() *access.Authenticator {
	return access.New(access.Config{Hosts: []string{"example.com", "lucius"}})
}

// do serves a request and holds the response against the document. Headers are
// "Name: value" lines; a body is declared as JSON unless they say otherwise, and
// its length unless they say that it is chunked.
func (h *harness) do(t *testing.T, method, target, body string, headers ...string) answer {
	t.Helper()
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
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	got := answer{Status: recorder.Code, Header: recorder.Header(), Body: recorder.Body.String()}
	exchange := &contracttest.Exchange{
		Request: request, Sent: []byte(body), Status: got.Status, Header: got.Header, Received: recorder.Body.Bytes(),
	}
	if err := contract().Check(exchange); err != nil {
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

// problemOf returns the problem that the response is, and fails the test where
// it is none or does not agree with itself.
func problemOf(t *testing.T, response answer) api.Problem {
	t.Helper()
	if got := response.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("%d with content type %q is no problem: %s", response.Status, got, response.Body)
	}
	var found api.Problem
	if err := json.Unmarshal([]byte(response.Body), &found); err != nil {
		t.Fatal(err)
	}
	want := api.Problem{
		Type: found.Code.Type(), Title: found.Code.Title(), Status: int32(found.Code.Status()), Code: found.Code,
		Detail: found.Detail, Instance: "urn:lucius:request:" + response.Header.Get("X-Request-Id"), Errors: found.Errors,
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
func wantProblem(t *testing.T, response answer, code problem.Code, detail string) {
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

// withoutWork is a server without a pull queue.
func withoutWork(c *httpapi.Config) { c.Work = nil }

// listen serves the harness over the loopback interface until the test ends.
func listen(t *testing.T, h *harness) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config = httpapi.NewHTTPServer(h, slog.New(slog.NewTextHandler(h.log, nil)))
	server.Start()
	t.Cleanup(server.Close)
	return server
}
