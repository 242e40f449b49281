package aztablestore

import (
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

// Lowest converts any bound of a scan to a legal key.
var Lowest = lowest

// DecodeRow decodes an entity.
var DecodeRow = decodeRow

// Alphabet holds the legal characters of keys.
const Alphabet = alphabet

// The limits of a call, unless a test sets others.
var (
	RequestTimeout = defaultLimits.request
	CallTimeout    = defaultLimits.call
)

// WithTries returns the options with that many tries.
func WithTries(options Options, tries int) Options {
	return WithLimits(options, RequestTimeout, CallTimeout, tries)
}

// WithLimits returns the options with these limits of a request and of a call.
func WithLimits(options Options, request, call time.Duration, tries int) Options {
	options.limits = limits{request: request, call: call, tries: tries}
	return options
}

// WithCredential returns the options with that credential for Endpoint.
func WithCredential(options Options, credential azcore.TokenCredential) Options {
	options.credential = credential
	return options
}

// ObserveDate tells the store's clock of an answer with that date.
func (s *Store) ObserveDate(sent, received, date time.Time) {
	s.clock.observe(sent, received, http.Header{
		"Date": {date.UTC().Format(http.TimeFormat)}, "X-Ms-Request-Id": {"id"},
	})
}
