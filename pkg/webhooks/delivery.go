package webhooks

import "time"

// State is the state of a delivery. All but Pending are final until somebody
// replays it.
type State string

// The states.
const (
	StatePending   State = "PENDING"   // there is an attempt to come
	StateDelivered State = "DELIVERED" // the receiver took it
	StateExhausted State = "EXHAUSTED" // every attempt failed
	StateGone      State = "GONE"      // the receiver wants no more
	StateRefused   State = "REFUSED"   // its URL or address is not allowed
)

// Delivery is one webhook on its way to one URL: what a store keeps of it. It is a
// value; how it becomes a row is the store's business.
type Delivery struct {
	// ID is the webhook-id, the same for each attempt, and not made by a client.
	ID       string
	JobID    string
	TenantID string
	URL      string
	// Body are the bytes of the event. They follow from the job, so a store may
	// make them anew with [End.Body] instead of keeping them.
	Body  []byte
	State State
	// Attempts counts how often it was sent, since it was replayed last.
	Attempts int
	// NextAttemptAt is when it is due, while pending.
	NextAttemptAt time.Time
	// LastStatus is the HTTP status of the last attempt, 0 for none.
	LastStatus int
	// LastError is why the last attempt did not deliver it, safe to show.
	LastError string
	CreatedAt time.Time
	UpdatedAt time.Time
}

// message is what a sender needs of it.
func (d Delivery) message() Message {
	return Message{ID: d.ID, TenantID: d.TenantID, URL: d.URL, Body: d.Body}
}

// deferred is the delivery with its attempt put off.
func (d Delivery) deferred(to, now time.Time) Delivery {
	d.NextAttemptAt, d.UpdatedAt = roundUp(to), now.UTC()
	return d
}

// roundUp is the time in whole milliseconds, as stores and schedules keep it, and
// never early.
func roundUp(t time.Time) time.Time {
	return t.UTC().Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}
