package lucius

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// Task is one attempt of a step. A test of a handler may make one of a [Directive] alone.
type Task struct {
	// Directive is what to do: the step, its payload and its references.
	Directive

	// WorkID is the item of the pull queue.
	WorkID string

	progress func(Progress)
	pause    sync.Once
	paused   chan struct{}
}

// NewTask returns the task of a directive that came another way than by [Worker.Run], for
// [Worker.Do]. Its progress goes to the function, which must be safe for concurrent use.
func NewTask(directive Directive, progress func(Progress)) *Task {
	return &Task{Directive: directive, progress: progress}
}

// PauseRequested returns a channel that is closed when the job is being paused: no further
// step starts. The handler may go on, or, if a later attempt can continue its work, return
// an error of [Retry], with which the step waits for the job to be resumed.
func (t *Task) PauseRequested() <-chan struct{} { return t.paused }

// Decode decodes the step's payload into the value. A handler returns its error as it is:
// it is final, with the code payload_invalid, and names the field. See also [Handle].
func (t *Task) Decode(value any) error {
	err := json.Unmarshal(t.Payload, value)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		pointer := ""
		if wrong.Field != "" {
			pointer = "/" + strings.ReplaceAll(wrong.Field, ".", "/") + ": "
		}
		want := wrong.Type.String()
		switch wrong.Type.Kind() {
		case reflect.Struct, reflect.Map:
			want = "object"
		case reflect.Slice, reflect.Array:
			want = "array"
		default:
		}
		return Final(codeInvalidInput, "%smust be %s, is %s", pointer, want, wrong.Value)
	}
	if err != nil {
		return Final(codeInvalidInput, "the payload cannot be decoded: %w", err)
	}
	return nil
}

// Progress shows on the step how far it is: the part that is done, from 0 to 1, and a text
// for people. It is sent with a heartbeat, at most every few seconds, and only the newest.
func (t *Task) Progress(fraction float64, message string) {
	if !(fraction > 0) { // Also if it is not a number, which JSON does not have.
		fraction = 0
	}
	if t.progress != nil {
		t.progress(Progress{Fraction: min(fraction, 1), Message: cut(message, maxMessage)})
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

// attend does the work of one item within handling and reports its end within reporting. The item
// may be claimed since that time.
func (r *run) attend(handling, reporting context.Context, item *WorkItem, since time.Time) {
	begun := time.Now()
	task := &Task{WorkID: item.WorkID}
	malformed := json.Unmarshal(item.Directive, &task.Directive)
	log := workerlog.Task(r.Log, task.JobID, task.StepID, task.StepType, task.AttemptNo)
	if malformed != nil {
		r.report(reporting, item, log, begun, Result{}, &StepError{Code: codeMalformed, Err: malformed})
		return
	}
	ctx, giveUp := context.WithCancelCause(handling)
	defer giveUp(nil)
	if task.Traceparent != nil {
		reporting = WithTraceparent(reporting, *task.Traceparent)
	}
	lease := r.keepLease(reporting, item, since, task, log, giveUp)
	defer lease.cancel() // The handler may end its goroutine, as FailNow of a test does.
	result, failure := r.worker.Do(ctx, task)
	lease.stop()
	if lease.lost != nil {
		workerlog.Ended(ctx, log, time.Since(begun), workerlog.LeaseLost, lease.lost.Error())
		return
	}
	r.report(reporting, item, log, begun, result, failure)
}

// Do runs the handler of the task as [Worker.Run] does, and returns what to report: a
// result, or a failure that is not nil. It is for tests, and for other ways to get work
// than Run's. A panic counts as a failure, so that it does not stop other tasks.
func (w *Worker) Do(ctx context.Context, task *Task) (result Result, failure *StepError) {
	defer func() {
		if value := recover(); value != nil {
			workerlog.Task(w.cfg.Log, task.JobID, task.StepID, task.StepType, task.AttemptNo).
				ErrorContext(ctx, "handler crashed", "error", fmt.Sprint(value), "stack", string(debug.Stack()))
			err := fmt.Errorf("the handler panicked: %v", value)
			result, failure = Result{}, &StepError{Code: codePanicked, Retryable: true, Err: err}
		}
	}()
	if task.Traceparent != nil {
		ctx = WithTraceparent(ctx, *task.Traceparent)
	}
	handler := w.handler(task.StepType)
	if handler == nil { // Run claims none of these.
		err := fmt.Errorf("this worker has no handler for %s", task.StepType)
		return Result{}, &StepError{Code: codeUnknownStep, Retryable: true, Err: err}
	}
	for _, around := range slices.Backward(w.middleware) {
		handler = around(handler)
	}
	value, err := handler(ctx, task)
	if err == nil {
		result, err = resultOf(value)
	}
	if err != nil {
		_ = err.Error() // It panics here if it does, as that of a nil pointer does, and not in a report.
		return Result{}, failureOf(err, context.Cause(ctx))
	}
	return result, nil
}
