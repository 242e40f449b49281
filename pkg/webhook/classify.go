package webhook

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// answer returns the result of an answer.
//
// Source: Standard Webhooks 1.0, Delivery success and failure.
func (s *Sender) answer(response *http.Response, now time.Time) Result {
	status := response.StatusCode
	result := Result{Outcome: Failed, Status: status, Reason: fmt.Sprintf("the receiver answered %d", status)}
	switch {
	case status >= 200 && status <= 299:
		return Result{Outcome: Delivered, Status: status}
	case status == http.StatusGone:
		result.Outcome = Gone
	case status >= 300 && status <= 399:
		result.Reason += "; redirects are not followed"
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		result.HostFault = true
		if after, ok := parseRetryAfter(response.Header.Get("Retry-After"), now); ok {
			result.Outcome, result.After = RetryAfter, min(after, s.cfg.MaxRetryAfter)
		}
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		result.HostFault = true
	}
	return result
}

// failure returns the result of an attempt without an answer. Its reasons never quote
// the error, because network errors contain addresses.
func failure(err error) Result {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return Result{Outcome: Refused, Reason: refused.Error()}
	}
	return Result{Outcome: Failed, Reason: reason(err), HostFault: true}
}

func reason(err error) string {
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		if lookup.IsNotFound {
			return "the receiver's host name does not exist"
		}
		return "the receiver's host name could not be looked up"
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		return "the receiver did not answer in time"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the receiver's certificate is not valid"
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return "the receiver speaks no acceptable TLS"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the receiver speaks no acceptable TLS"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return "the receiver could not be connected to"
	}
	return "the connection broke before there was an answer"
}
