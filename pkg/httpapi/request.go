package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// checker is a body of the contract, which checks itself.
type checker interface {
	Check() []apierror.Violation
}

// pointerTo is a body as the pointer that it is checked with.
type pointerTo[Body any] interface {
	*Body
	checker
}

// bodyRule says what a body may contain.
type bodyRule int

const (
	strict   bodyRule = iota // Unknown fields are refused.
	optional                 // The same, and the body may be absent.
	lenient                  // Unknown fields are ignored and counted.
)

// The bytes that all requests together may hold at a time. Bodies are counted before they
// are read, and trees, which are decoded bodies, before they are made. Forms have room of their
// own, since any caller may send them; one has at most maxForm bytes.
const (
	maxBodies = 64 << 20
	maxTrees  = 64 << 20
	maxForms  = 16 << 20
	maxForm   = 256 << 10
)

// treeBytes is the most memory that decoding takes for each structural character of a
// text; measured: up to 145 bytes for a value in an object, which has two or three.
const treeBytes = 128

// reserveTree waits until decoding the text fits into what all requests may decode: a
// tree of many tiny values is 50 times as large as its text. The caller calls release when the
// tree is no longer used, and does not wait for the store before that. It returns an error if
// the client has disconnected, or if the wait is too long.
func (e *endpoints) reserveTree(ctx context.Context, text []byte) (release func(), err error) {
	weight := int64(2 * len(text))
	for _, structural := range []byte(",:[{") {
		weight += treeBytes * int64(bytes.Count(text, []byte{structural}))
	}
	return e.trees.acquire(ctx, auth.CallerOf(ctx).Name(), weight)
}

// decode reads a body of exactly one JSON value and checks it. The error is a problem
// that says where the fault is.
func (e *endpoints) decode(w http.ResponseWriter, r *http.Request, rule bodyRule, into checker) error {
	if rule == optional && r.ContentLength == 0 {
		return nil
	}
	body, err := e.readBody(w, r)
	if err != nil {
		return err
	}
	if err := api.CheckText(body); err != nil {
		return err
	}
	release, err := e.reserveTree(r.Context(), body)
	if err != nil {
		return err
	}
	defer release()
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(into)
	if name, is := unknownField(err); is {
		if rule != lenient {
			return &apierror.Error{
				Code:   apierror.InvalidEnvelope,
				Errors: []apierror.Violation{{Pointer: api.Pointer(name), Message: "is unknown"}},
				Err:    err,
			}
		}
		e.metrics.unknown.WithLabelValues(requestStateOf(r.Context()).route).Inc()
		// The decoder reports an unknown field before faults that come after it.
		decoder = json.NewDecoder(bytes.NewReader(body))
		err = decoder.Decode(into)
	}
	if err != nil {
		return api.DecodeFault(body, err)
	}
	if rest := bytes.TrimLeft(body[decoder.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return apierror.NotJSONAt(body, len(body)-len(rest), "text after the value", nil)
	}
	if violations := into.Check(); len(violations) > 0 {
		return apierror.Refused(violations)
	}
	if state := requestStateOf(r.Context()); state.rule.Audited {
		var given struct{ Reason string }
		_ = json.Unmarshal(body, &given) // The body is valid; requests without a reason leave it empty.
		state.reason = given.Reason
	}
	return nil
}

// unknownField reports whether the error is about an unknown field, and returns the
// field's name. The decoder has no type for this error.
func unknownField(err error) (name string, is bool) {
	if err == nil {
		return "", false
	}
	quoted, is := strings.CutPrefix(err.Error(), "json: unknown field ")
	if !is {
		return "", false
	}
	name, err = strconv.Unquote(quoted)
	return name, err == nil
}

const (
	// readAhead limits the buffer that is allocated before the client has sent anything.
	readAhead = 1 << 16
	// drainBytes is how much of a too large body is read before it is refused, and
	// drainTime bounds how long that may take.
	drainBytes = 16 << 20
	drainTime  = 2 * time.Second
)

// readBody reads a body, which must be declared as JSON in UTF-8, without an encoding.
// The request owns it until it is answered or waits, see requestState.drop.
func (e *endpoints) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, apierror.Newf(apierror.UnsupportedMediaType, "Content-Encoding must be absent.")
	}
	if contentType := r.Header.Get("Content-Type"); contentType != "application/json" {
		mediaType, parameters, err := mime.ParseMediaType(contentType)
		charset := parameters["charset"]
		if err != nil || mediaType != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
			return nil, apierror.Newf(apierror.UnsupportedMediaType, "Content-Type must be application/json.")
		}
	}
	var refusal *apierror.Error
	if r.ContentLength <= e.config.MaxBodyBytes {
		body, err := e.readInShare(w, r)
		if err == nil {
			return body, nil
		}
		if gone := context.Cause(r.Context()); gone != nil && errors.Is(err, gone) {
			return nil, err
		}
		refusal, _ = errors.AsType[*apierror.Error](err)
		if _, large := errors.AsType[*http.MaxBytesError](err); refusal == nil && !large {
			w.Header().Set("Connection", "close")
			return nil, &apierror.Error{Code: apierror.InvalidJSON, Detail: "The body could not be read to its end.", Err: err}
		}
	}
	if refusal == nil {
		refusal = apierror.Newf(apierror.TooLarge, "The body is larger than %d bytes.", e.config.MaxBodyBytes)
	}
	requestStateOf(r.Context()).drop()
	w.Header().Set("Connection", "close")
	// A client that is still sending when the connection ends never sees the answer, so
	// some of the rest is read and dropped. A client that sent Expect waits for the
	// answer and sends nothing.
	if r.Header.Get("Expect") == "" {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.CopyN(io.Discard, r.Body, drainBytes) // The answer is the same if this fails.
	}
	return nil, refusal
}

// readInShare reads a body that is not declared as too large, within its caller's share of
// the room for bodies. The error is a [*apierror.Error] if the caller's share is used up.
func (e *endpoints) readInShare(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit, size := e.config.MaxBodyBytes, max(r.ContentLength, 0)
	if r.ContentLength < 0 {
		size = limit
	}
	release, err := e.bodies.acquire(r.Context(), auth.CallerOf(r.Context()).Name(), size)
	if err != nil {
		return nil, err
	}
	requestStateOf(r.Context()).release = release
	buffer := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), readAhead)+bytes.MinRead))
	_, err = buffer.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	return buffer.Bytes(), err
}

// reserveForm takes room for the form that a request to the console sends. The console reads some
// forms before it knows the caller, so a host has a share instead.
func (s *Server) reserveForm(state *requestState, r *http.Request) (err error) {
	if r.Method != http.MethodPost {
		r.Body = http.NoBody // Only POST requests carry a form. FormValue would read the body of a PUT or PATCH without a limit.
		return nil
	}
	size := min(r.ContentLength, maxForm)
	if size < 0 {
		size = maxForm
	}
	r.Body = http.MaxBytesReader(state, r.Body, maxForm)
	state.release, err = s.forms.acquire(r.Context(), remoteHost(r), size)
	return err
}

// invalidPageToken is the message for a page token that no page has returned.
const invalidPageToken = "page_token is invalid"

// cursor is where a page of a list begins.
type cursor struct {
	after string // A position, which may hold any bytes; empty is the start of the list.
	list  string // A digest of the list's path and filters.
}

// cursorOf decodes the page token of a request, which must be of the same list. The list
// itself checks the position.
func cursorOf(u *url.URL, token string) (cursor, error) {
	filters := u.Query()
	filters.Del("limit")
	filters.Del("page_token")
	digest := sha256.Sum256([]byte(u.Path + "?" + filters.Encode()))
	start := cursor{list: string(digest[:6])}
	text, err := base64.RawURLEncoding.DecodeString(token)
	after, same := strings.CutPrefix(string(text), start.list)
	switch {
	case token == "":
		return start, nil
	case err != nil || len(token) > api.MaxPageToken ||
		base64.RawURLEncoding.EncodeToString(text) != token: // The decoder accepts line breaks and stray bits.
		return cursor{}, invalid("parameter "+invalidPageToken, err)
	case !same || after == "":
		const why = ", or of another list: only limit may differ from the request that gave it"
		return cursor{}, invalid("parameter "+invalidPageToken+why, nil)
	}
	start.after = after
	return start, nil
}

// token returns the page token of a position in the list, empty for its end.
func (c cursor) token(position string) string {
	if position == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(c.list + position))
}

// revToken returns the page token of a list that continues after a rev, empty for 0.
func (c cursor) revToken(rev int64) string {
	if rev == 0 {
		return ""
	}
	return c.token(strconv.FormatInt(rev, 10))
}

// rev returns the rev after which the page begins, 0 at the start.
func (c cursor) rev() (int64, error) {
	if c.after == "" {
		return 0, nil
	}
	rev, err := strconv.ParseInt(c.after, 10, 64)
	if err != nil || rev < 1 {
		return 0, invalid(invalidPageToken, err)
	}
	return rev, nil
}

// orZero returns a parameter's value, the zero value if it is absent.
func orZero[Value any](parameter *Value) (value Value) {
	if parameter != nil {
		value = *parameter
	}
	return value
}

// laneOf converts a lane; nil stays nil.
func laneOf(lane *int32) *int {
	if lane == nil {
		return nil
	}
	value := int(*lane)
	return &value
}

// seconds converts a number of seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
