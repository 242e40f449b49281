package lucius

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
)

// Task is one attempt of a step. A test of a handler may make one of a [Directive] alone.
type Task struct {
	// Directive is what to do: the step, its payload and its references.
	Directive

	// WorkID is the item of the pull queue.
	WorkID string

	progress func(Progress)
}

// Decode decodes the step's payload into the value. A handler returns its error as it is:
// it is final, with the code payload_invalid.
func (t *Task) Decode(value any) error {
	if err := json.Unmarshal(t.Payload, value); err != nil {
		return Final(codeInvalidInput, "the payload cannot be decoded: %w", err)
	}
	return nil
}

// Progress shows on the step how far it is: the part that is done, from 0 to 1, and a text
// for people. It is sent with a heartbeat, at most every few seconds, and only the newest.
func (t *Task) Progress(fraction float64, message string) {
	if t.progress != nil {
		t.progress(Progress{Fraction: min(max(fraction, 0), 1), Message: message})
	}
}

// traceparentKey is the key of a context's traceparent.
type traceparentKey struct{}

// WithTraceparent returns the context with a W3C trace context, which the client's calls
// in it send. A handler's context has that of its directive.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

// Traceparent returns the trace context of [WithTraceparent], empty if there is none. In a
// handler it is the parent for the spans of its work.
func Traceparent(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentKey{}).(string)
	return traceparent
}

// attend does the work of one item within handling and reports its end within reporting.
func (r *run) attend(handling, reporting context.Context, item *WorkItem) {
	task := &Task{WorkID: item.WorkID}
	if err := json.Unmarshal(item.Directive, &task.Directive); err != nil {
		r.fail(reporting, item, &StepError{Code: codeMalformed, Err: err})
		return
	}
	ctx, giveUp := context.WithCancelCause(handling)
	defer giveUp(nil)
	if task.Traceparent != nil {
		ctx = WithTraceparent(ctx, *task.Traceparent)
	}
	lease := r.keepLease(reporting, item, giveUp)
	task.progress = lease.setProgress
	result, err := r.handle(ctx, task)
	lease.stop() // It may have raised the item's rev.
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrLeaseLost):
		r.Log.WarnContext(ctx, "result dropped: the lease is lost", "work_id", item.WorkID, "error", cause)
	case err != nil:
		r.fail(reporting, item, failureOf(err, cause))
	default:
		r.complete(reporting, item, result)
	}
}

// handle runs the handler of the task. A panic counts as a failure, so that it does not
// stop the other tasks.
func (r *run) handle(ctx context.Context, task *Task) (result Result, err error) {
	defer func() {
		if value := recover(); value != nil {
			r.Log.ErrorContext(ctx, "the handler panicked", "work_id", task.WorkID,
				"panic", fmt.Sprint(value), "stack", string(debug.Stack()))
			result, err = Result{}, Retry(codePanicked, "the handler panicked: %v", value)
		}
	}()
	handler := r.handlers[task.StepType]
	if handler == nil {
		handler = r.handlers[AnyStep]
	}
	if handler == nil { // The claim asked for other types.
		return Result{}, Retry(codeUnknownStep, "this worker has no handler for %s", task.StepType)
	}
	value, err := handler(ctx, task)
	if err != nil {
		return Result{}, err
	}
	return resultOf(value)
}
