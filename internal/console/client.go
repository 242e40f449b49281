package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/lucius-project/lucius/api"
)

// inProcess is a transport to a handler in this process. The body is read while the handler
// writes it, so that streams work too.
type inProcess struct {
	handler http.Handler
	// from is the browser's request. The handler sees the address and the certificate of its
	// connection.
	from *http.Request
}

// RoundTrip sends one request. Closing the response's body cancels the handler's context.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(bare{r.Context()})
	inner := r.Clone(ctx)
	inner.RemoteAddr, inner.TLS, inner.Host = t.from.RemoteAddr, t.from.TLS, t.from.Host
	inner.RequestURI = r.URL.RequestURI()
	if inner.Body == nil {
		inner.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &answer{header: http.Header{}, body: writer, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer func() {
			if recovered := recover(); recovered != nil { // The handler has logged it.
				_ = writer.CloseWithError(fmt.Errorf("console: the handler ended: %v", recovered))
			}
			w.begin(http.StatusInternalServerError) // Only if the handler has sent no status.
			_ = writer.Close()
		}()
		t.handler.ServeHTTP(w, inner)
		w.begin(http.StatusOK)
	}()
	<-w.begun // It does not wait for ctx: the handler ends when that does.
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: closing{reader, cancel}, ContentLength: -1, Request: r,
	}, nil
}

// bare hides the values of a context: those of the browser's request are about its own
// connection and response.
type bare struct{ context.Context } //nolint:containedctx // It is a context.

func (bare) Value(any) any { return nil }

// closing is a response's body that cancels its handler's context when it is closed.
type closing struct {
	*io.PipeReader

	cancel context.CancelFunc
}

func (c closing) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

// answer is the [http.ResponseWriter] of [inProcess]. Until begun is closed, only the
// handler's goroutine uses it.
type answer struct {
	header, sent http.Header
	status       int
	body         *io.PipeWriter
	begun        chan struct{}
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.begin(status) }

func (a *answer) begin(status int) {
	if a.status != 0 || status < http.StatusOK {
		return
	}
	a.status, a.sent = status, a.header.Clone()
	close(a.begun)
}

func (a *answer) Write(data []byte) (int, error) {
	a.begin(http.StatusOK)
	return a.body.Write(data) //nolint:wrapcheck // It is the error that the reader closed the pipe with.
}

// Flush does nothing: a write returns after the reader has read it.
func (a *answer) Flush() {}

// refusal is an error response of the API, or an error of the console in the same form.
type refusal struct {
	Status  int
	Problem api.Problem
}

func (r *refusal) Error() string {
	return cmp.Or(r.Problem.Detail, r.Problem.Title, http.StatusText(r.Status))
}

// hasStatus reports whether the API answered with this error status.
func hasStatus(err error, status int) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.Status == status
}

// maxAnswer is how many bytes of a response are read at most.
const maxAnswer = 16 << 20

// call decodes the response of a call of the API. The error is a [*refusal] if the API
// answered with an error.
func call[T any](response *http.Response, err error) (value T, _ error) {
	if err != nil {
		return value, fmt.Errorf("console: call the API: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return value, fmt.Errorf("console: read the API's answer: %w", err)
	}
	if response.StatusCode/100 != 2 {
		refused := &refusal{Status: response.StatusCode}
		_ = json.Unmarshal(body, &refused.Problem) // Without a problem the status has to do.
		return value, refused
	}
	if err := json.Unmarshal(body, &value); err != nil {
		return value, fmt.Errorf("console: decode the API's answer: %w", err)
	}
	return value, nil
}
