package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// notFound answers a path without a route.
func (p *responder) notFound(w http.ResponseWriter, r *http.Request) {
	p.problem(w, r, &problem.Error{Code: problem.NotFound, Detail: "There is nothing at this path."})
}

// methodNotAllowed answers a path that has routes only for other methods, which it
// names.
func methodNotAllowed(router *mux.Router, respond *responder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed := strings.Join(allowedMethods(router, r), ", ")
		w.Header().Set("Allow", allowed)
		respond.problem(w, r, problem.Newf(problem.MethodNotAllowed, "This path takes %s.", allowed))
	})
}

// allowedMethods returns the methods that the request's path has routes for.
func allowedMethods(router *mux.Router, r *http.Request) []string {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		probe := *r
		probe.Method = method
		var match mux.RouteMatch
		if router.Match(&probe, &match) && match.MatchErr == nil {
			allowed = append(allowed, method)
		}
	}
	if slices.Contains(allowed, http.MethodGet) {
		allowed = append(allowed, http.MethodHead)
	}
	return allowed
}

// badParameter answers a parameter that the generated glue could not bind.
func (p *responder) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	message := "a parameter is not valid"
	if wrong, ok := errors.AsType[*api.InvalidParamFormatError](err); ok {
		message = "parameter " + wrong.ParamName + " has the wrong format"
	}
	if many, ok := errors.AsType[*api.TooManyValuesForParamError](err); ok {
		message = "header " + many.ParamName + " occurs more than once"
	}
	p.problem(w, r, invalid(message, err))
}

// invalid returns the problem of a parameter; err is its cause or nil.
func invalid(message string, err error) *problem.Error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Message: message}}, Err: err,
	}
}
