package webhook

import "time"

// Outcome is the outcome of one attempt to send a webhook.
type Outcome string

// The outcomes.
const (
	// Delivered: the receiver answered 2xx.
	Delivered Outcome = "delivered"
	// Gone: the receiver answered 410 and wants this webhook no more.
	Gone Outcome = "gone"
	// RetryAfter: the receiver answered 429 or 503 with a Retry-After.
	RetryAfter Outcome = "retry_after"
	// Failed: any other answer, or none.
	Failed Outcome = "failed"
	// Refused: nothing was sent, because the URL or its address is not allowed.
	Refused Outcome = "refused"
	// Interrupted: the context ended before there was an answer. The receiver may
	// have the webhook; the attempt does not count.
	Interrupted Outcome = "interrupted"
	// Deferred: nothing was sent, because the receiver's host is busy or in trouble.
	// The attempt does not count. Only a [Dispatcher] returns it.
	Deferred Outcome = "deferred"
)

// Result is the outcome of one attempt with its details. Results may be compared
// with ==.
type Result struct {
	Outcome Outcome
	// Status is the HTTP status of the answer, 0 without one.
	Status int
	// After is the receiver's Retry-After, for RetryAfter.
	After time.Duration
	// Reason says in a few words why it was not delivered. It is safe to show: of the
	// answer it has only the status, and it has no address.
	Reason string
	// HostFault says that the failure concerns the receiver's whole host, which does
	// not answer or is overloaded, and not only the URL.
	HostFault bool
}
