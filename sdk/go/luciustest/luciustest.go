// Package luciustest runs workers of the Go SDK in tests, against a Lucius in the test's
// process that keeps its jobs in memory:
//
//	synctest.Test(t, func(t *testing.T) {
//		server := luciustest.Start(t, protocol)
//		server.Run(worker(server.Client()))
//		job := server.Do(command)
//		…
//	})
//
// It uses no network and no disk, and no clock but that of package time. So in a bubble of
// [testing/synctest] time is virtual: retries, leases and timeouts take moments, an hour a
// few seconds. Outside of a bubble it works in real time. Webhooks count as delivered and
// are not sent.
package luciustest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// Server is a Lucius in memory. Create it with [Start].
type Server struct {
	t      testing.TB
	client *lucius.Client
	ctx    context.Context //nolint:containedctx // It is the test's, and ends with it.
	group  *sync.WaitGroup
}

// Start starts a server with the protocols, each in YAML, which ends with the test.
func Start(t testing.TB, protocols ...string) *Server {
	t.Helper()
	opened, err := open(t.Context(), protocols)
	if err != nil {
		t.Fatalf("luciustest: %v", err)
	}
	client, err := lucius.NewClient(lucius.ClientConfig{
		URL: "http://localhost", HTTPClient: &http.Client{Transport: inProcess{opened}},
	})
	if err != nil {
		t.Fatalf("luciustest: %v", err)
	}
	working, rest := context.WithCancel(context.WithoutCancel(t.Context()))
	serving, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &Server{t: t, client: client, ctx: working, group: new(sync.WaitGroup)}
	ended := make(chan error, 1)
	go func() { ended <- opened.Run(serving) }()
	t.Cleanup(func() {
		rest()
		s.group.Wait() // Workers finish on a server that answers.
		stop()
		if err := <-ended; err != nil {
			t.Errorf("luciustest: the server ended with %v", err)
		}
	})
	return s
}

// Client returns a client of the server, for workers too.
func (s *Server) Client() *lucius.Client { return s.client }

// Run runs the worker, whose Client must be that of the server, until the test ends.
func (s *Server) Run(worker *lucius.Worker) {
	s.t.Helper()
	s.group.Go(func() {
		if err := worker.Run(s.ctx); err != nil {
			s.t.Error(err)
		}
	})
}

// Do submits the command and returns its job once it has ended.
func (s *Server) Do(command lucius.Command) *lucius.Job {
	s.t.Helper()
	accepted, err := s.client.Submit(s.t.Context(), command)
	if err != nil {
		s.t.Fatal(err)
	}
	job, err := s.client.Wait(s.t.Context(), accepted.JobID)
	if err != nil {
		s.t.Fatal(err)
	}
	return job
}

// inProcess is a transport that calls a handler in a goroutine.
type inProcess struct{ handler http.Handler }

// RoundTrip sends one request. It returns once the handler has answered; the body is read
// as the handler writes it.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	body, writer := io.Pipe()
	w := &response{header: http.Header{}, body: writer, answered: make(chan struct{})}
	served := r.Clone(ctx)
	served.RequestURI, served.RemoteAddr, served.Host = r.URL.RequestURI(), "127.0.0.1:1", r.URL.Host
	if served.Body == nil {
		served.Body = http.NoBody
	}
	go func() {
		defer cancel()
		var err error
		defer func() {
			if value := recover(); value != nil {
				err = fmt.Errorf("the handler panicked: %v", value)
			}
			w.WriteHeader(http.StatusOK) // unless it has answered
			_ = writer.CloseWithError(err)
		}()
		p.handler.ServeHTTP(w, served)
	}()
	select {
	case <-w.answered:
	case <-r.Context().Done():
		_ = body.CloseWithError(errors.New("the request ended"))
		return nil, context.Cause(r.Context())
	}
	return &http.Response{
		StatusCode: w.status, Header: w.sent, Body: &answer{body, cancel}, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
	}, nil
}

// response is what a handler writes.
type response struct {
	header, sent http.Header
	body         *io.PipeWriter
	status       int
	answered     chan struct{}
}

// Header implements [http.ResponseWriter].
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter].
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status, w.sent = status, w.header.Clone()
		close(w.answered)
	}
}

// Write implements [http.ResponseWriter].
func (w *response) Write(text []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(text)
}

// Flush implements [http.Flusher].
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

// answer is the body of an answer.
type answer struct {
	*io.PipeReader

	cancel context.CancelFunc
}

// Close ends the handler.
func (a *answer) Close() error {
	a.cancel()
	return a.PipeReader.Close()
}
