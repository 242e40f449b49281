package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*httpapi.Config){
		"MaxBodyBytes": func(c *httpapi.Config) { c.MaxBodyBytes = -1 },
		"BodyTimeout":  func(c *httpapi.Config) { c.BodyTimeout = -1 },
		"MaxWaits":     func(c *httpapi.Config) { c.MaxWaits = -1 },
	} {
		config := newHarness(t).config()
		change(&config)
		if _, err := httpapi.New(config); err == nil || !strings.Contains(err.Error(), "must not be negative") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		given string
		kept  bool
	}{
		{"a plain one is kept", "req-42_A.z", true},
		{"the longest is kept", strings.Repeat("a", 128), true},
		{"a longer one is replaced", strings.Repeat("a", 129), false},
		{"none is replaced", "", false},
		{"one with a space is replaced", "a b", false},
		{"one that is no ASCII is replaced", "ä", false},
		{"one that forges a line is replaced", "a\\nlevel=ERROR", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			var seen string
			h.store.on(func(ctx context.Context) error {
				seen = httpapi.RequestID(ctx)
				return nil
			})
			got := h.do(t, http.MethodGet, "/v1/jobs/$job", "", "X-Request-Id: "+test.given).Header.Get("X-Request-Id")
			if seen != got {
				t.Errorf("the use case sees %q, the client %q", seen, got)
			}
			if kept := got == test.given; kept != test.kept {
				t.Errorf("given %q, got %q", test.given, got)
			}
		})
	}
}

func TestRequestsAreLoggedAtDebug(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	job := h.submitted(t)
	h.do(t, http.MethodGet, "/v1/jobs/"+job+"?wait=0s", "", "X-Request-Id: req-1")
	for _, want := range []string{
		"level=DEBUG msg=request", "request_id=req-1", "method=GET", "path=/v1/jobs/" + job, "route=/v1/jobs/{jobId}", "status=200",
	} {
		if log := h.log.String(); !strings.Contains(log, want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}

func TestAPanicIsAnInternalErrorAndLoggedWithItsStack(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.on(func(context.Context) error { panic("out of cheese") })
	wantProblem(t, h.do(t, http.MethodGet, "/v1/jobs/$job", ""), apierror.Internal, "")
	for _, want := range []string{"level=ERROR", "out of cheese", "server_test.go"} {
		if log := h.log.String(); !strings.Contains(log, want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
	h.measures(t,
		`lucius_http_requests_total{code="500",method="GET",route="/v1/jobs/{jobId}"} 1`,
		`lucius_http_requests_in_flight 1`,
	)
}

// brokenWriter panics when the body is written.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { panic("out of cheese") }

func TestAPanicWithinAnAnswerCutsTheConnection(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	path := "/v1/jobs/" + h.submitted(t)
	recovered := func() (recovered any) {
		defer func() { recovered = recover() }()
		h.ServeHTTP(brokenWriter{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, path, nil))
		return nil
	}()
	if recovered != http.ErrAbortHandler { //nolint:errorlint // It is a value to panic with.
		t.Errorf("the server goes on with %v", recovered)
	}
	if log := h.log.String(); !strings.Contains(log, "out of cheese") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	h.measures(t, `lucius_http_requests_in_flight 1`)
}

func TestAHandlerMayCutTheConnection(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	path := "/v1/jobs/" + h.submitted(t)
	h.store.on(func(context.Context) error { panic(http.ErrAbortHandler) })
	server := listen(t, h)
	response, err := server.Client().Get(server.URL + path)
	if err == nil {
		_ = response.Body.Close()
		t.Errorf("the client got the answer %s", response.Status)
	}
	if log := h.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("it is logged as an error:\n%s", log)
	}
}

func TestASlowBodyIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	server := listen(t, h)
	response, closes := post(t, server, "/v1/commands", "Content-Length: 10\r\n\r\n{")
	if !closes {
		t.Error("the connection is kept")
	}
	wantProblem(t, response, apierror.InvalidJSON, "The body could not be read to its end.")
}

func TestATimeoutOfTheBodyDoesNotEndAWait(t *testing.T) {
	t.Parallel()
	const bodyTimeout = 20 * time.Millisecond
	h := newHarness(t, func(c *httpapi.Config) { c.BodyTimeout = bodyTimeout })
	server := listen(t, h)
	body := fmt.Sprintf(`{"owner":"o","request_id":"r","wait_seconds":%g}`, (10 * bodyTimeout).Seconds())
	response, _ := post(t, server, "/v1/work:claim", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	if response.Status != http.StatusOK {
		t.Errorf("%d: %s", response.Status, response.Body)
	}
}

// post sends a request with these last lines of its header and this body. It returns the
// answer while the connection is still open for writing, and whether the server will close
// it.
func post(t *testing.T, server *httptest.Server, path, rest string) (got answer, closes bool) {
	t.Helper()
	address := server.Listener.Addr()
	connection, err := net.Dial(address.Network(), address.String())
	musttest.NoError(t, err)
	defer func() { _ = connection.Close() }()
	_, err = fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: lucius\r\nContent-Type: application/json\r\n%s", path, rest)
	musttest.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	musttest.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	musttest.NoError(t, err)
	return answer{Status: response.StatusCode, Header: response.Header, Body: string(body)}, response.Close
}

func TestTheHTTPServerHasLimitsAndLeavesTimeToWait(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	server := listen(t, h).Config
	if server.ReadHeaderTimeout <= 0 || server.IdleTimeout <= 0 || server.MaxHeaderBytes <= 0 || server.ErrorLog == nil {
		t.Errorf("a limit is missing: %+v", server)
	}
	if server.ReadTimeout != 0 {
		t.Errorf("ReadTimeout %s would end requests that wait", server.ReadTimeout)
	}
	if server.WriteTimeout <= httpapi.MaxWait+httpapi.DefaultBodyTimeout {
		t.Errorf("WriteTimeout %s would end requests that wait", server.WriteTimeout)
	}
}
