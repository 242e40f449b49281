package api

import (
	"net/http"
	"slices"
	"strings"
)

// Router dispatches requests by method and path to the routes of the OpenAPI document.
// [http.ServeMux] cannot: it has no pattern for a verb after an id, as in
// /v1/work/{workId}:start. As that does, it sets Pattern and the path values of the
// request. It neither cleans paths nor redirects. Register all routes before the first
// request; it is then safe for concurrent use.
type Router struct {
	// Middleware is put around the handler of each route. Optional.
	Middleware func(http.Handler) http.Handler
	// NotFound answers a path without a route. Optional.
	NotFound http.Handler
	// MethodNotAllowed answers a path that has routes for these methods only. Optional.
	MethodNotAllowed func(w http.ResponseWriter, r *http.Request, allowed []string)

	patterns []string
	fixed    map[string]*Route // of paths without a parameter, by pattern
	open     []*Route          // of paths with one, in the order of their registration
}

// Route is a method and a path with at most one parameter: prefix{name}suffix.
type Route struct {
	// Pattern is the method and the path, such as "GET /v1/jobs/{jobId}".
	Pattern string

	method, prefix, name, suffix string
	handler                      http.Handler
}

// HandleFunc registers the handler of a pattern: a method, a space and a path.
func (t *Router) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	pattern = strings.TrimSuffix(pattern, "{$}") // A path that ends with a slash matches nothing below it here.
	method, path, _ := strings.Cut(pattern, " ")
	made := &Route{Pattern: pattern, method: method, handler: http.HandlerFunc(handler)}
	if t.Middleware != nil {
		made.handler = t.Middleware(made.handler)
	}
	t.patterns = append(t.patterns, pattern)
	prefix, rest, found := strings.Cut(path, "{")
	if !found {
		if t.fixed == nil {
			t.fixed = map[string]*Route{}
		}
		t.fixed[pattern] = made
		return
	}
	made.prefix = prefix
	made.name, made.suffix, _ = strings.Cut(rest, "}")
	if strings.Contains(made.suffix, "{") {
		panic("api: two parameters in the path of " + pattern)
	}
	t.open = append(t.open, made)
}

// Patterns returns the patterns of all routes, in the order of their registration. The
// caller owns them.
func (t *Router) Patterns() []string { return slices.Clone(t.patterns) }

// ServeHTTP serves the request by its route.
func (t *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, value := t.find(r.Method, r.URL.Path)
	if found != nil {
		r.Pattern = found.Pattern
		if found.name != "" {
			r.SetPathValue(found.name, value)
		}
		found.handler.ServeHTTP(w, r)
		return
	}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if other, _ := t.find(method, r.URL.Path); other != nil {
			allowed = append(allowed, method)
		}
	}
	switch {
	case len(allowed) > 0 && t.MethodNotAllowed != nil:
		t.MethodNotAllowed(w, r, allowed)
	case len(allowed) == 0 && t.NotFound != nil:
		t.NotFound.ServeHTTP(w, r)
	case len(allowed) > 0:
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
	default:
		http.NotFound(w, r)
	}
}

// find returns the route of a request, and the value of its parameter. A value has no
// slash.
func (t *Router) find(method, path string) (*Route, string) {
	if found := t.fixed[method+" "+path]; found != nil {
		return found, ""
	}
	for _, candidate := range t.open {
		rest, begins := strings.CutPrefix(path, candidate.prefix)
		value, ends := strings.CutSuffix(rest, candidate.suffix)
		if begins && ends && value != "" && candidate.method == method && !strings.Contains(value, "/") {
			return candidate, value
		}
	}
	return nil, ""
}
