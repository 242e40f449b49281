package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/problem"
)

// endpoints are the handlers behind the generated glue: decode, call, answer.
type endpoints struct {
	commands  Commands
	jobs      Jobs
	callbacks Callbacks
	work      Work
	admin     Admin
	failures  Failures
	pauses    Pauses
	webhooks  Webhooks
	protocols Protocols
	readiness Readiness

	server  *Server
	guard   *guard
	respond *responder
	bodies  *bodies
	metrics http.Handler
	spec    []byte
	docs    *docs
	looks   chan struct{} // Holds a token for each stream that looks for news.
}

var _ api.ServerInterface = (*endpoints)(nil)

// newEndpoints returns the handlers of a server.
func newEndpoints(config Config, server *Server, guard *guard) *endpoints {
	return &endpoints{
		commands: config.Commands, jobs: config.Jobs, callbacks: config.Callbacks, work: config.Work,
		admin: config.Admin, failures: config.Failures, pauses: config.Pauses, webhooks: config.Webhooks,
		protocols: config.Protocols, readiness: config.Readiness,
		server: server, guard: guard, respond: server.respond,
		bodies:  &bodies{limit: config.MaxBodyBytes, unknown: server.metrics.unknown},
		metrics: metricsHandler(config.Registry, config.Log),
		spec:    api.Spec(), docs: newDocs(api.Docs()),
		looks: make(chan struct{}, maxLooks),
	}
}

// serve decodes a body, calls the use case and answers 200, or a problem.
func serve[Body, Value any, Checked interface {
	*Body
	checker
}](e *endpoints, w http.ResponseWriter, r *http.Request,
	decode func(http.ResponseWriter, *http.Request, checker) error,
	call func(context.Context, Body) (Value, error),
) {
	var body Body
	if err := decode(w, r, Checked(&body)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	value, err := call(r.Context(), body)
	e.respond.answer(w, r, http.StatusOK, value, err)
}

// on is the call with its id in place.
func on[Body, Value any](
	id string, call func(context.Context, string, Body) (Value, error),
) func(context.Context, Body) (Value, error) {
	return func(ctx context.Context, body Body) (Value, error) { return call(ctx, id, body) }
}

// waiting calls the use case with leave to wait for so long, cut to [MaxWait],
// where the caller has not its share of the long polls already.
func waiting[Value any](ctx context.Context, e *endpoints, limit time.Duration, call func(Wait) (Value, error)) (Value, error) {
	if limit <= 0 {
		return call(Wait{Limit: limit, Ended: e.server.ended})
	}
	place := e.server.waits.take(access.CallerOf(ctx).Name())
	if place == nil {
		var none Value
		return none, problem.Newf(problem.RateLimited, "The caller has its share of the requests that may wait.")
	}
	defer place.leave()
	return call(Wait{Limit: min(limit, MaxWait), Ended: place.ended})
}

// paged answers with one page of a list.
func paged[Value any](e *endpoints, w http.ResponseWriter, r *http.Request, limit *api.Limit, token *api.PageToken,
	list func(context.Context, Page) (Value, error),
) {
	asked, err := page(limit, token)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	found, err := list(r.Context(), asked)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// pagedOf is paged for the list of the tenant that the request names, if it names
// one.
func pagedOf[Value any](e *endpoints, w http.ResponseWriter, r *http.Request, tenant *string,
	limit *api.Limit, token *api.PageToken, list func(context.Context, Page) (Value, error),
) {
	if err := e.guard.named(r.Context(), textOf(tenant)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	paged(e, w, r, limit, token, list)
}

// textOf is a parameter, empty where there is none.
func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// page reads the parameters of a page.
func page(limit *api.Limit, token *api.PageToken) (Page, error) {
	asked := Page{Limit: api.DefaultPage}
	if limit != nil {
		asked.Limit = int(*limit)
	}
	if asked.Limit < 1 || asked.Limit > api.MaxPage {
		return Page{}, invalid(fmt.Sprintf("parameter limit must be 1 to %d", api.MaxPage), nil)
	}
	if token != nil {
		asked.Token = *token
	}
	if len(asked.Token) > api.MaxPageToken {
		return Page{}, invalid("parameter page_token is none of this server", nil)
	}
	return asked, nil
}

// listed makes a missing list an empty one, so that it is written as [].
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
