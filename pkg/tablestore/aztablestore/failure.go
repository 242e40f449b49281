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

// rowExists is the service's code for an insert of a row that is there.
const rowExists = "EntityAlreadyExists"

// tooLarge are the service's codes for what is over a limit of its own.
var tooLarge = map[string]bool{
	"EntityTooLarge": true, "KeyValueTooLarge": true, "PropertyNameTooLong": true, "PropertyValueTooLarge": true,
	"RequestBodyTooLarge": true, "TooManyProperties": true,
}

// effect is what a failed request did to the store.
type effect uint8

const (
	// refused: it was answered, nothing was written, and the answer would be
	// the same again.
	refused effect = iota + 1
	// notTaken: it never left, or was turned away for a while. Nothing was
	// written.
	notTaken
	// unclear: it may have been applied, or may yet be.
	unclear
)

// requestError is why a request did not succeed. It is an error for logs: what it
// says is the service's.
type requestError struct {
	effect effect
	// status, code and message are the service's answer, 0 and empty where
	// there was none.
	status  int
	code    string
	message string
	// inner says that the answer was about one op of a transaction.
	inner bool
	// op is the place of the transaction's op that failed, -1 where the answer
	// does not say.
	op int
	// wait is how long the service asks to be left alone.
	wait time.Duration
	// cause is the error instead of an answer.
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

// Unwrap returns the cause, so that the end of a context can be recognised.
func (f *requestError) Unwrap() error { return f.cause }

// failureOf returns what the SDK's error says of a request that went that way.
func failureOf(err error, way *delivery) *requestError {
	if inner, ok := errors.AsType[*requestError](err); ok {
		return inner // From the body of a transaction's answer.
	}
	answer, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		// Its text has the address, which may hold a signature.
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err
		}
		f := &requestError{effect: unclear, op: -1, cause: err}
		if way.surelyNot() {
			f.effect = notTaken
		}
		return f
	}
	body, _ := runtime.Payload(answer.RawResponse) // Read before, or there would be no such error.
	return answered(answer.StatusCode, answer.RawResponse.Header, body)
}

// answered returns the failure that a whole answer stands for.
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

// retryAfter returns how long the answer asks to wait, 0 where it does not.
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

// missing reports whether a transaction found no row where it needed one.
func (f *requestError) missing() bool { return f.inner && f.noRow() }

// noRow reports whether the answer says that the row is not there; a table, an
// account or a proxy's page may be missing as well.
func (f *requestError) noRow() bool {
	return f.status == http.StatusNotFound && (f.code == "ResourceNotFound" || f.code == "EntityNotFound")
}

// ofRead returns the port's error for a read, or for a write that may be
// repeated at will.
func (f *requestError) ofRead() error {
	if f.effect == refused && !f.external() {
		return f.ofRequest()
	}
	return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, f)
}

// ofWrite returns the port's error for a transaction that failed other than by
// a conflict.
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

// external reports whether the request was refused for no fault of its own:
// the credentials are wrong, or the account or table is not there.
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
