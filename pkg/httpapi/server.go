// Package httpapi is the HTTP transport: it turns requests into calls of the
// use cases, and their results into responses. It decides nothing itself.
//
//	request ─► Server ─► mux ─► guard ─► generated glue ─► endpoints ─► use cases:
//	             │                │        (package api)       │         commands, jobs,
//	             │                │                            │         callbacks, workqueue, …
//	             ├ request id,    ├ who calls, and its rule    ├ body: type, size, JSON,
//	             │ access log,    │ (package auth), limits   │       unknown fields, limits
//	             │ metrics, audit └ the object's owner         ├ types of the contract to those
//	             ├ panics                                      │ of the use cases, and back
//	             └ 503 while it drains                         └ problem+json
//
// Every request that is not public passes the guard: [auth.Authenticator] identifies
// the caller, the route's rule checks its role, and the use cases say who owns the
// object in the path. The guard answers foreign and missing objects alike, before
// the body is read. The endpoint authorizes a tenant that the body or the query
// names; for commands [commands.Service.Prepare] does, by a function passed to it.
//
// Handlers call the [UseCases] and encode their answers. Use cases report what a client
// may know as a [apierror.Error]; any other error is logged here, once, and answered as
// internal without details.
//
// Bodies are decoded with encoding/json into structs and checked by hand: no
// schema is interpreted while requests are served. Control and operators' requests
// refuse unknown fields, which are mostly typing errors (for commands the use case
// refuses them). Callbacks and /v1/work ignore and count them, because workers of
// another version may send them.
//
// Requests that wait for a job's end or for work use only their own goroutine. They
// end when the wait is over, when the client goes away (the context is done), and
// when the server drains.
package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// Server is the HTTP surface as a handler. It is safe for concurrent use.
type Server struct {
	config  Config
	router  *mux.Router
	console http.Handler // nil without one
	metrics *meters
	respond *responder

	streams *limiter
	waits   *limiter
	bodies  *limiter // in bytes; bodies that are being read or decoded
	forms   *limiter // in bytes; forms that are sent to the console, by host
	trees   *limiter // in bytes; decoded bodies
	reads   *limiter // in bytes; rows read from the store for answers, and their encoded form

	transfers transfers
	ended     chan struct{} // Closed by Drain.
	drain     sync.Once
}

// New returns a server for config. The error names an invalid field, or a route without a rule in
// package auth. It panics if the registry holds its metrics already.
func New(config Config) (*Server, error) {
	if min(config.MaxBodyBytes, int64(config.BodyTimeout), int64(config.MaxWaits)) < 0 {
		return nil, errors.New("httpapi: MaxBodyBytes, BodyTimeout and MaxWaits must not be negative")
	}
	config.MaxBodyBytes = cmp.Or(config.MaxBodyBytes, DefaultMaxBodyBytes)
	config.BodyTimeout = cmp.Or(config.BodyTimeout, DefaultBodyTimeout)
	config.MaxWaits = cmp.Or(config.MaxWaits, DefaultMaxWaits)
	if config.Audit == nil {
		config.Audit = auth.NewAudit(nil)
	}
	bodies := max(maxBodies, 16*config.MaxBodyBytes)
	s := &Server{
		config: config, router: mux.NewRouter().SkipClean(true), metrics: newMeters(config.Registry), respond: newResponder(config.Log),
		streams: newLimiter(maxStreams, apierror.Newf(apierror.RateLimited,
			"This process keeps at most %d streams open, of which the caller already has its share.", maxStreams)),
		waits: newLimiter(int64(config.MaxWaits), apierror.Newf(apierror.RateLimited,
			"The caller already has its share of waiting requests.")),
		bodies: newLimiter(bodies, apierror.Newf(apierror.RateLimited,
			"The caller already has its share of the %d MiB that bodies in hand may take.", bodies>>20)),
		forms: newLimiter(maxForms, apierror.Newf(apierror.RateLimited,
			"This host already has its share of the %d MiB that forms in hand may take.", maxForms>>20)),
		trees: newLimiter(maxTrees, nil), reads: newLimiter(maxReads, nil),
		transfers: transfers{open: map[*requestState]direction{}}, ended: make(chan struct{}),
	}
	s.trees.late = apierror.Newf(apierror.RateLimited, "The caller's bodies did not get their turn to be decoded.")
	guard := newGuard(config, s.respond)
	s.router.Use(guard.middleware)
	handlers := &endpoints{
		Server: s, UseCases: config.UseCases, guard: guard,
		scrape: promhttp.HandlerFor(config.Registry, promhttp.HandlerOpts{
			ErrorHandling:     promhttp.ContinueOnError, // A metric that cannot be collected is logged and left out.
			ErrorLog:          slog.NewLogLogger(config.Log.Handler(), slog.LevelError),
			Registry:          config.Registry,
			EnableOpenMetrics: true,
		}),
	}
	api.HandlerWithOptions(handlers, api.GorillaServerOptions{BaseRouter: s.router, ErrorHandlerFunc: s.respond.badParameter})
	s.router.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.respond.problem(w, r, s.noRoute(w, r))
	})
	s.router.MethodNotAllowedHandler = s.router.NotFoundHandler
	if err := guard.loadRules(s.router); err != nil {
		return nil, err
	}
	if config.Console != nil {
		console, err := config.Console(s, s.ended)
		if err != nil {
			return nil, err
		}
		s.console = console
	}
	return s, nil
}

// Drain makes the server refuse new requests under /v1/ with shutting_down, report
// at readyz that it is not ready, and answer the requests that wait. Requests under
// way continue, but a client has only a few seconds left to send its body or to read its
// answer. It returns immediately and may be called again.
func (s *Server) Drain() {
	s.drain.Do(func() {
		close(s.ended)
		s.transfers.drain()
	})
}

// draining reports whether Drain was called.
func (s *Server) draining() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// errDraining is the answer of a draining server.
var errDraining = &apierror.Error{Code: apierror.ShuttingDown, Detail: "This process stops; send the request again."}

// probes are the paths of a process that does not serve the API, for its operator.
var probes = []string{"/healthz", "/readyz", "/metrics"}

// consolePath is where the console is, and its label in metrics.
const consolePath = "/ui/"

// errNoAPI is returned for a request that reached a process without the API.
var errNoAPI = &apierror.Error{
	Code:   apierror.NotFound,
	Detail: "This process does not serve the API, only /healthz, /readyz and /metrics: send the request to one that has the role api.",
}

// validRequestID matches a client's request id that is safe to log and to send back.
var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	state := &requestState{
		ResponseWriter: w, id: r.Header.Get(requestIDHeader), method: r.Method, route: unmatched, begun: time.Now(),
		transfers: &s.transfers,
	}
	if !validRequestID.MatchString(state.id) {
		state.id = rand.Text()
	}
	w.Header().Set(requestIDHeader, state.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.metrics.inFlight.Inc()
	state.conn, _ = r.Context().Value(trackedConnKey{}).(*trackedConn)
	state.conn.keep("", 0) // A new connection may replace this one until the request is admitted.
	if r.ContentLength != 0 {
		body := s.transfers.receive(state, r.Body, state.begun.Add(s.config.BodyTimeout))
		r.Body = body
		defer body.finish()
	}
	defer state.sent()
	r = r.WithContext(context.WithValue(r.Context(), requestStateKey{}, state))
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet // net/http drops the body of the response.
	}
	defer s.end(state, r)
	defer s.recoverPanic(state, r)
	var refusal error
	switch {
	case s.config.ProbesOnly && !slices.Contains(probes, r.URL.Path):
		refusal = errNoAPI
	case s.draining() && strings.HasPrefix(r.URL.Path, "/v1/"):
		w.Header().Set("Connection", "close")
		refusal = errDraining
	case s.console != nil && strings.HasPrefix(r.URL.Path+"/", consolePath):
		state.route = consolePath
		state.long = accepts(r, eventStream)
		if refusal = s.reserveForm(state, r); refusal == nil {
			s.console.ServeHTTP(state, r)
		}
	default:
		s.router.ServeHTTP(state, r)
	}
	s.respond.answer(state, r, 0, nil, refusal)
}

// noRoute returns the problem of a path that has no routes, or only those of other methods, which
// it names.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := *r
		probe.Method = method
		var match mux.RouteMatch
		if s.router.Match(&probe, &match) && match.MatchErr == nil {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return &apierror.Error{Code: apierror.NotFound, Detail: "There is nothing at this path."}
	}
	if slices.Contains(allowed, http.MethodGet) {
		allowed = append(allowed, http.MethodHead)
	}
	methods := strings.Join(allowed, ", ")
	w.Header().Set("Allow", methods)
	return apierror.Newf(apierror.MethodNotAllowed, "This path takes %s.", methods)
}
