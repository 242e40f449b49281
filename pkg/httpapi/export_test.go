package httpapi

import (
	"context"
	"net/http"

	"github.com/gorilla/mux"
)

// The page tokens.
var (
	PageToken  = pageToken
	PositionOf = positionOf
	RevToken   = revToken
	RevOf      = revOf
)

// FairLimiter is a limiter for tests of its shares.
type FairLimiter struct{ *fairLimiter }

// NewFairLimiter returns a limiter.
func NewFairLimiter(limit int64, evicts bool) FairLimiter {
	l := newFairLimiter(limit)
	l.evicts = evicts
	return FairLimiter{l}
}

// Acquire acquires a slot, and reports whether it got one and how to release it.
func (l FairLimiter) Acquire(caller string, weight int64, cut func()) (release func(), got bool) {
	s := l.acquire(caller, weight, cut)
	if s == nil {
		return nil, false
	}
	return s.release, true
}

// RequestID returns the id of the request that ctx belongs to.
func RequestID(ctx context.Context) string { return requestStateOf(ctx).id }

// Answer has the server answer a request with the value.
func (s *Server) Answer(w http.ResponseWriter, r *http.Request, value any) {
	r = r.WithContext(context.WithValue(r.Context(), requestStateKey{}, &requestState{ResponseWriter: w}))
	s.respond.answer(w, r, http.StatusOK, value, nil)
}

// AnswerCuts returns the functions that cut the answers which are being sent now.
func (s *Server) AnswerCuts() (cuts []func()) {
	s.respond.answers.mu.Lock()
	defer s.respond.answers.mu.Unlock()
	for _, h := range s.respond.answers.holders {
		for _, held := range h.slots {
			cuts = append(cuts, held.cut)
		}
	}
	return cuts
}

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
