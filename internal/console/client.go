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

// inProcess sends requests to a handler of this process. The answer's body is read while
// the handler writes it, so that streams work too.
type inProcess struct {
	handler http.Handler
	// from is the browser's request, whose connection the handler sees: its address and
	// its certificate.
	from *http.Request
}

// RoundTrip sends one request. The handler ends when the body is closed.
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
			w.begin(http.StatusInternalServerError) // If it has not.
			_ = writer.Close()
		}()
		t.handler.ServeHTTP(w, inner)
		w.begin(http.StatusOK)
	}()
	<-w.begun // The handler ends when the request's context does.
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: closing{reader, cancel}, ContentLength: -1, Request: r,
	}, nil
}

// bare is a context without values: those of the browser's request are about its own
// connection and answer.
type bare struct{ context.Context } //nolint:containedctx // It is a context.

func (bare) Value(any) any { return nil }

// closing is a body that ends its handler when it is closed.
type closing struct {
	*io.PipeReader

	cancel context.CancelFunc
}

func (c closing) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

// answer is the writer of an answer in process. Only the handler's goroutine uses it until
// begun is closed.
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
	return a.body.Write(data) //nolint:wrapcheck // It is the reader's own.
}

// Flush does nothing: what is written has been read.
func (a *answer) Flush() {}

// refusal is the API's answer to a request that it refused.
type refusal struct {
	Status  int
	Problem api.Problem
}

func (r *refusal) Error() string {
	return cmp.Or(r.Problem.Detail, r.Problem.Title, http.StatusText(r.Status))
}

// hasStatus reports whether the API refused a request with this status.
func hasStatus(err error, status int) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.Status == status
}

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 16 << 20

// call decodes the answer of a call of the API. The error is a [*refusal], or that of a
// request that ended.
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
		_ = json.Unmarshal(body, &refused.Problem) // Without one the status has to do.
		return value, refused
	}
	if err := json.Unmarshal(body, &value); err != nil {
		return value, fmt.Errorf("console: decode the API's answer: %w", err)
	}
	return value, nil
}
