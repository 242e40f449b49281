package lucius

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is a response of the server that reports an error.
type Error struct {
	// Problem is what the server said. Of an answer that is no problem, such as one of a
	// proxy, it has the Status alone, and plain text as its Detail.
	Problem

	// RetryAfter is how long the server asks to wait, 0 if it does not.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	if e.Status == 0 && e.Code == "" { // The request was not sent.
		return e.Detail
	}
	var text strings.Builder
	fmt.Fprintf(&text, "the server answered %d", e.Status)
	if e.Code != "" {
		text.WriteString(" " + string(e.Code))
	}
	if e.Detail != "" {
		text.WriteString(": " + e.Detail)
	}
	for _, violation := range e.Errors {
		fmt.Fprintf(&text, "; %s: %s", violation.Pointer, violation.Message)
	}
	return text.String()
}

// HasCode reports whether the error is an [Error] with the code.
func HasCode(err error, code ProblemCode) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && refused.Code == code
}

// errorOf returns the [Error] of an answer with this body.
func errorOf(status int, header http.Header, body []byte) *Error {
	refused := &Error{}
	switch kind, _, _ := strings.Cut(header.Get("Content-Type"), ";"); {
	case kind == "application/problem+json" && json.Unmarshal(body, &refused.Problem) == nil:
	case kind == "text/plain": // as the HTTP library of the server answers
		refused.Problem = Problem{Detail: cut(strings.TrimSpace(string(body)), maxMessage)}
	default:
		refused.Problem = Problem{}
	}
	refused.Status = int32(status)
	if seconds, err := strconv.Atoi(header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(seconds) * time.Second
	}
	return refused
}

// mayPass reports whether a call that ended with the error may succeed if it is repeated:
// there was no answer, or one that the server's state or a concurrent request explains.
func mayPass(err error) bool {
	refused, answered := errors.AsType[*Error](err)
	if !answered {
		return true
	}
	return refused.Status >= 500 || refused.Status == http.StatusTooManyRequests || refused.Status == http.StatusRequestTimeout ||
		refused.Code == ProblemCodeConflict
}

// fromProxy reports whether the error is an answer in the server's place, such as that of a
// proxy without a way to the server. The server's own have a code, except to a request that
// cannot be read, or is too large.
func fromProxy(err error) bool {
	refused, answered := errors.AsType[*Error](err)
	return answered && refused.Code == "" && refused.Status >= 300 && refused.Status != http.StatusBadRequest &&
		refused.Status != http.StatusRequestEntityTooLarge
}

// hasAnswer reports whether the error of a call, or nil, is an answer of the server.
func hasAnswer(err error) bool {
	_, answered := errors.AsType[*Error](err)
	return err == nil || answered && !fromProxy(err)
}

// tokenRefused reports whether the server did not accept the caller's token. That says nothing
// about an attempt: the token may have expired, and be replaced before the lease ends.
func tokenRefused(err error) bool {
	refused, answered := errors.AsType[*Error](err)
	return answered && refused.Status == http.StatusUnauthorized
}

// StepError is the error of a handler that says what becomes of its step. [Final], [Retry],
// [RetryAfter], [Throttled] and [ThrottledTenant] make one.
type StepError struct {
	// Code is for machines, up to 128 bytes: the step and its job show it.
	Code string
	// Retryable is true if another attempt may succeed.
	Retryable bool
	// After replaces the delay of the protocol before the next attempt. 0 keeps it.
	After time.Duration
	// Scope is for whose work the service takes no more until After, if it throttled the attempt,
	// which then spends no retry. It counts only if Retryable. Optional.
	Scope ThrottleScope
	// Err is the reason. Its text is reported. Optional. Defaults to the code.
	Err error
}

// Error implements error.
func (f *StepError) Error() string {
	if f.Err == nil {
		return f.Code
	}
	return f.Err.Error()
}

// Unwrap returns the reason.
func (f *StepError) Unwrap() error { return f.Err }

// Reported returns what is reported of the failure: its code and its text, with [secret] in
// the place of each of the secrets, cut to the lengths that the server takes. A secret of
// fewer than 8 bytes is kept, as words have such parts.
func (f *StepError) Reported(secrets ...string) ReportedError {
	return ReportedError{Code: cut(redact(f.Code, secrets), maxCode), Message: cut(redact(f.Error(), secrets), maxMessage)}
}

// minSecret is the length of the shortest secret that is redacted, in bytes.
const minSecret = 8

// redact returns the text without the secrets, should it quote them.
func redact(text string, secrets []string) string {
	for _, secret := range secrets {
		if len(secret) >= minSecret {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return text
}

// Final returns the error of work that no further attempt can do: the job fails.
func Final(code, format string, args ...any) error {
	return &StepError{Code: code, Err: fmt.Errorf(format, args...)}
}

// Retry returns the error of work that another attempt may do, after the delay of the
// protocol. An error that is no [StepError] is treated so too, with the code work_failed.
func Retry(code, format string, args ...any) error {
	return &StepError{Code: code, Retryable: true, Err: fmt.Errorf(format, args...)}
}

// RetryAfter returns the error of work that another attempt may do, after the delay, which
// is at most a week.
func RetryAfter(delay time.Duration, code, format string, args ...any) error {
	return &StepError{Code: code, Retryable: true, After: delay, Err: fmt.Errorf(format, args...)}
}

// Throttled returns the error of work that the service has no capacity for, as with HTTP status
// 429. Another attempt is made exactly after the delay, which is at most a week and counts as a
// millisecond if it is shorter. The first 100 such attempts of a step spend no retry.
func Throttled(after time.Duration, code, format string, args ...any) error {
	return &StepError{
		Code: code, Retryable: true, After: after, Scope: ThrottleScopeService, Err: fmt.Errorf(format, args...),
	}
}

// ThrottledTenant is [Throttled] for a service that takes no work of the job's tenant, but of others.
func ThrottledTenant(after time.Duration, code, format string, args ...any) error {
	return &StepError{
		Code: code, Retryable: true, After: after, Scope: ThrottleScopeTenant, Err: fmt.Errorf(format, args...),
	}
}

// The causes with which a handler's context ends, see [context.Cause].
var (
	// ErrCancelled is the cause when the job is being cancelled: no result is needed.
	ErrCancelled = errors.New("the job is being cancelled")
	// ErrLeaseLost is the cause when the server said that the attempt no longer belongs to
	// this worker. Its result is not reported.
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrStopped is the cause when the grace after the worker's stop is over. An error
	// that the handler then returns gives the step to another worker at once.
	ErrStopped = errors.New("the worker has stopped")
)

// The codes of failures that are not the handler's own.
const (
	codeFailed        = "work_failed"
	codePanicked      = "handler_panicked"
	codeMalformed     = "directive_malformed"
	codeUnknownStep   = "step_type_unknown"
	codeInvalidInput  = "payload_invalid"
	codeInvalidResult = "result_invalid"
	codeLargeResult   = "result_too_large"
	codeRefused       = "result_refused"
	codeCancelled     = "cancelled"
	codeStopped       = "worker_stopped"
)

// maxDelay is the longest delay before another attempt that a report can ask for.
const maxDelay = 7 * 24 * time.Hour

// failureOf returns what to report of a handler's error, by the cause with which its
// context ended.
func failureOf(err, cause error) *StepError {
	switch {
	case errors.Is(cause, ErrCancelled):
		return &StepError{Code: codeCancelled, Err: err}
	case errors.Is(cause, ErrStopped):
		return &StepError{Code: codeStopped, Retryable: true, After: time.Second, Err: err}
	}
	if failure, ok := errors.AsType[*StepError](err); ok {
		// What wraps the failure says more than the failure.
		told := &StepError{Code: failure.Code, Retryable: failure.Retryable, After: min(max(failure.After, 0), maxDelay), Err: err}
		if failure.Retryable && failure.Scope != "" {
			told.Scope, told.After = failure.Scope, max(told.After, time.Millisecond)
		}
		return told
	}
	return &StepError{Code: codeFailed, Retryable: true, Err: err}
}

// pause waits, and reports false if the context ends first.
func pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
