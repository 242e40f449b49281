package webhooks

import "time"

// Outcome is what became of one attempt to send a webhook.
type Outcome string

// The outcomes.
const (
	// Delivered: the receiver answered 2xx.
	Delivered Outcome = "delivered"
	// Gone: the receiver answered 410 and is to get this webhook no more.
	Gone Outcome = "gone"
	// RetryAfter: the receiver answered 429 or 503, and when to come again.
	RetryAfter Outcome = "retry_after"
	// Failed: any other answer, or none.
	Failed Outcome = "failed"
	// Refused: nothing was sent, for the URL or its address is not allowed.
	Refused Outcome = "refused"
	// Interrupted: the context ended before there was an answer. The receiver may
	// have the webhook; the attempt does not count.
	Interrupted Outcome = "interrupted"
	// Deferred: nothing was sent, for the receiver's host is busy or in trouble.
	// The attempt does not count. A [Runner] says so, a [Sender] never.
	Deferred Outcome = "deferred"
)

// Result is the outcome of one attempt and what goes with it. Results may be
// compared with ==.
type Result struct {
	Outcome Outcome
	// Status is the HTTP status of the answer, 0 without one.
	Status int
	// After is how long the receiver wants to be left alone, for RetryAfter.
	After time.Duration
	// Reason says in a few words why it was not delivered. It is safe to show: it
	// has nothing of the answer but its status, and no address.
	Reason string
	// HostFault says that the failure speaks against the receiver's whole host,
	// which does not answer or is overloaded, and not against the one URL.
	HostFault bool
}
