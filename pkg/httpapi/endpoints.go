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

// answer answers with the value that handle returns and that status, or with its error: see
// responder.answer.
func (e *endpoints) answer(w http.ResponseWriter, r *http.Request, status int, handle func(context.Context) (any, error)) {
	value, err := handle(r.Context())
	e.respond.answer(w, r, status, value, err)
}

// serve is answer for a request with a body, which it decodes.
func serve[Body any, Checked pointerTo[Body]](e *endpoints, w http.ResponseWriter, r *http.Request, status int, rule bodyRule,
	handle func(context.Context, Body) (any, error),
) {
	e.answer(w, r, status, func(ctx context.Context) (any, error) {
		var body Body
		if err := e.decode(w, r, rule, Checked(&body)); err != nil {
			return nil, err
		}
		return handle(ctx, body)
	})
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

// page is answer for one page of a list.
func (e *endpoints) page(w http.ResponseWriter, r *http.Request, limit *api.Limit, token *api.PageToken, list lister) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) { return e.onePage(ctx, r, limit, token, list) })
}

// pageOfTenant is page for a list that may be of one tenant. It tells a caller who may not see the
// tenant nothing else.
func (e *endpoints) pageOfTenant(
	w http.ResponseWriter, r *http.Request, tenantID *string, limit *api.Limit, token *api.PageToken, list lister,
) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		if err := e.guard.authorizeTenant(ctx, orZero(tenantID)); err != nil {
			return nil, err
		}
		return e.onePage(ctx, r, limit, token, list)
	})
}

// onePage checks which page is asked for, and returns it.
func (e *endpoints) onePage(
	ctx context.Context, r *http.Request, limit *api.Limit, token *api.PageToken, list lister,
) (any, error) {
	size := api.DefaultPage
	if limit != nil {
		size = int(*limit)
	}
	if size < 1 || size > api.MaxPage {
		return nil, invalid("parameter limit "+mustBePage, nil)
	}
	at, err := cursorOf(r.URL, orZero(token))
	if err != nil {
		return nil, err
	}
	if err := e.reserve(ctx, jobWeight+4*int64(search.PageBytes(size))); err != nil {
		return nil, err
	}
	return list(ctx, size, at)
}
