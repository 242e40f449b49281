package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/search"
)

// endpoints are the handlers that the generated glue calls: decode, call, answer.
type endpoints struct {
	*Server
	UseCases

	guard  *guard
	scrape http.Handler
}

var _ api.ServerInterface = (*endpoints)(nil)

// serve decodes a body, calls the use case and answers with its value and that status,
// or with a problem.
func serve[Body any, Checked interface {
	*Body
	checker
}](e *endpoints, w http.ResponseWriter, r *http.Request, status int, rule bodyRule,
	call func(context.Context, Body) (any, error),
) {
	var body Body
	if err := e.decode(w, r, rule, Checked(&body)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	value, err := call(r.Context(), body)
	e.respond.answer(w, r, status, value, err)
}

// MaxWait is the longest time that a request may wait. A longer wait is cut to it.
const MaxWait = api.MaxClaimWait * time.Second

// waiting calls the use case with the time that it may wait, at most [MaxWait], unless the
// caller already has its share of the long polls. When ended is closed, because the server
// drains, the use case answers with what it has.
func waiting[Value any](ctx context.Context, e *endpoints, limit time.Duration,
	call func(limit time.Duration, ended <-chan struct{}) (Value, error),
) (Value, error) {
	if limit <= 0 {
		return call(0, e.ended)
	}
	state := requestStateOf(ctx)
	state.drop() // The body is decoded.
	state.long = true
	release, err := e.waits.acquire(ctx, auth.CallerOf(ctx).Name(), 1)
	if err != nil {
		var none Value
		return none, err
	}
	defer release()
	return call(min(limit, MaxWait), e.ended)
}

// maxReads bounds the bytes that answers hold at a time of rows read from the store, with
// their encoded form. jobWeight is the share of a job, and how much a page may exceed
// [search.PageBytes].
const (
	maxReads  = 64 << 20
	jobWeight = 1 << 20
)

// reserve replaces the request's share of memory with the share of an answer of that
// weight, once there is room for it; the request's body is decoded by then. The request
// holds the share until its answer has a share of its own, and does not wait for other events
// before that. It returns an error if the client has disconnected.
func (e *endpoints) reserve(ctx context.Context, weight int64) error {
	state := requestStateOf(ctx)
	state.drop()
	if weight == 0 {
		return nil
	}
	var err error
	state.release, err = e.reads.acquire(ctx, auth.CallerOf(ctx).Name(), weight)
	return err
}

// lister returns one page of a list: at most limit entries from the cursor on.
type lister func(ctx context.Context, limit int, at cursor) (any, error)

// page answers with the page that the parameters ask for.
func (e *endpoints) page(w http.ResponseWriter, r *http.Request, limit *api.Limit, token *api.PageToken, list lister) {
	size := api.DefaultPage
	if limit != nil {
		size = int(*limit)
	}
	if size < 1 || size > api.MaxPage {
		e.respond.problem(w, r, invalid("parameter limit "+mustBePage, nil))
		return
	}
	at, err := cursorOf(r.URL, orZero(token))
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	if err := e.reserve(r.Context(), jobWeight+4*int64(search.PageBytes(size))); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	found, err := list(r.Context(), size, at)
	e.respond.answer(w, r, http.StatusOK, found, err)
}

// pageOfTenant is page after it has authorized the tenant that the request names, if
// any.
func (e *endpoints) pageOfTenant(w http.ResponseWriter, r *http.Request, tenant *string, limit *api.Limit, token *api.PageToken,
	list lister,
) {
	if err := e.guard.authorizeTenant(r.Context(), orZero(tenant)); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	e.page(w, r, limit, token, list)
}
