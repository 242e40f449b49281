package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// The delays between the tries of one call: soon enough that a restart of the
// server is hardly noticed, and no more often than every two seconds while it
// is away.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

// callTimeout is how long one try of a call may take, a claim's wait apart: a
// server that took the request and went away never answers.
const callTimeout = 10 * time.Second

// RefusedError is an answer of the server that repeating the call would not
// change.
type RefusedError struct {
	// Status is the HTTP status, 4xx or one that the contract does not know.
	Status int
	// Code and Detail are the problem's, empty where the answer is none.
	Code   problem.Code
	Detail string
}

// Error says what was answered.
func (e *RefusedError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the server answered %d", e.Status)
	}
	return fmt.Sprintf("the server answered %d %s: %s", e.Status, e.Code, e.Detail)
}

// answer is what came back of one try.
type answer struct {
	status int
	body   []byte
	// ok says that it is what the contract promises for success.
	ok bool
}

// refusal is the error of an answer that is no success.
func (a *answer) refusal() error {
	refused := &RefusedError{Status: a.status}
	var p api.Problem
	if json.Unmarshal(a.body, &p) == nil {
		refused.Code, refused.Detail = p.Code, p.Detail
	}
	return refused
}

// again reports whether the same call may be answered otherwise later.
func (a *answer) again() bool {
	return a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout
}

// persist makes one call, which has one request id, until it is answered. It
// returns a [*RefusedError], or the context's cause when that ends first.
func (w *Worker) persist(ctx context.Context, call func(context.Context) (answer, error)) error {
	delays := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstDelay), backoff.WithMaxInterval(lastDelay), backoff.WithMaxElapsedTime(0))
	err := backoff.RetryNotify(func() error {
		limited, cancel := context.WithTimeout(ctx, w.cfg.ClaimWait+callTimeout)
		defer cancel()
		answer, err := call(limited)
		switch {
		case err != nil:
			return err
		case answer.ok:
			return nil
		case answer.again():
			return answer.refusal()
		}
		return backoff.Permanent(answer.refusal())
	}, backoff.WithContext(delays, ctx), func(err error, delay time.Duration) {
		w.cfg.Log.DebugContext(ctx, "calling again", "owner", w.cfg.Owner, "in", delay, "error", err)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
