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

// RequestID returns the id of the request that ctx belongs to.
func RequestID(ctx context.Context) string { return requestStateOf(ctx).id }

// Answer has the server answer a request with the value.
func (s *Server) Answer(w http.ResponseWriter, r *http.Request, value any) {
	r = r.WithContext(context.WithValue(r.Context(), requestStateKey{}, &requestState{ResponseWriter: w}))
	s.respond.answer(w, r, http.StatusOK, value, nil)
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
