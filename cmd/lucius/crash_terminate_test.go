//go:build integration && !race

package main

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
)

// TestTerminate_UnderLoad sends the server SIGTERM repeatedly while requests are in
// progress. It ends with status 0, answers waiting requests, cuts off no answer, and has
// not accepted a command that it did not answer.
func TestTerminate_UnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := &witness{RoundTripper: s.http.Transport, seen: map[int]int{}}
	s.http.Transport = w
	server := s.start()
	l := startLoad(s, 2*time.Millisecond)
	for range 6 {
		waiting := s.waitForWork()
		l.more() // The server accepted their connections after that of the claim.
		server.terminate()
		if status := <-waiting; status != http.StatusOK {
			t.Errorf("a claim that waited was answered %d", status)
		}
		server = s.start()
	}
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
	w.report(t)
	if len(l.replayed) > 0 {
		t.Errorf("commands were accepted before, without an answer: %v", l.replayed)
	}
}

// waitForWork claims work that never comes, and returns the status of the response. The
// request is sent when it returns.
func (s *site) waitForWork() <-chan int {
	answered, sent := make(chan int, 1), make(chan httptrace.WroteRequestInfo, 1)
	ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) { sent <- i }})
	go func() {
		response, err := s.client.ClaimWorkWithResponse(ctx, api.ClaimRequest{
			Owner: "patient", Services: []string{"none"}, RequestID: time.Now().String(), Max: 1, WaitSeconds: 60,
		})
		if err != nil {
			s.t.Errorf("a claim that waited: %v", err)
			answered <- 0
			return
		}
		answered <- response.StatusCode()
	}()
	waittest.Receive(s.t, "the claim is sent", sent)
	return answered
}

// witness records how requests end.
type witness struct {
	http.RoundTripper

	mu     sync.Mutex
	seen   map[int]int // how often each status was answered
	shut   int         // requests that the stopping server did not take
	broken []error     // requests that ended any other way, such as with a response cut off
}

// RoundTrip implements [http.RoundTripper].
func (w *witness) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.seen[response.StatusCode]++
		response.Body = &witnessed{ReadCloser: response.Body, witness: w}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		// A server that stops resets connections that it has not accepted, and
		// closes those with an unread request.
		w.shut++
	case r.Context().Err() == nil:
		w.broken = append(w.broken, err)
	}
	return response, err
}

// witnessed is the body of a response.
type witnessed struct {
	io.ReadCloser
	witness *witness
}

// Read implements [io.Reader].
func (b *witnessed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.witness.mu.Lock()
		defer b.witness.mu.Unlock()
		b.witness.broken = append(b.witness.broken, err)
	}
	return n, err
}

// report fails the test for what no client should see.
func (w *witness) report(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.broken {
		t.Errorf("a request ended with %v", err)
	}
	for status, times := range maps.All(w.seen) {
		if status >= 500 && status != http.StatusServiceUnavailable {
			t.Errorf("status %d was answered %d times", status, times)
		}
	}
	t.Logf("answers by status: %v; not let in: %d", w.seen, w.shut)
}
