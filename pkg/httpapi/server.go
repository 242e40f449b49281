package httpapi

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

// Server is the HTTP surface as a handler. It is safe for concurrent use.
type Server struct {
	router  *mux.Router
	metrics *metrics
	respond *responder
	audit   *auth.Audit
	// bodyTimeout is how long a client may take to send its body.
	bodyTimeout time.Duration
	probesOnly  bool

	streams *fairLimiter
	waits   *fairLimiter

	ended chan struct{}
	drain sync.Once
}

// New returns a server for config. The error names an invalid field, a metric that
// the registry holds already, or a route without a rule in package auth.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	measured, err := newMetrics(config.Registry)
	if err != nil {
		return nil, err
	}
	s := &Server{
		metrics: measured,
		respond: &responder{log: config.Log},
		audit:   config.Audit, bodyTimeout: config.BodyTimeout, probesOnly: config.ProbesOnly,
		streams: newFairLimiter(maxStreams), waits: newFairLimiter(config.MaxWaits),
		ended: make(chan struct{}),
	}
	guard := newGuard(config, s.respond)
	s.router = newRouter(newEndpoints(config, s, guard), guard)
	if err := guard.learn(s.router); err != nil {
		return nil, err
	}
	return s, nil
}

// Drain makes the server refuse new requests under /v1/ with shutting_down, report
// at readyz that it is not ready, and answer the requests that wait. Requests under
// way continue. It returns immediately and may be called again.
func (s *Server) Drain() {
	s.drain.Do(func() { close(s.ended) })
	s.streams.end()
	s.waits.end()
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
var errDraining = &problem.Error{Code: problem.ShuttingDown, Detail: "This process stops; send the request again."}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	state, r := s.begin(w, r)
	defer s.end(state, r)
	defer s.survive(state, r)
	if !s.serves(r.URL.Path) {
		s.respond.problem(state, r, errNoAPI)
		return
	}
	if s.draining() && strings.HasPrefix(r.URL.Path, "/v1/") {
		w.Header().Set("Connection", "close")
		s.respond.problem(state, r, errDraining)
		return
	}
	s.router.ServeHTTP(state, r)
}

// newRouter returns the router of the generated glue, with problems as its own
// answers.
func newRouter(handlers api.ServerInterface, guard *guard) *mux.Router {
	respond := guard.respond
	router := mux.NewRouter().SkipClean(true)
	router.Use(rememberRoute, guard.middleware, respond.wholeQuery)
	api.HandlerWithOptions(handlers, api.GorillaServerOptions{
		BaseRouter: router, ErrorHandlerFunc: respond.badParameter,
	})
	router.NotFoundHandler = http.HandlerFunc(respond.notFound)
	router.MethodNotAllowedHandler = methodNotAllowed(router, respond)
	return router
}
