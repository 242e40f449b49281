package httpapi

import (
	"net/http"

	"github.com/gorilla/mux"
)

// LearnRoute looks the rule of a route up, as [New] does for those of the OpenAPI
// document.
func LearnRoute(config Config, method, template string) error {
	return newGuard(config, nil).learn(routeOf(method, template))
}

// LearnRouteOfUnknownObjects is LearnRoute where no object can be looked up.
func LearnRouteOfUnknownObjects(config Config, method, template string) error {
	g := newGuard(config, nil)
	g.kinds = nil
	return g.learn(routeOf(method, template))
}

// routeOf is a router with one route.
func routeOf(method, template string) *mux.Router {
	router := mux.NewRouter()
	route := router.HandleFunc(template, func(http.ResponseWriter, *http.Request) {})
	if method != "" {
		route.Methods(method)
	}
	return router
}
