package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	userAgent = "Lucius-Webhooks/1.0"
	// maxRetryAfter bounds the Retry-After that is obeyed.
	maxRetryAfter   = 24 * time.Hour
	maxAnswerHeader = 16 << 10
	// maxAnswerBody is how much of a response is read so that the connection can be
	// reused; a longer response costs its connection.
	maxAnswerBody = 4 << 10
	// maxAnswerWait bounds the time for that. Without it, a receiver that sends its body
	// slowly would hold a worker until the attempt's timeout.
	maxAnswerWait = time.Second
)

// Config configures a [Sender].
type Config struct {
	// Guard decides where webhooks may be sent. Required.
	Guard *Guard
	// Secrets returns the secrets that sign a tenant's webhooks, at least one; see
	// [TenantSecrets]. Required. It must be safe for concurrent use and must not block.
	Secrets func(tenantID string) []Secret
	// Timeout bounds one attempt, from the lookup of the name to the end of the response.
	// Optional. Defaults to 15 s.
	Timeout time.Duration
	// RootCAs are the authorities of receivers' certificates. Optional.
	// Defaults to the system's.
	RootCAs *x509.CertPool
	// Resolver looks up names. Optional. Defaults to the system's.
	Resolver *net.Resolver
}

// Sender sends webhooks. It is safe for concurrent use. Close it after use.
type Sender struct {
	cfg       Config
	transport *http.Transport
}

// NewSender returns a sender.
func NewSender(cfg Config) *Sender {
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	// HTTP/1.1 only: concurrent attempts do not share a connection, and every receiver
	// speaks it.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	// A bare transport, unlike an http.Client, follows no redirects and keeps no cookies.
	return &Sender{cfg: cfg, transport: &http.Transport{
		Proxy:                  nil, // A proxy would hide the receiver's address from the guard.
		DialContext:            cfg.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:    cfg.Timeout,
		ResponseHeaderTimeout:  cfg.Timeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // The body of the response is not used.
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    2, // enough for a receiver that gets a webhook now and then
		IdleConnTimeout:        30 * time.Second,
		Protocols:              protocols,
	}}
}

// dial connects to an address that the guard allows. The error is a [*RefusedError] only if the guard
// allowed none: the dialer returns the first error, which may be the refusal of one address while
// another, allowed one is down for a moment.
func (c *Config) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var allowed atomic.Bool // The dialer may try IPv4 and IPv6 concurrently.
	dialer := net.Dialer{
		Timeout: min(c.Timeout, 10*time.Second), Resolver: c.Resolver,
		ControlContext: func(ctx context.Context, network, address string, conn syscall.RawConn) error {
			err := c.Guard.control(ctx, network, address, conn)
			if err == nil {
				allowed.Store(true)
			}
			return err
		},
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if _, refused := errors.AsType[*RefusedError](err); refused && allowed.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("no allowed address answered")}
	}
	return conn, err
}

// Close closes the idle connections.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

// Message is a webhook as it is sent.
type Message struct {
	// ID is the same for all attempts. Clients must not be able to choose it. Required.
	ID string
	// TenantID is the tenant whose secrets sign the webhook. Required.
	TenantID string
	// URL is the destination. Required.
	URL string
	// Body is sent unchanged, as application/json.
	Body []byte
	// Traceparent is the header of W3C Trace Context. Optional.
	Traceparent string
}

// Outcome is the outcome of one attempt to send a webhook.
type Outcome string

// The outcomes.
const (
	// Delivered means that the receiver answered 2xx.
	Delivered Outcome = "delivered"
	// Gone means that the receiver answered 410: it no longer wants this webhook.
	Gone Outcome = "gone"
	// RetryAfter means that the receiver answered 429 or 503 with a Retry-After.
	RetryAfter Outcome = "retry_after"
	// Failed means any other response, or none.
	Failed Outcome = "failed"
	// Refused means that nothing was sent, because the URL or its address is not allowed.
	Refused Outcome = "refused"
	// Interrupted means that the context ended before there was a response. The receiver
	// may have the webhook; the attempt does not count.
	Interrupted Outcome = "interrupted"
	// Deferred means that nothing was sent, because the receiver's host is busy or failing,
	// or other tenants need the workers. The attempt does not count. Only a [Gate] returns
	// it.
	Deferred Outcome = "deferred"
)

// Result is the outcome of one attempt with its details. Results may be compared
// with ==.
type Result struct {
	Outcome Outcome
	// Status is the HTTP status of the response, 0 without one.
	Status int
	// After is the receiver's Retry-After, for RetryAfter, and the time until the turn,
	// for Deferred.
	After time.Duration
	// Reason says in a few words why the webhook was not delivered. It is safe to show: it
	// contains no address, and only the status of the response.
	Reason string
	// HostFault says that the failure concerns the receiver's whole host, which does not
	// answer or is overloaded, rather than the URL alone. It also says that an attempt was deferred for that.
	HostFault bool
}

// Send makes one attempt and returns its result, within the configured time. It sends
// nothing if the guard refuses. Each attempt has a new timestamp and signature.
func (s *Sender) Send(ctx context.Context, message Message) Result {
	if err := s.cfg.Guard.CheckURL(message.URL); err != nil {
		return noAnswer(err)
	}
	secrets := s.cfg.Secrets(message.TenantID)
	if len(secrets) == 0 {
		return Result{Outcome: Failed, Reason: "the tenant has no secret for signing"}
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(bounded, http.MethodPost, message.URL, bytes.NewReader(message.Body))
	if err != nil {
		return Result{Outcome: Refused, Reason: "callback URL is invalid"}
	}
	now := time.Now()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("webhook-id", message.ID)
	request.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	request.Header.Set("webhook-signature", Sign(message.ID, now, message.Body, secrets...))
	if message.Traceparent != "" {
		request.Header.Set("traceparent", message.Traceparent)
	}
	// A webhook is idempotent by its id. This entry, which is not sent, says so to the
	// transport, which then retries on a new connection if the receiver has closed an
	// idle one.
	request.Header["Idempotency-Key"] = nil
	response, err := s.transport.RoundTrip(request)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Result{Outcome: Interrupted, Reason: "interrupted before the receiver answered"}
	default:
		return noAnswer(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusOK {
		// The status alone decides the result, even if the body is broken.
		defer time.AfterFunc(maxAnswerWait, cancel).Stop()
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswerBody)
	}
	return answered(response.StatusCode, response.Header.Get("Retry-After"))
}

// answered returns the result of an attempt that the receiver answered.
//
// Source: Standard Webhooks 1.0, Delivery success and failure.
func answered(status int, retryAfter string) Result {
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
		if after, ok := parseRetryAfter(retryAfter, time.Now()); ok {
			result.Outcome, result.After = RetryAfter, min(after, maxRetryAfter)
		}
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		result.HostFault = true
	}
	return result
}

// parseRetryAfter parses a Retry-After header, which holds seconds or an HTTP date. A date
// in the past gives 0, and a number that is too large the longest duration. It reports false
// for anything else.
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > math.MaxInt64/int64(time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}

// noAnswer returns the result of an attempt without a response. Its reasons never quote
// the error, because network errors contain addresses.
func noAnswer(err error) Result {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return Result{Outcome: Refused, Reason: refused.Error()}
	}
	result := Result{Outcome: Failed, HostFault: true, Reason: "the connection broke before the receiver answered"}
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	network, isNetwork := errors.AsType[net.Error](err)
	op, isOp := errors.AsType[*net.OpError](err)
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, isAlert := errors.AsType[tls.AlertError](err)
	_, isRecord := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isLookup && lookup.IsNotFound:
		result.Reason = "the receiver's host name does not exist"
	case isLookup:
		result.Reason = "the receiver's host name could not be looked up"
	case isNetwork && network.Timeout():
		result.Reason = "the receiver did not answer in time"
	case isCertificate:
		result.Reason = "the receiver's certificate is not valid"
	case isAlert || isRecord:
		result.Reason = "the TLS handshake with the receiver failed"
	case isOp && op.Op == "dial":
		result.Reason = "the connection to the receiver failed"
	}
	return result
}
