package httpapi

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/problem"
)

// requestIDHeader carries the id of a request, both ways.
const requestIDHeader = "X-Request-Id"

// maxRequestID is the longest request id that is taken over from a client.
const maxRequestID = 128

// unmatched stands for the route of a request that has none.
const unmatched = "unmatched"

// statusClientGone is recorded, and never sent, where the client went away
// before it was answered.
const statusClientGone = 499

// exchange is one request and what is answered to it. It is used by the
// request's goroutine alone.
type exchange struct {
	http.ResponseWriter

	id     string
	method string
	route  string
	begun  time.Time
	status int
	bytes  int64

	// rule is that of the route, the zero one where there is none.
	rule   access.Rule
	caller access.Caller
	// object is the id of what the request is about, and tenant whose it is, as
	// far as that is known.
	object  string
	tenant  string
	foreign bool // It is there, and is not the caller's.

	seat *seat
	kept bool // It keeps its connection, see LimitConnections.
}

// exchangeKey finds the exchange in the request's context.
type exchangeKey struct{}

// RequestID returns the id of the request that ctx belongs to, empty where it
// belongs to none.
func RequestID(ctx context.Context) string {
	if x := exchangeOf(ctx); x != nil {
		return x.id
	}
	return ""
}

// exchangeOf returns the exchange that ctx belongs to, or nil.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// begin makes the exchange of a request, and the request that carries it. HEAD
// is served as GET: net/http drops the body of the response.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) (*exchange, *http.Request) {
	x := &exchange{
		ResponseWriter: w, id: requestID(r), method: r.Method, route: unmatched, begun: time.Now(), seat: seatOf(r.Context()),
	}
	x.seat.offer()
	header := w.Header()
	header.Set(requestIDHeader, x.id)
	header.Set("X-Content-Type-Options", "nosniff")
	s.metrics.inFlight.Inc()
	s.hurryBody(w, r)
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet
	}
	return x, r
}

// hurryBody bounds the time that a client may take to send its body, until the
// body is read to its end. It holds for one that is refused as well: what is left
// of its body is read before it is answered. The server's ReadTimeout would also
// end requests that wait. A writer without a connection has no deadlines, and
// needs none.
func (s *Server) hurryBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
	}
}

// end accounts for the exchange.
func (s *Server) end(x *exchange, r *http.Request) {
	s.metrics.inFlight.Dec()
	if x.kept {
		x.seat.keep(-1)
	}
	if x.status == 0 {
		x.status = http.StatusOK
	}
	took := time.Since(x.begun)
	s.metrics.observe(x, took)
	s.record(x, r)
	ctx := r.Context()
	if s.respond.log.Enabled(ctx, slog.LevelDebug) {
		s.respond.log.LogAttrs(ctx, slog.LevelDebug, "request",
			slog.String("request_id", x.id), slog.String("method", x.method), slog.String("path", access.Printable(r.URL.Path)),
			slog.String("route", x.route), slog.Int("status", x.status), slog.Int64("bytes", x.bytes),
			slog.Duration("took", took), slog.String("remote", r.RemoteAddr), slog.String("caller", x.caller.Name()))
	}
}

// survive is deferred around a handler. It answers a panic as an internal
// error; where the answer has begun, it cuts the connection instead, so that
// the client sees that the answer is broken.
func (s *Server) survive(x *exchange, r *http.Request) {
	recovered := recover()
	if recovered == nil {
		return
	}
	if recovered == http.ErrAbortHandler { //nolint:errorlint // It is a value to panic with, never wrapped.
		panic(recovered)
	}
	err := fmt.Errorf("panic: %v\n%s", recovered, debug.Stack())
	if x.status != 0 {
		s.respond.report(r, problem.From(err))
		panic(http.ErrAbortHandler)
	}
	s.respond.problem(x, r, err)
}

// requestID takes the client's request id over where it is harmless to log and
// to repeat, else makes one.
func requestID(r *http.Request) string {
	id := r.Header.Get(requestIDHeader)
	if id == "" || len(id) > maxRequestID {
		return rand.Text()
	}
	for i := range len(id) {
		c := id[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return rand.Text()
		}
	}
	return id
}

// rememberRoute notes the route of a request, for the metrics.
func rememberRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if x := exchangeOf(r.Context()); x != nil {
			if template, err := mux.CurrentRoute(r).GetPathTemplate(); err == nil {
				x.route = template
			}
		}
		next.ServeHTTP(w, r)
	})
}

// WriteHeader notes the status and sends it.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write counts what is sent.
func (x *exchange) Write(data []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	n, err := x.ResponseWriter.Write(data)
	x.bytes += int64(n)
	return n, err
}

// Unwrap lets [http.ResponseController] find the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }
