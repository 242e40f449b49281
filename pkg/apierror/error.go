package apierror

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
	// Rest is how many violations this entry stands for because they are not named;
	// below 0 their number is not known. Optional. It is not sent.
	Rest int `json:"-"`
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
	// CurrentRev is the rev of the object, for a conflict of revs. Optional; 0 is not sent.
	CurrentRev int64
	// RetryAfter tells the client when to retry. Optional; 0 is not sent.
	RetryAfter time.Duration
	// Unfit says that the protocols of this process refuse the command, which newer ones may accept. It is not sent.
	Unfit bool
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

// precedence orders the codes of faults that can occur together in one request.
var precedence = map[Code]int{NotAfterPassed: 1, RefInvalid: 2, TooLarge: 3, InvalidEnvelope: 4}

// Foremost returns the code for a request with faults of both codes:
// [InvalidEnvelope] before [TooLarge] before [RefInvalid] before [NotAfterPassed]
// before any other, or a if neither is one of these.
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
	all, least := 0, ""
	for i := range e.Errors {
		if e.Errors[i].Rest < 0 {
			least = "at least "
		}
		all += max(e.Errors[i].Rest, 1)
	}
	if all > 1 {
		text += fmt.Sprintf(" There are %s%d violations in all.", least, all)
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

// MayPass reports whether a request that failed with err may succeed if it is repeated, or has succeeded: the caller has to wait
// (429), or the server is at fault. It is false for nil. Any other refusal is final: only another request can succeed.
func MayPass(err error) bool {
	if err == nil {
		return false
	}
	status := From(err).Code.Status()
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

// Below returns an error about a part of a request, with the pointers of an [Error] below that of the part.
func Below(pointer string, err error) error {
	told, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	moved := *told
	moved.Errors = slices.Clone(told.Errors)
	for i := range moved.Errors {
		moved.Errors[i].Pointer = pointer + moved.Errors[i].Pointer
	}
	return &moved
}

// NotJSON returns the [Error] of a body for which package encoding/json
// returned err. The caller must handle errors of a value's type itself: such a
// body is JSON. The detail is that of [NotJSONAt], because the decoder's own
// text quotes the body; that text is kept in Err, for the log.
func NotJSON(body []byte, err error) *Error {
	offset := len(body) // Any other failure of a decoder in memory is an early end.
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != "unexpected end of JSON input" {
		offset = int(syntax.Offset) - 1
	}
	return NotJSONAt(body, offset, "", err)
}

// NotJSONAt returns the [Error] of a body that is not JSON from the byte at
// offset on, counted from 0. Its detail names the place and the fault, which is
// what or, if that is empty, a description of the byte there. It does not quote
// the body. err is the cause, for the log; it may be nil.
func NotJSONAt(body []byte, offset int, what string, err error) *Error {
	char, size := utf8.DecodeRune(body[min(max(offset, 0), len(body)):])
	switch {
	case what != "":
	case size == 0:
		what = "it ends too early"
	case char == utf8.RuneError && size == 1:
		what = "not UTF-8"
	case unicode.IsControl(char):
		what = "a control character that must not be there"
	default:
		what = "a character that must not be there"
	}
	return &Error{
		Code:   InvalidJSON,
		Detail: fmt.Sprintf("The body is not valid JSON at %s: %s.", Place(body, offset), what),
		Err:    err,
	}
}

// Place returns the line and column of the byte at offset, both counted from 1,
// in words. Columns are counted in bytes. An offset outside the body is moved
// to its beginning or end.
func Place(body []byte, offset int) string {
	before := body[:min(max(offset, 0), len(body))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}
