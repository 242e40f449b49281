package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// crowded serves the handler on at most limit connections until the test ends.
func crowded(t *testing.T, limit int, handler http.HandlerFunc) (address string) {
	t.Helper()
	return crowdedWith(t, limit, handler, func() {})
}

// crowdedWith is crowded for a test that is told whenever a connection has become idle.
func crowdedWith(t *testing.T, limit int, handler http.HandlerFunc, idle func()) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	musttest.NoError(t, err)
	server := httpapi.NewHTTPServer(handler, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	limited := httpapi.LimitConnections(server, listener, limit)
	record := server.ConnState
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if record(conn, state); state == http.StateIdle {
			idle()
		}
	}
	go func() { ended <- server.Serve(limited) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// connect opens a connection that ends with the test.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	musttest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	musttest.NoError(t, conn.SetDeadline(time.Now().Add(waittest.Bound(t))))
	return conn
}

// request asks for a path on the connection.
func request(t *testing.T, conn net.Conn, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lucius\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

// answered returns an error unless a request on the connection gets a good answer.
func answered(conn net.Conn) error {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return response.Body.Close()
}

// get sends a request on the connection and fails the test unless it is answered.
func get(t *testing.T, conn net.Conn) {
	t.Helper()
	request(t, conn, "/")
	musttest.NoError(t, answered(conn))
}

// expectEnd fails unless the server has closed the connection, or does so.
func expectEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the connection goes on")
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open: %v", err)
	}
}

func TestANewConnectionReplacesTheOneIdleLongest(t *testing.T) {
	t.Parallel()
	idle := make(chan struct{}, 10)
	address := crowdedWith(t, 2, func(http.ResponseWriter, *http.Request) {}, func() { idle <- struct{}{} })
	silent, second := connect(t, address), connect(t, address)
	get(t, second)
	<-idle // The answer arrives before that.
	third := connect(t, address)
	get(t, third)
	<-idle
	expectEnd(t, silent)
	fourth := connect(t, address)
	get(t, fourth)
	expectEnd(t, second)
	get(t, third)
	get(t, fourth)
}

func TestANewConnectionWaitsWhileAllHaveARequest(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	address := crowded(t, 1, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(begun)
			<-release
		}
	})
	busy := connect(t, address)
	request(t, busy, "/wait")
	<-begun // Until then the connection is idle, and would make room.
	later := connect(t, address)
	request(t, later, "/")
	waited := make(chan error, 1)
	go func() { waited <- answered(later) }()
	select {
	case err := <-waited:
		t.Errorf("the new connection does not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := answered(busy); err != nil {
		t.Errorf("the request under way is not answered: %v", err)
	}
	if err := <-waited; err != nil {
		t.Errorf("the new connection is not served: %v", err)
	}
}

func TestAServerClosesWhileAConnectionWaits(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	address := crowded(t, 1, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})
	request(t, connect(t, address), "/")
	<-begun
	connect(t, address)
}

// sendRaw writes raw bytes as a client, which may be only part of a request.
func sendRaw(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := fmt.Fprint(conn, text); err != nil {
		t.Fatal(err)
	}
}

// Otherwise net/http would answer, without log and metrics.
func TestOptionsOfTheWholeServerAreAnsweredAsAnyOtherPath(t *testing.T) {
	t.Parallel()
	conn := connect(t, crowded(t, 1, newHarness(t).ServeHTTP))
	sendRaw(t, conn, "OPTIONS * HTTP/1.1\r\nHost: lucius\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	musttest.NoError(t, err)
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusNotFound || kind != "application/problem+json" {
		t.Errorf("answered %d %s", response.StatusCode, kind)
	}
}

// unauthenticated are requests without a valid credential that do not end on their own.
var unauthenticated = map[string]string{
	"a body that does not come": "POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nContent-Length: 9\r\n\r\n{",
	"chunks that do not come":   "POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
	"a body for nothing":        "POST /none HTTP/1.1\r\nHost: lucius\r\nContent-Length: 9\r\n\r\n{",
	"a body for a probe":        "GET /healthz HTTP/1.1\r\nHost: lucius\r\nContent-Length: 9\r\n\r\n{",
	"answers that are not read": strings.Repeat("GET /docs HTTP/1.1\r\nHost: lucius\r\n\r\n", 50),
	"an unknown credential":     "POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nAuthorization: Bearer x\r\nContent-Length: 9\r\n\r\n{",
}

func TestARequestWithoutACredentialKeepsNoConnection(t *testing.T) {
	t.Parallel()
	for name, text := range unauthenticated {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, []string{"read:*"}, func(c *httpapi.Config) { c.BodyTimeout = time.Hour })
			job := g.submitted(t)
			begun := make(chan struct{})
			var once sync.Once
			g.store.on(func(context.Context) error {
				once.Do(func() { close(begun) })
				return nil
			})
			address := crowded(t, 2, g.ServeHTTP)
			let := func(path string) net.Conn {
				conn := connect(t, address)
				sendRaw(t, conn, "GET "+path+" HTTP/1.1\r\nHost: lucius\r\nAuthorization: Bearer "+g.tokens["read:*"]+"\r\n\r\n")
				return conn
			}
			// An admitted request waits on the oldest connection.
			waits := let("/v1/jobs/" + job + "?wait=60s")
			<-begun
			sendRaw(t, connect(t, address), text)
			if err := answered(let("/v1/protocols")); err != nil {
				t.Errorf("a client that is let in is not answered: %v", err)
			}
			g.given(t, "POST /v1/jobs/"+job+":cancel", "")
			if err := answered(waits); err != nil {
				t.Errorf("the request under way is not answered: %v", err)
			}
		})
	}
}

// Beyond half of the connections, a caller's requests are served but keep none.
func TestOneCallerDoesNotKeepOthersFromConnecting(t *testing.T) {
	t.Parallel()
	const greedy, other = "submit:*", "read:*"
	g := newGuarded(t, []string{greedy, other}, func(c *httpapi.Config) { c.BodyTimeout = time.Hour })
	const limit = 4
	address := crowded(t, limit, g.ServeHTTP)
	for range limit {
		conn := connect(t, address)
		sendRaw(t, conn, "POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nAuthorization: Bearer "+g.tokens[greedy]+
			"\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n') // The server reads the body only of a request that is let in.
		if err != nil || !strings.Contains(line, "100 Continue") {
			t.Fatalf("a body is not asked for: %q, %v", line, err)
		}
	}
	for _, head := range []string{"/v1/protocols HTTP/1.1\r\nAuthorization: Bearer " + g.tokens[other], "/healthz HTTP/1.1"} {
		conn := connect(t, address)
		sendRaw(t, conn, "GET "+head+"\r\nHost: lucius\r\n\r\n")
		if err := answered(conn); err != nil {
			t.Errorf("another caller is not answered: %v", err)
		}
	}
}

// net/http refuses malformed HTTP before the handler sees it, as the OpenAPI document
// and the guide for operators say.
func TestMalformedHTTPIsRefusedInPlainText(t *testing.T) {
	t.Parallel()
	address := listen(t, newHarness(t)).Listener.Addr().String()
	for head, status := range map[string]int{
		"no HTTP": http.StatusBadRequest,
		"GET / HTTP/1.1\r\nHost: lucius\r\nX: " + strings.Repeat("x", 64<<10):                http.StatusRequestHeaderFieldsTooLarge,
		"POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nTransfer-Encoding: gzip":              http.StatusNotImplemented,
		"GET / HTTP/9.9\r\nHost: lucius":                                                     http.StatusHTTPVersionNotSupported,
		"POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nExpect: wonders\r\nContent-Length: 2": http.StatusExpectationFailed,
	} {
		conn := connect(t, address)
		if _, err := fmt.Fprint(conn, head+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%.80q: %v", head, err)
			continue
		}
		body, _ := io.ReadAll(response.Body) // A reset after the answer counts as its end.
		_ = response.Body.Close()
		media := response.Header.Get("Content-Type")
		if response.StatusCode != status || !response.Close || response.Header.Get("X-Request-Id") != "" {
			t.Errorf("%.80q is answered %s with %v", head, response.Status, response.Header)
		}
		if empty := status == http.StatusExpectationFailed; empty != (len(body) == 0) || !empty && !strings.HasPrefix(media, "text/plain") {
			t.Errorf("%.80q is answered with %s %q", head, media, body)
		}
	}
}
