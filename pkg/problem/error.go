package problem

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Violation is one fault of a request and its location.
type Violation struct {
	// Pointer is the JSON pointer (RFC 6901) of the value in the request's
	// body, or empty for the whole body or a parameter.
	Pointer string `json:"pointer"`
	// Message describes the fault, for people.
	Message string `json:"message"`
	// Code is the kind of fault, from which [Refused] chooses the error's code.
	// Optional. Defaults to [InvalidEnvelope]. It is not sent.
	Code Code `json:"-"`
}

// Error is a problem that a use case reports to its caller. It is immutable
// once returned.
type Error struct {
	// Code is the stable reason. Required.
	Code Code
	// Detail is a sentence for people about this occurrence. Optional: see
	// Summary. It is sent to the client, so it must not hold secrets, file
	// paths or SDK text.
	Detail string
	// Errors are all violations, in the order of the request. Optional.
	Errors []Violation
	// RetryAfter tells the client when to retry. Optional; 0 is not sent.
	RetryAfter time.Duration
	// Err is the cause, which is logged and never sent. Optional.
	Err error
}

// Newf returns an [Error] of that code whose detail is the formatted text.
func Newf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Refused returns the [Error] of a request with these violations, at least one.
// If they have several codes, the error has the [Foremost]. The error owns the
// slice.
func Refused(violations []Violation) *Error {
	var code Code
	for i := range violations {
		code = Foremost(code, cmp.Or(violations[i].Code, InvalidEnvelope))
	}
	return &Error{Code: code, Errors: violations}
}

// precedence orders the codes of faults that one request may have together.
var precedence = map[Code]int{RefInvalid: 1, TooLarge: 2, InvalidEnvelope: 3}

// Foremost returns the code for a request with faults of both codes:
// [InvalidEnvelope] before [TooLarge] before [RefInvalid] before any other, or
// a if neither is one of these.
func Foremost(a, b Code) Code {
	if precedence[b] > precedence[a] {
		return b
	}
	return a
}

// Summary returns the detail for the client or, if there is none, the first
// violation and the number of violations.
func (e *Error) Summary() string {
	if e.Detail != "" || len(e.Errors) == 0 {
		return e.Detail
	}
	first := e.Errors[0]
	text := strings.TrimSpace(first.Pointer+" "+first.Message) + "."
	if all := len(e.Errors); all > 1 {
		text += fmt.Sprintf(" There are %d violations in all.", all)
	}
	return text
}

// Error returns code, detail and cause, for logs.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString(string(e.Code))
	if e.Detail != "" {
		text.WriteString(": " + e.Detail)
	}
	for _, violation := range e.Errors {
		fmt.Fprintf(&text, "; %q %s", violation.Pointer, violation.Message)
	}
	if e.Err != nil {
		text.WriteString(": " + e.Err.Error())
	}
	return text.String()
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.Err }

// From returns the [Error] that err is or wraps, or nil for nil. Any other
// error, or one whose code is not in [Codes], becomes an Error with the code
// [Internal], err as its cause and no detail.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*Error](err); ok && define(known.Code).code == known.Code {
		return known
	}
	return &Error{Code: Internal, Err: err}
}
