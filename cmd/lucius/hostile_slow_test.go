//go:build integration && !race

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHostile_SlowClients sends headers that never end and bodies that hardly arrive. The
// server waits for them no longer than its timeouts, even if it refuses the request without
// reading the body.
func TestHostile_SlowClients(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	f.while(func() {
		var attacks sync.WaitGroup
		attacks.Go(func() { f.allAtOnce(200, f.sendSlowHeaders) })
		attacks.Go(func() { f.allAtOnce(100, f.sendSlowBody(f.token, "invalid_json")) })
		attacks.Go(func() { f.allAtOnce(100, f.sendSlowBody("", "unauthenticated")) })
		attacks.Wait()
	})
}

// TestHostile_SlowClientsDoNotHoldUpAStop sends bodies and headers that hardly arrive, and
// reads no answers, while the server stops: it ends in good order, long before its grace.
func TestHostile_SlowClientsDoNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	f := startAttacked(t, "--shutdown-grace", "1h")
	for _, text := range []string{
		"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
		f.posting(f.token, "/v1/commands", "Content-Length: 100000\r\n"), f.posting("", "/v1/commands", "Content-Length: 100000\r\n"),
		f.posting("", "/ui/sign-in", "Content-Length: 100000\r\n"),
		strings.Repeat("GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n", 50), // Its answers are not read.
	} {
		conn := f.dialDeaf(t)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, "GET /docs") {
			go drip(conn, "a", time.Second)
		}
	}
	f.untilUnderWay("the slow clients", func(n int) bool { return n >= 3 })
	f.terminate()
}

// sendSlowHeaders fails unless the connection ends without an answer.
func (f *attackedServer) sendSlowHeaders(conn net.Conn) {
	_, _ = fmt.Fprint(conn, "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	go drip(conn, "a", 100*time.Millisecond)
	if said := f.expectClosed(conn); said != "" {
		f.t.Errorf("a request without an end is answered %.200s", said)
	}
}

// sendSlowBody fails unless the request is answered with a problem of that code,
// and the connection ends.
func (f *attackedServer) sendSlowBody(token, code string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = fmt.Fprint(conn, f.posting(token, "/v1/commands", "Content-Length: 100000\r\n"))
		go drip(conn, " ", time.Second)
		got, err := read(conn)
		if err != nil {
			f.t.Errorf("with code %s in prospect: %v", code, err)
			return
		}
		f.expectProblem(http.MethodPost, "/v1/commands", got, code)
		f.expectClosed(conn)
	}
}

// drip sends the text repeatedly and slowly until the connection ends.
func drip(w io.Writer, text string, pause time.Duration) {
	for {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		time.Sleep(pause)
	}
}
