//go:build integration && !race

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lucius-project/lucius/internal/waittest"
)

// TestHostile_UnreadStreams follows a job with a long history without reading it. The server
// does not wait for such a client.
func TestHostile_UnreadStreams(t *testing.T) {
	t.Parallel()
	const streams = 500
	f := startAttacked(t)
	jobID := f.longJob(t)
	f.while(func() {
		for range streams {
			conn := f.dialDeaf(t)
			_, _ = fmt.Fprintf(conn, "GET /v1/jobs/%s/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n",
				jobID, f.token)
		}
		// A slow machine opens the last ones after the first have been closed.
		f.untilUnderWay("streams are open", func(n int) bool { return n >= streams/10 })
		f.untilUnderWay("those that nobody reads are closed", func(n int) bool { return n < streams/10 })
	})
}

// TestHostile_UnreadAnswers requests large responses without reading them.
func TestHostile_UnreadAnswers(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	jobID := f.longJob(t)
	f.while(func() {
		for range 200 {
			conn := f.dialDeaf(t)
			request := fmt.Sprintf("GET /v1/jobs/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", jobID, f.token)
			_, _ = fmt.Fprint(conn, strings.Repeat(request, 10))
		}
		f.untilUnderWay("they are on their way", func(n int) bool { return n > 100 })
	})
}

// TestHostile_AnswersThatRepeatThePayload requests jobs whose 32 steps each have the same
// payload, so that a response has 4 MB, without reading them.
func TestHostile_AnswersThatRepeatThePayload(t *testing.T) {
	t.Parallel()
	protocols := t.TempDir()
	text := "protocol_id: long_v1\nrequest_types: [doc.ingest]\nsteps:\n"
	for i := range 32 {
		text += fmt.Sprintf("  - {step_id: s%d, step_type: S, service: s}\n", i)
	}
	if err := os.WriteFile(filepath.Join(protocols, "long.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startAttacked(t, "--protocols-dir", protocols)
	jobID := f.submit(t, `{"x":"`+strings.Repeat("x", 130_000)+`"}`)
	if got := len(f.want(t, http.StatusOK, http.MethodGet, "/v1/jobs/"+jobID, "").body); got < 32*130_000 {
		t.Fatalf("the job has %d bytes", got)
	}
	f.while(func() {
		for range 1000 {
			_, _ = fmt.Fprintf(f.dialDeaf(t), "GET /v1/jobs/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", jobID, f.token)
		}
		f.untilUnderWay("they are on their way", func(n int) bool { return n > 200 })
	})
}

// TestHostile_TooManyStreams opens more streams than one caller may have.
func TestHostile_TooManyStreams(t *testing.T) {
	t.Parallel()
	const may, beside = 512, 50
	f := startAttacked(t)
	jobID := f.submit(t, `{"language":"en"}`)
	path := "/v1/jobs/" + jobID + "/events"
	f.while(func() {
		var begun, refused atomic.Int64
		var all sync.WaitGroup
		for range may + beside {
			conn, err := f.dial()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n",
					path, f.token)
				beginning := make([]byte, len("HTTP/1.1 200"))
				if _, err := conn.Read(beginning); err != nil {
					t.Errorf("a stream is not answered: %v", err)
				}
				switch string(beginning) {
				case "HTTP/1.1 200":
					begun.Add(1)
				case "HTTP/1.1 429":
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if begun.Load() != may || refused.Load() != beside {
			t.Errorf("%d streams were opened and %d refused, want %d and %d", begun.Load(), refused.Load(), may, beside)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+f.token)
		request.Header.Set("Accept", "text/event-stream")
		got, err := f.send(request)
		if err != nil {
			t.Fatal(err)
		}
		f.expectProblem(http.MethodGet, path, got, "rate_limited")
	})
}

// TestHostile_LongPolls waits for work that never comes, on many connections.
func TestHostile_LongPolls(t *testing.T) {
	t.Parallel()
	const polls = 1000
	f := startAttacked(t)
	f.while(func() {
		for i := range polls {
			conn, err := f.dial()
			if err != nil {
				t.Fatal(err)
			}
			body := claimBody(fmt.Sprint(i), 60, "none")
			headers := fmt.Sprintf("Content-Length: %d\r\n", len(body))
			_, _ = fmt.Fprint(conn, f.posting(f.token, "/v1/work:claim", headers)+body)
		}
		f.untilUnderWay("all of them wait", func(n int) bool { return n >= polls })
	})
}

// submit submits a command that no worker works on.
func (f *attackedServer) submit(t *testing.T, payload string) string {
	t.Helper()
	body := strings.Replace(ingestFor("tenant_long", "k"), "{}}", payload+"}", 1)
	return f.want(t, http.StatusAccepted, http.MethodPost, "/v1/commands", body).field(t, "jobId")
}

// longJob submits a job with more payload, and more history, than the system buffers for a
// client that reads nothing.
func (f *attackedServer) longJob(t *testing.T) string {
	t.Helper()
	jobID := f.submit(t, `{"language":"en","x":"`+strings.Repeat("x", 120_000)+`"}`)
	because := `{"reason":"` + strings.Repeat("y", 1000) + `"}`
	for range 90 {
		f.want(t, http.StatusAccepted, http.MethodPost, "/v1/jobs/"+jobID+":pause", because)
		f.want(t, http.StatusAccepted, http.MethodPost, "/v1/jobs/"+jobID+":resume", because)
	}
	if got := len(f.want(t, http.StatusOK, http.MethodGet, "/v1/jobs/"+jobID+"/events?limit=1000", "").body); got < 200_000 {
		t.Fatalf("the history has %d bytes", got)
	}
	return jobID
}

// dialDeaf opens a connection for which the system buffers hardly anything.
func (f *attackedServer) dialDeaf(t *testing.T) net.Conn {
	t.Helper()
	small := func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(file uintptr) {
			if err = syscall.SetsockoptInt(int(file), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096); err == nil {
				err = syscall.SetsockoptInt(int(file), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
			}
		})
		if failed != nil {
			return failed
		}
		return err
	}
	conn, err := (&net.Dialer{Control: small}).DialContext(t.Context(), "tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// untilUnderWay waits until that many requests are in progress.
func (f *attackedServer) untilUnderWay(what string, enough func(n int) bool) {
	f.t.Helper()
	waittest.Until(f.t, what, func() bool {
		metrics, err := f.call(f.t.Context(), http.MethodGet, "/metrics", "")
		if err != nil {
			f.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(metrics.body, "\nlucius_http_requests_in_flight ")
		var n int
		if _, err := fmt.Sscan(rest, &n); err != nil {
			f.t.Fatal(err)
		}
		return enough(n)
	})
}
