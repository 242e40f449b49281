package aztablestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/cenkalti/backoff/v4"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The delays between tries, unless the service asks for a longer one.
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// request is one request, which may take several tries.
type request struct {
	name       string         // For logs and metrics.
	key        tablestore.Key // Of a row, a partition or a table.
	repeatable bool           // Safe to send twice, as a read is.
}

// send calls try, each time with its own deadline, until the request
// succeeds, is refused, no tries are left, or the circuit holds it back for longer
// than patience. It returns the last failure; turnedAway says that the service
// answered an earlier try, so it has at least seen the request.
//
// A write is sent again only if it was certainly not applied: otherwise it could
// conflict with itself, or bring back rows that other writers have removed
// since.
func (s *Store) send(ctx context.Context, r request, try func(context.Context) error) (turnedAway bool, failed *requestError) {
	delays := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstDelay), backoff.WithMaxInterval(lastDelay), backoff.WithMaxElapsedTime(0))
	var heldSince time.Time
	for tries := 1; ; tries++ {
		failed = s.attempt(ctx, r, try)
		if failed == nil || failed.effect == refused || failed.effect == unclear && !r.repeatable ||
			errors.Is(failed, tablestore.ErrLapsed) {
			return turnedAway, failed
		}
		if tablestore.Patience(ctx, 0) > 0 && errors.Is(failed, context.DeadlineExceeded) {
			return turnedAway, failed // The caller is as patient as the service is slow: the next try would be as late.
		}
		held := errors.Is(failed, errHeld)
		if held {
			tries-- // It was not sent.
			heldSince = cmp.Or(heldSince, time.Now())
			if failed.wait > firstCoolDown || time.Since(heldSince) > patience {
				return turnedAway, failed
			}
		}
		if tries >= s.options.limits.tries || ctx.Err() != nil {
			return turnedAway, failed
		}
		delay := max(delays.NextBackOff(), failed.wait)
		if !held {
			s.options.Logger.WarnContext(ctx, "sending a table request again",
				slog.String("request", r.name), slog.String("target", r.key.String()), slog.Int("tries", tries),
				slog.Duration("delay", delay), slog.Any("error", fmt.Errorf("%w: %w", tablestore.ErrUnavailable, failed)))
		}
		if !pause(ctx, delay) {
			return turnedAway, failed
		}
		turnedAway = turnedAway || failed.status != 0
	}
}

// pause waits, and reports whether the context has time left afterwards. If the
// deadline comes before the end of the delay, it returns at once.
func pause(ctx context.Context, delay time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// try sends one request once.
func (s *Store) try(ctx context.Context, try func(ctx context.Context) error) *requestError {
	way := &delivery{}
	ctx, end := context.WithTimeout(context.WithValue(ctx, deliveryKey{}, way), tablestore.Patience(ctx, s.options.limits.request))
	defer end()
	err := try(ctx)
	if err == nil {
		return nil
	}
	if inner, ok := errors.AsType[*requestError](err); ok {
		return inner // From the body of a transaction's answer.
	}
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok {
		body, _ := runtime.Payload(answer.RawResponse) // Already read, so this cannot fail.
		f := answered(answer.StatusCode, answer.RawResponse.Header, body)
		if f.code == "" {
			f.code = answer.ErrorCode // Refused credentials are answered in XML.
		}
		if f.denied() {
			f.skew = s.Skew()
		}
		return f
	}
	// Its text contains the address, which may hold a signature.
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err
	}
	f := &requestError{effect: unclear, op: -1, cause: err}
	// No byte of the request can have been sent. If the transport reports no
	// trace, the request counts as possibly sent.
	if !way.reached.Load() || way.asked.Load() && !way.connected.Load() {
		f.effect = notTaken
	}
	return f
}

// delivery records how far one request got on its way to the service.
type delivery struct {
	reached   atomic.Bool // The transport was asked to send it.
	asked     atomic.Bool // The transport asked for a connection …
	connected atomic.Bool // … and got one.
}

// deliveryKey is the key under which a context holds the delivery.
type deliveryKey struct{}

// transport is the end of the SDK's pipeline. It traces the requests that reach
// it, so a credential's own requests do not count, and reads the account's clock.
type transport struct {
	client *http.Client
	clock  *clock
}

func (t transport) Do(req *http.Request) (*http.Response, error) {
	if err := tablestore.Guarded(req.Context()); err != nil {
		return nil, err
	}
	if way, ok := req.Context().Value(deliveryKey{}).(*delivery); ok {
		way.reached.Store(true)
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			GetConn: func(string) { way.asked.Store(true) },
			GotConn: func(httptrace.GotConnInfo) { way.connected.Store(true) },
		}))
	}
	sent := time.Now()
	reply, err := t.client.Do(req) //nolint:gosec // The address is the operator's, and redirects are not followed.
	if err == nil {
		t.clock.observe(sent, time.Now(), reply.Header)
	}
	return reply, err
}

// rowExists is the service's code for an insert of an existing row.
const rowExists = "EntityAlreadyExists"

// tooLarge are the service's codes for exceeded size limits.
var tooLarge = map[string]bool{
	"EntityTooLarge": true, "KeyValueTooLarge": true, "PropertyNameTooLong": true, "PropertyValueTooLarge": true,
	"RequestBodyTooLarge": true, "TooManyProperties": true,
}

// effect is what a failed request did to the store.
type effect uint8

const (
	// refused: the service answered, nothing was written, and a retry would get
	// the same answer.
	refused effect = iota + 1
	// notTaken: the request was never sent, or was throttled. Nothing was
	// written.
	notTaken
	// unclear: the request may have been applied, or may yet be.
	unclear
)

// requestError is the error of a failed request. It is for logs: its text comes
// from the service.
type requestError struct {
	effect effect
	// status, code and message are the service's answer, 0 and empty if there
	// was none.
	status  int
	code    string
	message string
	// inner says that the answer was about one op of a transaction.
	inner bool
	// op is the index of the op that failed, -1 if the answer does not say.
	op int
	// wait is the delay that the service asks for before a retry.
	wait time.Duration
	// skew is by how much the own clock was ahead of the account's, if access was denied.
	skew time.Duration
	// cause is the error if there was no answer.
	cause error
}

// Error implements error, in one line.
func (f *requestError) Error() string {
	if f.status == 0 {
		return f.cause.Error()
	}
	text := "HTTP " + strconv.Itoa(f.status)
	if f.code != "" {
		text += " " + f.code
	}
	if f.message != "" {
		text += ": " + f.message
	}
	if f.skew.Abs() > mostSkew {
		text += fmt.Sprintf(" (this host's clock differs from the account's by %s)", f.skew.Abs())
	}
	return text
}

// mostSkew is how far a signed request's time may be from the account's clock.
const mostSkew = 15 * time.Minute

// Unwrap returns the cause, so that errors.Is finds the context's error.
func (f *requestError) Unwrap() error { return f.cause }

// answered converts a complete answer to a failure.
func answered(status int, header http.Header, body []byte) *requestError {
	f := &requestError{status: status, wait: retryAfter(header)}
	f.code, f.message, f.op = complaint(body)
	if code := header.Get("x-ms-error-code"); code != "" {
		f.code = code
	}
	switch {
	case status == http.StatusTooManyRequests, f.code == tableVanishes,
		status == http.StatusServiceUnavailable && (f.code == "ServerBusy" || f.wait > 0):
		f.effect = notTaken
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout:
		f.effect = refused
	default:
		f.effect = unclear
	}
	return f
}

// retryAfter returns the delay that the answer asks for, 0 if it does not.
func retryAfter(header http.Header) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// conflict reports whether the service found that a precondition did not hold.
func (f *requestError) conflict() bool {
	return f.effect == refused && (f.status == http.StatusPreconditionFailed || f.code == rowExists || f.missing())
}

// missing reports whether a transaction failed because a row is absent.
func (f *requestError) missing() bool { return f.inner && f.noRow() }

// noRow reports whether the answer says that the row is absent; a 404 may also
// come from a missing table or account, or from a proxy.
func (f *requestError) noRow() bool {
	return f.status == http.StatusNotFound && (f.code == "ResourceNotFound" || f.code == "EntityNotFound")
}

// ofRead returns the port's error for a read, or for an idempotent write.
func (f *requestError) ofRead() error {
	if f.effect == refused && !f.external() {
		return f.ofRequest()
	}
	return f.unavailable()
}

// ofWrite returns the port's error for a transaction that failed without a
// conflict.
func (f *requestError) ofWrite() error {
	switch {
	case f.effect == unclear:
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, f)
	case f.effect == notTaken || f.external():
		return f.unavailable()
	default:
		return f.ofRequest()
	}
}

// unavailable returns the port's error for a request that wrote nothing.
func (f *requestError) unavailable() error {
	if f.denied() {
		return fmt.Errorf("%w: %w: %w", tablestore.ErrUnavailable, tablestore.ErrDenied, f)
	}
	return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, f)
}

// external reports whether the request was refused because of its environment:
// access was denied, or the account or the table is missing.
func (f *requestError) external() bool { return f.denied() || f.status == http.StatusNotFound }

// denied reports whether the account denied access: a role or a signature lacks a right, a
// key is wrong, a signature or the account's network rules exclude this host, or a signed
// request's time is too far from the account's. The service checks this before it does
// anything else.
func (f *requestError) denied() bool {
	return f.status == http.StatusUnauthorized || f.status == http.StatusForbidden
}

// ofRequest returns the port's error for a request that can never succeed.
func (f *requestError) ofRequest() error {
	if f.status == http.StatusRequestEntityTooLarge || tooLarge[f.code] {
		return fmt.Errorf("%w: %w", tablestore.ErrTooLarge, f)
	}
	return fmt.Errorf("%w: %w", tablestore.ErrInvalid, f)
}
