package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

// minRetryAfter is the Retry-After of an answer if the use case gives none.
const minRetryAfter = time.Second

// responder writes responses. It is safe for concurrent use.
type responder struct{ log *slog.Logger }

// answer answers with the value, which must encode, or with the error as a problem.
func (p *responder) answer(w http.ResponseWriter, r *http.Request, status int, value any, err error) {
	if err != nil {
		p.problem(w, r, err)
		return
	}
	body, err := encode(value)
	if err != nil {
		p.problem(w, r, fmt.Errorf("encode response: %w", err))
		return
	}
	send(w, status, "application/json", body)
}

// problem answers with the error as a problem. Only here are causes logged that the
// client must not see.
func (p *responder) problem(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) { // The client went away.
		if state := requestStateOf(r.Context()); state.status == 0 {
			state.status = statusClientGone
		}
		return
	}
	fault := problem.From(err)
	p.logFault(r, fault)
	body := problemBody(r, fault)
	if body.Status == http.StatusTooManyRequests || body.Status == http.StatusServiceUnavailable {
		wait := max(fault.RetryAfter, minRetryAfter)
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10))
	}
	encoded, _ := json.Marshal(body) // Strings and numbers: it cannot fail.
	send(w, fault.Code.Status(), "application/problem+json", encoded)
}

// logFault logs a fault whose cause the client does not see.
func (p *responder) logFault(r *http.Request, fault *problem.Error) {
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
func problemBody(r *http.Request, fault *problem.Error) api.Problem {
	body := api.Problem{
		Type: fault.Code.Type(), Title: fault.Code.Title(), Status: int32(fault.Code.Status()), Code: fault.Code,
		Detail: fault.Summary(), Errors: fault.Errors, Instance: "urn:lucius:request:" + requestStateOf(r.Context()).id,
	}
	if fault.Code == problem.Internal {
		body.Detail, body.Errors = "", nil
	}
	return body
}

// encode returns the value as JSON and a newline. It does not escape HTML characters:
// opaque values go out as they came in.
func encode(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return buffer.Bytes(), err
}

// send writes header and body. It ignores errors: the client's connection is broken.
func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// badParameter answers a parameter that the generated glue could not bind.
func (p *responder) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	message := "a parameter is not valid"
	if wrong, ok := errors.AsType[*api.InvalidParamFormatError](err); ok {
		message = "parameter " + wrong.ParamName + " has the wrong format"
	}
	if many, ok := errors.AsType[*api.TooManyValuesForParamError](err); ok {
		message = "header " + many.ParamName + " occurs more than once"
	}
	p.problem(w, r, invalid(message, err))
}

// invalid returns the problem of a parameter; err is its cause or nil.
func invalid(message string, err error) *problem.Error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Message: message}}, Err: err,
	}
}
