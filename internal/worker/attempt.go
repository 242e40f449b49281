package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// The error codes of reported failures. codeFailed is for any error of a handler
// that has no code of its own here.
const (
	codeFailed    = "work_failed"
	codePanicked  = "handler_panicked"
	codeMalformed = "directive_malformed"
	codeCancelled = "cancelled"
)

// maxMessage is the longest error message that is reported, in bytes.
const maxMessage = 1000

// panicError is the panic of a handler.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.value) }

// attend does the work of one item and reports the result.
func (w *Worker) attend(ctx context.Context, item *api.WorkItem) {
	var directive api.Directive
	if err := json.Unmarshal(item.Directive, &directive); err != nil {
		w.report(ctx, item, item.Rev, w.failure(codeMalformed, false, err))
		return
	}
	handling, cancel := context.WithCancelCause(ctx)
	stop := w.keepLease(ctx, item, cancel)
	result, err := w.handle(handling, directive)
	rev := stop()
	cause := context.Cause(handling)
	cancel(nil)
	switch {
	case errors.Is(cause, ErrLeaseLost):
		w.cfg.Log.WarnContext(ctx, "work dropped: the lease is lost", "work_id", item.WorkID, "error", cause)
	case err == nil:
		w.report(ctx, item, rev, w.completion(result))
	case errors.Is(cause, ErrCancelled):
		w.report(ctx, item, rev, w.failure(codeCancelled, false, err))
	default:
		code, retryable := codeFailed, !w.cfg.Permanent(err)
		if _, panicked := errors.AsType[*panicError](err); panicked {
			code = codePanicked
		}
		w.report(ctx, item, rev, w.failure(code, retryable, err))
	}
}

// handle runs the handler. A panic counts as a failure, so that it does not stop the
// other items in hand.
func (w *Worker) handle(ctx context.Context, directive api.Directive) (result json.RawMessage, err error) {
	defer func() {
		if value := recover(); value != nil {
			result, err = nil, &panicError{value}
		}
	}()
	return w.cfg.Handle(ctx, directive)
}

// report makes one try to report the end of an item at the given rev.
type report func(ctx context.Context, workID string, rev int64, requestID string) (answer, error)

// report reports the end of an item. A refused report is dropped: the attempt
// belongs to another worker or has ended otherwise.
func (w *Worker) report(ctx context.Context, item *api.WorkItem, rev int64, send report) {
	requestID := uuid.NewString()
	err := w.persist(ctx, func(ctx context.Context) (answer, error) { return send(ctx, item.WorkID, rev, requestID) })
	if err != nil {
		w.cfg.Log.WarnContext(ctx, "report dropped", "work_id", item.WorkID, "error", err)
	}
}

// completion reports success.
func (w *Worker) completion(result json.RawMessage) report {
	return func(ctx context.Context, workID string, rev int64, requestID string) (answer, error) {
		response, err := w.cfg.Client.CompleteWorkWithResponse(ctx, workID, api.WorkCompletion{
			Owner: w.cfg.Owner, ExpectedRev: rev, RequestID: requestID, ResultRef: result,
		})
		if err != nil {
			return answer{}, err
		}
		return answer{response.StatusCode(), response.Body, response.JSON200 != nil}, nil
	}
}

// failure reports a failure.
func (w *Worker) failure(code string, retryable bool, cause error) report {
	message := cause.Error()
	message = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
	return func(ctx context.Context, workID string, rev int64, requestID string) (answer, error) {
		response, err := w.cfg.Client.FailWorkWithResponse(ctx, workID, api.WorkFailure{
			Owner: w.cfg.Owner, ExpectedRev: rev, RequestID: requestID, Retryable: retryable,
			Error: api.ReportedError{Code: code, Message: message},
		})
		if err != nil {
			return answer{}, err
		}
		return answer{response.StatusCode(), response.Body, response.JSON200 != nil}, nil
	}
}

// ErrCancelled ends a handler's context when the job is being cancelled, so that its
// result is not needed any more.
var ErrCancelled = errors.New("the job is being cancelled")

// ErrLeaseLost ends a handler's context when the server says that the attempt no
// longer belongs to this worker. Its result is not reported.
var ErrLeaseLost = errors.New("the lease is lost")

// minBeat prevents a busy loop when a lease is very short, or looks so because the
// server's clock is late.
const minBeat = 10 * time.Millisecond

// keepLease extends the item's lease, each time after a third of what is left of it,
// until stop is called. stop waits for a heartbeat in flight, which may raise the item's
// rev, and returns that rev. giveUp ends the handler's context.
func (w *Worker) keepLease(ctx context.Context, item *api.WorkItem, giveUp context.CancelCauseFunc) (stop func() int64) {
	stopped, done := make(chan struct{}), make(chan struct{})
	rev, lease := item.Rev, item.Lease // rev may be read once done is closed.
	beat := func() {
		defer close(done)
		for lease != nil {
			timer := time.NewTimer(max(time.Until(lease.ExpiresAt.Time)/3, minBeat))
			select {
			case <-timer.C:
			case <-stopped:
				timer.Stop()
				return
			case <-ctx.Done():
				timer.Stop()
				return
			}
			var extended *api.WorkItem
			verb := api.WorkHeartbeat{Owner: w.cfg.Owner, ExpectedRev: rev, RequestID: uuid.NewString()}
			err := w.persist(ctx, func(ctx context.Context) (answer, error) {
				response, err := w.cfg.Client.HeartbeatWorkWithResponse(ctx, item.WorkID, verb)
				if err != nil {
					return answer{}, err
				}
				extended = response.JSON200
				return answer{response.StatusCode(), response.Body, extended != nil}, nil
			})
			if err != nil {
				giveUp(fmt.Errorf("%w: %w", ErrLeaseLost, err))
				return
			}
			rev, lease = extended.Rev, extended.Lease
			if extended.CancelRequested != nil && *extended.CancelRequested {
				giveUp(ErrCancelled)
			}
		}
	}
	go beat()
	return func() int64 {
		close(stopped)
		<-done
		return rev
	}
}

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
		}
		refused := &RefusedError{Status: answer.status}
		var p api.Problem
		if json.Unmarshal(answer.body, &p) == nil {
			refused.Code, refused.Detail = p.Code, p.Detail
		}
		if answer.status >= 500 || answer.status == http.StatusTooManyRequests || answer.status == http.StatusRequestTimeout {
			return refused
		}
		return backoff.Permanent(refused)
	}, backoff.WithContext(delays, ctx), func(err error, delay time.Duration) {
		w.cfg.Log.DebugContext(ctx, "retrying a call", "owner", w.cfg.Owner, "in", delay, "error", err)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
