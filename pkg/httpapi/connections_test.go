package httpapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/httpapi"
)

// crowded serves the handler on at most limit connections until the test ends.
func crowded(t *testing.T, limit int, handler http.HandlerFunc) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httpapi.NewHTTPServer(handler, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	limited := httpapi.LimitConnections(server, listener, limit)
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// request asks for a path on the connection.
func request(t *testing.T, conn net.Conn, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lucius\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

// answered returns why no request was answered well on the connection.
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

// get has a request answered on the connection.
func get(t *testing.T, conn net.Conn) {
	t.Helper()
	request(t, conn, "/")
	if err := answered(conn); err != nil {
		t.Fatal(err)
	}
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

func TestANewConnectionTakesThePlaceOfTheLongestIdle(t *testing.T) {
	t.Parallel()
	address := crowded(t, 2, func(http.ResponseWriter, *http.Request) {})
	silent, second := connect(t, address), connect(t, address)
	get(t, second)
	third := connect(t, address)
	get(t, third)
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
	busy, later := connect(t, address), connect(t, address)
	request(t, busy, "/wait")
	<-begun
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

func TestAServerEndsWhileAConnectionWaits(t *testing.T) {
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
