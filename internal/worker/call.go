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

// The delays between the tries of one call: the first is so short that a restart of
// the server costs little, and the longest limits the calls during an outage.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

// callTimeout is how long one try of a call may take, in addition to a claim's wait:
// a server that received the request and then crashed never answers.
const callTimeout = 10 * time.Second

// RefusedError is an answer of the server that repeating the call would not
// change.
type RefusedError struct {
	// Status is the HTTP status, 4xx or one that the contract does not know.
	Status int
	// Code and Detail are the problem's, empty if the answer is not a problem.
	Code   problem.Code
	Detail string
}

// Error implements error.
func (e *RefusedError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the server answered %d", e.Status)
	}
	return fmt.Sprintf("the server answered %d %s: %s", e.Status, e.Code, e.Detail)
}

// answer is the server's answer to one try.
type answer struct {
	status int
	body   []byte
	// ok is true if it is the contract's answer for success.
	ok bool
}

// refusal returns the error for an answer that is not ok.
func (a *answer) refusal() error {
	refused := &RefusedError{Status: a.status}
	var p api.Problem
	if json.Unmarshal(a.body, &p) == nil {
		refused.Code, refused.Detail = p.Code, p.Detail
	}
	return refused
}

// again reports whether a retry may succeed.
func (a *answer) again() bool {
	return a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout
}

// persist retries one call, with one request id, until it is answered. It returns a
// [*RefusedError], or the context's cause if the context ends first.
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
		w.cfg.Log.DebugContext(ctx, "retrying a call", "owner", w.cfg.Owner, "in", delay, "error", err)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
