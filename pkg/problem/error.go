package problem

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Violation names one thing that is wrong with a request, and where.
type Violation struct {
	// Pointer is the JSON pointer (RFC 6901) of the value in the request's body;
	// empty where the whole body or a parameter is meant.
	Pointer string `json:"pointer"`
	// Message says what is wrong with it, for people.
	Message string `json:"message"`
	// Code is the kind of fault, which [Refused] makes the code of the whole.
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
	// Errors names every violation, in the order of the request. Optional.
	Errors []Violation
	// RetryAfter tells the client when to try again. Optional; 0 says nothing.
	RetryAfter time.Duration
	// Err is the cause, for the log alone: it is never sent. Optional.
	Err error
}

// Newf returns an [Error] of that code whose detail is the formatted text.
func Newf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Refused returns the [Error] of a request with these violations, of which there
// must be one at least. Where they are of several kinds its code is the [Foremost].
// The error owns the slice.
func Refused(violations []Violation) *Error {
	var code Code
	for i := range violations {
		code = Foremost(code, cmp.Or(violations[i].Code, InvalidEnvelope))
	}
	return &Error{Code: code, Errors: violations}
}

// precedence orders the codes of faults that one request may have side by side.
var precedence = map[Code]int{RefInvalid: 1, TooLarge: 2, InvalidEnvelope: 3}

// Foremost returns the code that a request is answered with whose faults are of
// both kinds: [InvalidEnvelope] before [TooLarge] before [RefInvalid] before any
// other, and a where neither is one of these.
func Foremost(a, b Code) Code {
	if precedence[b] > precedence[a] {
		return b
	}
	return a
}

// Summary returns the detail for the client; where there is none, the first
// violation and how many there are.
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

// From returns the [Error] that err is or wraps, nil for nil, and for any other
// error, or one whose code is none of [Codes], one of code [Internal] with err
// as its cause and no detail.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*Error](err); ok && define(known.Code).code == known.Code {
		return known
	}
	return &Error{Code: Internal, Err: err}
}
