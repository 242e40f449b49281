package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
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
	beats := w.startHeart(ctx, item, cancel)
	result, err := w.handle(handling, directive)
	rev := beats.stop()
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
