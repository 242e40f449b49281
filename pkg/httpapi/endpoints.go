package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

// endpoints are the handlers that the generated glue calls: decode, call, answer.
type endpoints struct {
	UseCases

	ready   func(context.Context) ([]string, error)
	log     *slog.Logger
	server  *Server
	guard   *guard
	respond *responder
	bodies  *bodies
	metrics http.Handler
	spec    []byte
	docs    *docs
	looks   chan struct{} // Holds a token for each stream that is reading its job.
}

var _ api.ServerInterface = (*endpoints)(nil)

// newEndpoints returns the handlers of a server.
func newEndpoints(config Config, server *Server, guard *guard) *endpoints {
	return &endpoints{
		UseCases: config.UseCases, ready: config.Ready, log: config.Log,
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

// MaxWait is the longest time that a request may wait. A longer wait is cut to it.
const MaxWait = 60 * time.Second

// waiting calls the use case with the time that it may wait, at most [MaxWait],
// unless the caller has its share of the long polls already. The use case answers
// with what it has when ended is closed: the server drains, or another caller gets
// the slot.
func waiting[Value any](ctx context.Context, e *endpoints, limit time.Duration,
	call func(limit time.Duration, ended <-chan struct{}) (Value, error),
) (Value, error) {
	if limit <= 0 {
		return call(0, e.server.ended)
	}
	slot := e.server.waits.acquire(auth.CallerOf(ctx).Name())
	if slot == nil {
		var none Value
		return none, problem.Newf(problem.RateLimited, "The caller already has its share of waiting requests.")
	}
	defer slot.release()
	return call(min(limit, MaxWait), slot.ended)
}

// paged answers with one page of a list: at most limit entries, starting after the
// position in the token, or at the beginning without one.
func paged[Value any](e *endpoints, w http.ResponseWriter, r *http.Request, limit *api.Limit, token *api.PageToken,
	list func(ctx context.Context, limit int, after string) (Value, error),
) {
	size, after, err := pageOf(limit, token)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	found, err := list(r.Context(), size, after)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// pagedOf is paged after it has authorized the tenant that the request names, if any.
func pagedOf[Value any](e *endpoints, w http.ResponseWriter, r *http.Request, tenant *string,
	limit *api.Limit, token *api.PageToken, list func(ctx context.Context, limit int, after string) (Value, error),
) {
	if err := e.guard.authorizeTenant(r.Context(), textOf(tenant)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	paged(e, w, r, limit, token, list)
}

// pageOf reads the parameters of a page.
func pageOf(limit *api.Limit, token *api.PageToken) (size int, after string, err error) {
	size = api.DefaultPage
	if limit != nil {
		size = int(*limit)
	}
	if size < 1 || size > api.MaxPage {
		return 0, "", invalid(fmt.Sprintf("parameter limit must be 1 to %d", api.MaxPage), nil)
	}
	if len(textOf(token)) > api.MaxPageToken {
		return 0, "", invalid("parameter page_token is invalid", nil)
	}
	after, err = placeOf(textOf(token))
	return size, after, err
}

// textOf returns a parameter's text, empty if it is absent.
func textOf[Text ~string](text *Text) string {
	if text == nil {
		return ""
	}
	return string(*text)
}

// timeOf returns a parameter's time, the zero time if it is absent.
func timeOf(t *api.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// laneOf converts a lane; nil stays nil.
func laneOf(lane *int32) *int {
	if lane == nil {
		return nil
	}
	value := int(*lane)
	return &value
}

// seconds converts a number of seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
