package aztablestore

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
	return text
}

// Unwrap returns the cause, so that errors.Is finds the context's error.
func (f *requestError) Unwrap() error { return f.cause }

// failureOf converts the SDK's error for a request with that delivery.
func failureOf(err error, way *delivery) *requestError {
	if inner, ok := errors.AsType[*requestError](err); ok {
		return inner // From the body of a transaction's answer.
	}
	answer, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		// Its text contains the address, which may hold a signature.
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err
		}
		f := &requestError{effect: unclear, op: -1, cause: err}
		if way.surelyNot() {
			f.effect = notTaken
		}
		return f
	}
	body, _ := runtime.Payload(answer.RawResponse) // Already read, so this cannot fail.
	return answered(answer.StatusCode, answer.RawResponse.Header, body)
}

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
	return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, f)
}

// ofWrite returns the port's error for a transaction that failed without a
// conflict.
func (f *requestError) ofWrite() error {
	switch {
	case f.effect == unclear:
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, f)
	case f.effect == notTaken || f.external():
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, f)
	default:
		return f.ofRequest()
	}
}

// external reports whether the request was refused because of its environment:
// wrong credentials, or a missing account or table.
func (f *requestError) external() bool {
	return f.status == http.StatusUnauthorized || f.status == http.StatusForbidden || f.status == http.StatusNotFound
}

// ofRequest returns the port's error for a request that can never succeed.
func (f *requestError) ofRequest() error {
	if f.status == http.StatusRequestEntityTooLarge || tooLarge[f.code] {
		return fmt.Errorf("%w: %w", tablestore.ErrTooLarge, f)
	}
	return fmt.Errorf("%w: %w", tablestore.ErrInvalid, f)
}
