package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/metrics"
)

const (
	requestIDHeader  = "X-Request-Id" // Carries the id of a request, both ways.
	unmatched        = "unmatched"    // The route label of a request without a route.
	statusClientGone = 499            // Recorded, but never sent, if the client went away before the answer.
)

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
	reason  string // from the body of an audited request, empty if it has none
	foreign bool   // The object exists but is not the caller's.
	// unproven says that the object is a line in which no job is, or a foreign one, and that the job in
	// the body decides whether the caller may release it: see guard.authorizeReleased.
	unproven bool
	// previewed says that the request was answered with what it would do, so that there is
	// nothing to audit.
	previewed bool
	done      bool // The use case has succeeded, even if the client left before its answer.

	transfers *transfers
	sending   bool // The answer is on its way to the client.

	conn *trackedConn
	kept bool // The request keeps its connection, see LimitConnections.
	long bool // The request is a long poll or a stream.
	// release gives back the request's share of memory, of Server.bodies, Server.forms or
	// Server.reads; nil if it has none.
	release func()
}

// drop releases the request's share of memory, once the memory is no longer used.
func (state *requestState) drop() {
	if state.release != nil {
		state.release()
		state.release = nil
	}
}

// requestStateKey finds the state in the request's context.
type requestStateKey struct{}

// requestStateOf returns the state of the request that ctx belongs to.
func requestStateOf(ctx context.Context) *requestState {
	state, _ := ctx.Value(requestStateKey{}).(*requestState)
	return state
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
	if !state.sending {
		state.sending = true
		state.transfers.begin(state, sending)
	}
	n, err := state.ResponseWriter.Write(data)
	state.bytes += int64(n)
	return n, err
}

// sent records that nothing more is sent.
func (state *requestState) sent() {
	if state.sending {
		state.transfers.end(state, sending)
	}
}

// Unwrap lets [http.ResponseController] find the connection.
func (state *requestState) Unwrap() http.ResponseWriter { return state.ResponseWriter }

// recoverPanic is deferred around a handler. It answers a panic as an internal error; if
// the answer has begun, it cuts the connection instead, so that the client sees that
// the answer is broken.
func (s *Server) recoverPanic(state *requestState, r *http.Request) {
	recovered := recover()
	if recovered == nil {
		return
	}
	if recovered == http.ErrAbortHandler { //nolint:errorlint // It is a value to panic with, never wrapped.
		panic(recovered)
	}
	err := panicError(recovered)
	if state.status != 0 {
		s.respond.logFault(r, apierror.From(err))
		panic(http.ErrAbortHandler)
	}
	s.respond.problem(state, r, err)
}

// panicError returns the internal error of a panic, with the stack of the goroutine.
func panicError(recovered any) error { return fmt.Errorf("panic: %v\n%s", recovered, debug.Stack()) }

// labelledMethods are the methods that have their own metrics label. Any other is
// "other", so that clients cannot create labels.
var labelledMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// remoteHost returns the host that sent the request. The headers of proxies are ignored: any client
// could send them.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// end counts the finished request, and writes its audit record, if its rule asks for
// one, and its line of the access log.
func (s *Server) end(state *requestState, r *http.Request) {
	s.metrics.inFlight.Dec()
	state.drop()
	if state.kept {
		state.conn.keep(state.caller.Name(), -1)
	}
	if state.status == 0 {
		state.status = http.StatusOK
	}
	took := time.Since(state.begun)
	method := state.method
	if !slices.Contains(labelledMethods, method) {
		method = "other"
	}
	s.metrics.requests.WithLabelValues(state.route, method, strconv.Itoa(state.status)).Inc()
	seconds := s.metrics.seconds
	if state.long {
		seconds = s.metrics.longSeconds
	}
	seconds.WithLabelValues(state.route, method).Observe(took.Seconds())
	ctx := r.Context()
	if state.rule.Audited && !state.previewed {
		outcome := auth.Done
		switch {
		case state.foreign, state.status == http.StatusUnauthorized, state.status == http.StatusForbidden:
			outcome = auth.Denied
		case state.status >= http.StatusBadRequest && !state.done:
			outcome = auth.Failed
		}
		s.config.Audit.Write(ctx, auth.Record{
			At: time.Now(), Caller: state.caller, From: remoteHost(r), Action: state.rule.Operation,
			Object: state.object, Tenant: state.tenant, Outcome: outcome, Reason: state.reason,
		})
	}
	if s.config.Log.Enabled(ctx, slog.LevelDebug) {
		s.config.Log.LogAttrs(ctx, slog.LevelDebug, "request",
			slog.String("request_id", state.id), slog.String("method", state.method), slog.String("path", auth.Printable(r.URL.Path)),
			slog.String("route", state.route), slog.Int("status", state.status), slog.Int64("bytes", state.bytes),
			slog.Duration("took", took), slog.String("remote", r.RemoteAddr), slog.String("caller", state.caller.Name()))
	}
}

// meters are the server's own metrics. Their labels are bounded: routes are
// templates, and all methods unknown to HTTP share one label.
type meters struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec // of all but long polls and streams
	longSeconds *prometheus.HistogramVec
	inFlight    prometheus.Gauge
	unknown     *prometheus.CounterVec
}

// newMeters creates and registers the metrics.
func newMeters(registry *prometheus.Registry) *meters {
	m := metrics.Registry{Registry: registry}
	inFlight := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_http_requests_in_flight", Help: "Requests that are being served, including those that wait.",
	})
	m.MustRegister(inFlight)
	return &meters{
		requests: m.Counter("lucius_http_requests_total",
			"Requests answered, by route, method and status code; 499 means that the client went away.", "route", "method", "code"),
		seconds: m.Histogram("lucius_http_request_duration_seconds",
			"Time from a request's header to the end of its answer, without long polls and streams.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "route", "method"),
		longSeconds: m.Histogram("lucius_http_wait_duration_seconds",
			"Time from a request's header to the end of its answer, of long polls and streams.",
			[]float64{.01, .1, 1, 5, 10, 30, 60, 300, 3600}, "route", "method"),
		inFlight: inFlight,
		unknown: m.Counter("lucius_http_unknown_fields_total",
			"Bodies with a field that is not in the contract and was ignored.", "route"),
	}
}
