package httpapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// Cursor is where a page of a list begins.
type Cursor = cursor

// CursorOf decodes the page token of a request for that path.
func CursorOf(path, token string) (Cursor, error) { return cursorOf(&url.URL{Path: path}, token) }

// PageToken returns the page token of a position in the list with that path and query.
func PageToken(target, position string) string {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	at, _ := cursorOf(u, "")
	return at.token(position)
}

// The parts of a cursor.
var (
	After    = func(c Cursor) string { return c.after }
	Rev      = cursor.rev
	RevToken = cursor.revToken
)

// Limiter is a limiter for tests of its shares.
type Limiter struct{ *limiter }

// NewLimiter returns a limiter whose requests wait, and one that refuses them.
func NewLimiter(total int64) (waiting, refusing Limiter) {
	return Limiter{newLimiter(total, nil)}, Limiter{newLimiter(total, apierror.Newf(apierror.RateLimited, "That is too much."))}
}

// Acquire takes a part, and returns how to release it.
func (l Limiter) Acquire(ctx context.Context, caller string, weight int64) (release func(), err error) {
	return l.acquire(ctx, caller, weight)
}

// Callers returns how many callers hold something, or wait.
func (l Limiter) Callers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.callers)
}

// Trees returns the limiter of decoded bodies.
func (s *Server) Trees() Limiter { return Limiter{s.trees} }

// Reads returns the limiter of rows read for answers.
func (s *Server) Reads() Limiter { return Limiter{s.reads} }

// RequestID returns the id of the request that ctx belongs to.
func RequestID(ctx context.Context) string { return requestStateOf(ctx).id }

// Answer makes the server answer a request with the value.
func (s *Server) Answer(w http.ResponseWriter, r *http.Request, value any) {
	r = r.WithContext(context.WithValue(r.Context(), requestStateKey{}, &requestState{ResponseWriter: w, transfers: &s.transfers}))
	s.respond.answer(w, r, http.StatusOK, value, nil)
}

// Answers returns the limiter of answers that are being sent.
func (s *Server) Answers() Limiter { return Limiter{s.respond.answers} }

// Bodies returns the limiter of bodies.
func (s *Server) Bodies() Limiter { return Limiter{s.bodies} }

// Forms returns the limiter of forms.
func (s *Server) Forms() Limiter { return Limiter{s.forms} }

// LearnRoute looks the rule of a route up, as [New] does for those of the OpenAPI
// document.
func LearnRoute(config Config, method, template string) error {
	return newGuard(config, nil).loadRules(routeOf(method, template))
}

// LearnRouteOfUnknownObjects is LearnRoute for a guard without owner lookups.
func LearnRouteOfUnknownObjects(config Config, method, template string) error {
	g := newGuard(config, nil)
	g.kinds = nil
	return g.loadRules(routeOf(method, template))
}

// routeOf returns a router with one route.
func routeOf(method, template string) *mux.Router {
	router := mux.NewRouter()
	route := router.HandleFunc(template, func(http.ResponseWriter, *http.Request) {})
	if method != "" {
		route.Methods(method)
	}
	return router
}
