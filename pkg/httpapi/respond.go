package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// minRetryAfter is the Retry-After of an answer if the use case gives none.
const minRetryAfter = time.Second

// maxAnswers bounds the bytes of answers that wait for clients to read them. A client has
// answerTime to read one, and a second more for each answerPace bytes. The system buffers an answer
// of smallAnswer bytes.
const (
	maxAnswers  = 64 << 20
	answerTime  = 10 * time.Second
	answerPace  = 256 << 10
	smallAnswer = 16 << 10
)

// responder writes responses. It is safe for concurrent use.
type responder struct {
	log     *slog.Logger
	answers *limiter // in bytes; answers that are being sent to clients
}

func newResponder(log *slog.Logger) *responder {
	// The use case may have made a change, so its answer is never refused.
	return &responder{log: log, answers: newLimiter(maxAnswers, nil)}
}

// chosen is the answer of a handler that chooses the status or encodes the value itself.
type chosen struct {
	status int
	value  any
	json   [][]byte // The value in parts, if it is encoded already.
	held   int      // The bytes of memory that the parts hold together.
}

// answer answers with the error as a problem or, without one, with the value. That may be
// [chosen], and is nil if the handler has answered itself.
func (p *responder) answer(w http.ResponseWriter, r *http.Request, status int, value any, err error) {
	if err == nil && value != nil {
		err = p.deliver(w, r, status, value)
	}
	if err != nil {
		p.problem(w, r, err)
	}
}

// deliver sends a value once there is room for it. It cuts the connection of a client that does
// not read the answer in time.
func (p *responder) deliver(w http.ResponseWriter, r *http.Request, status int, value any) error {
	requestStateOf(r.Context()).done = true
	out, is := value.(chosen)
	if is {
		status, value = out.status, out.value
	}
	parts, held := out.json, out.held
	if parts == nil {
		text, err := encode(value)
		if err != nil {
			return fmt.Errorf("encode response: %w", err)
		}
		parts, held = [][]byte{text}, len(text)
	}
	release, err := p.answers.acquire(r.Context(), auth.CallerOf(r.Context()).Name(), int64(held))
	if err != nil {
		return err
	}
	defer release()
	requestStateOf(r.Context()).drop()
	if length := size(parts); length > smallAnswer {
		// A writer without a connection has no deadlines, and needs none. The next answer on the
		// connection must not inherit this one's.
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(answerTime + time.Duration(length/answerPace)*time.Second))
		defer func() {
			_ = control.Flush()
			_ = control.SetWriteDeadline(time.Time{})
		}()
	}
	send(w, status, "application/json", parts...)
	return nil
}

// problem answers with the error as a problem. This is the only place that logs causes that
// the client must not see.
func (p *responder) problem(w http.ResponseWriter, r *http.Request, err error) {
	if ended := r.Context().Err(); ended != nil && errors.Is(err, ended) { // The client went away.
		if state := requestStateOf(r.Context()); state.status == 0 {
			state.status = statusClientGone
		}
		return
	}
	requestStateOf(r.Context()).drop()
	fault := apierror.From(err)
	p.logFault(r, fault)
	body := problemBody(r, fault)
	if body.Status == http.StatusTooManyRequests || body.Status == http.StatusServiceUnavailable {
		wait := max(fault.RetryAfter, minRetryAfter)
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10))
	}
	encoded, _ := json.Marshal(body) // Strings and numbers: it cannot fail.
	send(w, fault.Code.Status(), "application/problem+json", encoded)
}

// partOf returns the problem of a part of a request, and logs it as problem does.
func (p *responder) partOf(r *http.Request, err error) *api.Problem {
	fault := apierror.From(err)
	p.logFault(r, fault)
	body := problemBody(r, fault)
	return &body
}

// logFault logs a fault with its cause, which the client does not see.
func (p *responder) logFault(r *http.Request, fault *apierror.Error) {
	level := slog.LevelDebug
	switch {
	case fault.Code.Status() == http.StatusInternalServerError:
		level = slog.LevelError
	case fault.Err == nil:
		return
	case fault.Code.Status() > http.StatusInternalServerError:
		level = slog.LevelWarn
	}
	state := requestStateOf(r.Context())
	p.log.LogAttrs(r.Context(), level, "request failed",
		slog.String("request_id", state.id), slog.String("method", r.Method), slog.String("route", state.route),
		slog.String("path", auth.Printable(r.URL.Path)), slog.String("code", string(fault.Code)), slog.Any("err", fault))
}

// problemBody encodes the fault without its cause, and an internal one without details.
func problemBody(r *http.Request, fault *apierror.Error) api.Problem {
	body := api.Problem{
		Type: fault.Code.Type(), Title: fault.Code.Title(), Status: int32(fault.Code.Status()), Code: fault.Code,
		Detail: fault.Summary(), Errors: fault.Errors, CurrentRev: fault.CurrentRev,
		Instance: "urn:lucius:request:" + requestStateOf(r.Context()).id,
	}
	if fault.Code == apierror.Internal {
		body.Detail, body.Errors = "", nil
	}
	return body
}

// encode returns the value as JSON and a newline. It does not escape HTML characters, so
// that opaque values are returned unchanged.
func encode(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return buffer.Bytes(), err
}

func size(parts [][]byte) (bytes int) {
	for _, part := range parts {
		bytes += len(part)
	}
	return bytes
}

// send writes header and body. It ignores errors: the client's connection is broken.
func send(w http.ResponseWriter, status int, contentType string, parts ...[]byte) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(size(parts)))
	w.WriteHeader(status)
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return
		}
	}
}

// formats describes the valid values of parameters that the generated glue may fail to
// bind.
var formats = map[string]string{
	"limit": mustBePage, "lane": mustBeLane, "created_after": mustBeTime, "created_before": mustBeTime,
	"ended_after": mustBeTime, "ended_before": mustBeTime, "minutes": mustBeMinutes,
}

var (
	mustBePage    = fmt.Sprintf("must be a whole number from 1 to %d", api.MaxPage)
	mustBeMinutes = fmt.Sprintf("must be a whole number from 1 to %d", api.MaxMinutes)
)

const (
	mustBeLane = "must be a whole number from 0 on"
	mustBeTime = "must be a time as in RFC 3339, such as 2026-01-27T12:00:00Z"
)

// badParameter answers a parameter that the generated glue could not bind.
func (p *responder) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	message := "a parameter is not valid"
	if wrong, ok := errors.AsType[*api.InvalidParamFormatError](err); ok {
		message = "parameter " + wrong.ParamName + " " + cmp.Or(formats[wrong.ParamName], "has the wrong format")
	}
	if many, ok := errors.AsType[*api.TooManyValuesForParamError](err); ok {
		message = "header " + many.ParamName + " occurs more than once"
	}
	p.problem(w, r, invalid(message, err))
}

// invalid returns the problem of a parameter; err is its cause or nil.
func invalid(message string, err error) *apierror.Error {
	return &apierror.Error{
		Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Message: message}}, Err: err,
	}
}
