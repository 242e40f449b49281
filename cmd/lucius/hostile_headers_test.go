//go:build !race

package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// TestHostile_HeaderFloods sends headers that are too large: one that does not
// end, and many, and a request line.
func TestHostile_HeaderFloods(t *testing.T) {
	t.Parallel()
	const start = "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
	f := startAttacked(t)
	for name, flood := range map[string]func(io.Writer){
		"one that does not end": func(w io.Writer) { pour(w, start+"X-Big: ", "a") },
		"100,000 of them":       func(w io.Writer) { pour(w, start, "X-Small: a\r\n") },
		"a path":                func(w io.Writer) { pour(w, "GET /v1/jobs/", "a") },
		"a token":               func(w io.Writer) { pour(w, start+"Authorization: Bearer ", "a.") },
		"a folded one":          func(w io.Writer) { pour(w, start+"X-Fold: a", "\r\n a") },
	} {
		f.while(func() {
			f.allAtOnce(20, func(conn net.Conn) {
				go flood(conn)
				said := f.expectClosed(conn)
				if !strings.HasPrefix(said, "HTTP/1.1 431 ") && !strings.HasPrefix(said, "HTTP/1.1 400 ") && said != "" {
					t.Errorf("%s: answered %.200s", name, said)
				}
			})
		})
	}
}

// TestHostile_NoHTTP sends text that is not an HTTP request.
func TestHostile_NoHTTP(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	for _, text := range []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", // a TLS client
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET / HTTP/9.9\r\n\r\n",
		"GET /v1/jobs HTTP/1.1\r\n\r\n", // no Host header
		"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n",
		"POST /v1/commands HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"POST /v1/commands HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
		"POST /v1/commands HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
		strings.Repeat("\x00", 100) + "\r\n\r\n",
	} {
		f.allAtOnce(1, func(conn net.Conn) {
			_, _ = fmt.Fprint(conn, text)
			said := f.expectClosed(conn)
			if !strings.HasPrefix(said, "HTTP/1.1 4") && !strings.HasPrefix(said, "HTTP/1.1 5") {
				t.Errorf("%q is answered %.200q", text, said)
			}
		})
	}
	f.while(func() {})
}

// allAtOnce attacks on n connections at a time.
func (f *attackedServer) allAtOnce(n int, attack func(net.Conn)) {
	var attacks sync.WaitGroup
	for range n {
		attacks.Go(func() {
			conn, err := f.dial()
			if err != nil {
				f.t.Errorf("connect: %v", err)
				return
			}
			defer func() { _ = conn.Close() }()
			attack(conn)
		})
	}
	attacks.Wait()
}

// pour sends a beginning and then the same text repeatedly without delay, at least 100,000
// times and until the connection ends.
func pour(w io.Writer, beginning, text string) {
	chunk := strings.Repeat(text, 10_000)
	for _, err := io.WriteString(w, beginning); err == nil; {
		_, err = io.WriteString(w, chunk)
	}
}
