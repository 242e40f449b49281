package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/problem"
)

// readAhead limits the buffer that is allocated before the client has sent anything.
const readAhead = 1 << 16

// bodies reads request bodies. It is safe for concurrent use.
type bodies struct {
	limit   int64
	unknown *prometheus.CounterVec
}

// checker is a body of the contract, which checks itself.
type checker interface {
	Check() []problem.Violation
}

// strict decodes a body in which unknown fields are refused.
func (b *bodies) strict(w http.ResponseWriter, r *http.Request, into checker) error {
	return b.decode(w, r, into, refuseUnknown)
}

// optional is strict for a body that may be absent.
func (b *bodies) optional(w http.ResponseWriter, r *http.Request, into checker) error {
	if r.ContentLength == 0 {
		return nil
	}
	return b.strict(w, r, into)
}

// lenient decodes a body in which unknown fields are ignored and counted.
func (b *bodies) lenient(w http.ResponseWriter, r *http.Request, into checker) error {
	return b.decode(w, r, into, func(_ string, _ error) error {
		if state := requestStateOf(r.Context()); state != nil {
			b.unknown.WithLabelValues(state.route).Inc()
		}
		return nil
	})
}

// decode reads a JSON body and checks it.
func (b *bodies) decode(w http.ResponseWriter, r *http.Request, into checker, unknown onUnknown) error {
	body, err := b.raw(w, r)
	if err != nil {
		return err
	}
	if err := decodeJSON(body, into, unknown); err != nil {
		return err
	}
	if violations := into.Check(); len(violations) > 0 {
		return problem.Refused(violations)
	}
	return nil
}

// raw reads a body that must be declared as JSON. The caller owns it.
func (b *bodies) raw(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if err := requireJSON(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > b.limit {
		return nil, b.tooLarge(w, r)
	}
	buffer := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), readAhead)+bytes.MinRead))
	_, err := buffer.ReadFrom(http.MaxBytesReader(w, r.Body, b.limit))
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // See hurryBody.
		return buffer.Bytes(), nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, b.tooLarge(w, r)
	}
	w.Header().Set("Connection", "close")
	return nil, &problem.Error{Code: problem.InvalidJSON, Detail: "The body could not be read to its end.", Err: err}
}

// How much of a too large body is read, and for how long, before it is refused.
const (
	drainBytes = 16 << 20
	drainTime  = 2 * time.Second
)

// tooLarge returns the problem of a body that exceeds the limit. It first reads and
// drops some of the rest: a client that is still sending when the connection ends
// never sees the answer. A client that sent Expect waits for it, so nothing is read.
func (b *bodies) tooLarge(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Connection", "close")
	if r.Header.Get("Expect") == "" {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.CopyN(io.Discard, r.Body, drainBytes) // The answer is the same if this fails.
	}
	return problem.Newf(problem.TooLarge, "The body is larger than %d bytes.", b.limit)
}

// requireJSON checks that a body is declared as JSON in UTF-8, without an encoding.
func requireJSON(header http.Header) error {
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return problem.Newf(problem.UnsupportedMediaType, "Content-Encoding must be absent.")
	}
	contentType := header.Get("Content-Type")
	if contentType == "application/json" {
		return nil
	}
	mediaType, parameters, err := mime.ParseMediaType(contentType)
	charset := parameters["charset"]
	if err != nil || mediaType != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problem.Newf(problem.UnsupportedMediaType, "Content-Type must be application/json.")
	}
	return nil
}
