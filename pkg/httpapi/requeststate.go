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

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

// requestIDHeader carries the id of a request, both ways.
const requestIDHeader = "X-Request-Id"

// maxRequestID is the longest request id that is accepted from a client.
const maxRequestID = 128

// unmatched is the route label of a request without a route.
const unmatched = "unmatched"

// statusClientGone is recorded, but never sent, if the client went away before the
// answer.
const statusClientGone = 499

// requestState is the state of one request and its answer. Only the request's
// goroutine uses it.
type requestState struct {
	http.ResponseWriter

	id     string
	method string
	route  string
	begun  time.Time
	status int
	bytes  int64

	// rule is the route's rule, zero if there is none.
	rule   auth.Rule
	caller auth.Caller
	// object is the id of the object that the request is about, and tenant its owner,
	// as far as they are known.
	object  string
	tenant  string
	foreign bool // The object exists but is not the caller's.

	conn *trackedConn
	kept bool // The request keeps its connection, see LimitConnections.
}

// requestStateKey finds the state in the request's context.
type requestStateKey struct{}

// requestStateOf returns the state that ctx belongs to, or nil.
func requestStateOf(ctx context.Context) *requestState {
	state, _ := ctx.Value(requestStateKey{}).(*requestState)
	return state
}

// begin creates the state of a request, and the request that carries it. HEAD
// is served as GET: net/http drops the body of the response.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) (*requestState, *http.Request) {
	state := &requestState{
		ResponseWriter: w, id: requestID(r), method: r.Method, route: unmatched, begun: time.Now(), conn: trackedConnOf(r.Context()),
	}
	state.conn.offer()
	header := w.Header()
	header.Set(requestIDHeader, state.id)
	header.Set("X-Content-Type-Options", "nosniff")
	s.metrics.inFlight.Inc()
	s.hurryBody(w, r)
	r = r.WithContext(context.WithValue(r.Context(), requestStateKey{}, state))
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet
	}
	return state, r
}

// hurryBody bounds the time that a client may take to send its body, until the body
// is read to its end. The limit also holds for a refused request, because net/http
// reads the rest of the body before it answers. The server's ReadTimeout would also
// end requests that wait. A writer without a connection has no deadlines, and needs
// none.
func (s *Server) hurryBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
	}
}

// end records the finished request in the metrics and the logs.
func (s *Server) end(state *requestState, r *http.Request) {
	s.metrics.inFlight.Dec()
	if state.kept {
		state.conn.keep(-1)
	}
	if state.status == 0 {
		state.status = http.StatusOK
	}
	took := time.Since(state.begun)
	s.metrics.observe(state, took)
	s.record(state, r)
	ctx := r.Context()
	if s.respond.log.Enabled(ctx, slog.LevelDebug) {
		s.respond.log.LogAttrs(ctx, slog.LevelDebug, "request",
			slog.String("request_id", state.id), slog.String("method", state.method), slog.String("path", auth.Printable(r.URL.Path)),
			slog.String("route", state.route), slog.Int("status", state.status), slog.Int64("bytes", state.bytes),
			slog.Duration("took", took), slog.String("remote", r.RemoteAddr), slog.String("caller", state.caller.Name()))
	}
}

// survive is deferred around a handler. It answers a panic as an internal error; if
// the answer has begun, it cuts the connection instead, so that the client sees that
// the answer is broken.
func (s *Server) survive(state *requestState, r *http.Request) {
	recovered := recover()
	if recovered == nil {
		return
	}
	if recovered == http.ErrAbortHandler { //nolint:errorlint // It is a value to panic with, never wrapped.
		panic(recovered)
	}
	err := fmt.Errorf("panic: %v\n%s", recovered, debug.Stack())
	if state.status != 0 {
		s.respond.report(r, problem.From(err))
		panic(http.ErrAbortHandler)
	}
	s.respond.problem(state, r, err)
}

// requestID returns the client's request id if it is safe to log and to send back,
// else a new one.
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

// rememberRoute records the route of a request for the metrics.
func rememberRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if state := requestStateOf(r.Context()); state != nil {
			if template, err := mux.CurrentRoute(r).GetPathTemplate(); err == nil {
				state.route = template
			}
		}
		next.ServeHTTP(w, r)
	})
}

// WriteHeader records the status and sends it.
func (state *requestState) WriteHeader(status int) {
	if state.status == 0 {
		state.status = status
	}
	state.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes that it sends.
func (state *requestState) Write(data []byte) (int, error) {
	if state.status == 0 {
		state.status = http.StatusOK
	}
	n, err := state.ResponseWriter.Write(data)
	state.bytes += int64(n)
	return n, err
}

// Unwrap lets [http.ResponseController] find the connection.
func (state *requestState) Unwrap() http.ResponseWriter { return state.ResponseWriter }
