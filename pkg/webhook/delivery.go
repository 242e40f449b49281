package webhook

import "time"

// State is the state of a delivery. All but Pending are final, until an operator
// replays the delivery.
type State string

// The states.
const (
	StatePending   State = "PENDING"   // another attempt will be made
	StateDelivered State = "DELIVERED" // the receiver took it
	StateExhausted State = "EXHAUSTED" // every attempt failed
	StateGone      State = "GONE"      // the receiver wants no more
	StateRefused   State = "REFUSED"   // its URL or address is not allowed
)

// Delivery is the stored state of one webhook to one URL. It is a value; the store
// turns it into a row.
type Delivery struct {
	// ID is the webhook-id, the same for each attempt, and not chosen by a client.
	ID       string
	JobID    string
	TenantID string
	URL      string
	// Body is the event's bytes. They follow from the job, so a store may rebuild
	// them with [End.Body] instead of keeping them.
	Body  []byte
	State State
	// Attempts counts how often it was sent since the last replay.
	Attempts int
	// NextAttemptAt is when it is due, while pending.
	NextAttemptAt time.Time
	// LastStatus is the HTTP status of the last attempt, 0 if there was no answer.
	LastStatus int
	// LastError says why the last attempt failed; it is safe to show.
	LastError string
	CreatedAt time.Time
	UpdatedAt time.Time
}

// message returns the message for the sender.
func (d Delivery) message() Message {
	return Message{ID: d.ID, TenantID: d.TenantID, URL: d.URL, Body: d.Body}
}

// deferred returns the delivery with its attempt deferred.
func (d Delivery) deferred(to, now time.Time) Delivery {
	d.NextAttemptAt, d.UpdatedAt = roundUp(to), now.UTC()
	return d
}

// roundUp rounds the time up to milliseconds, as stores and schedules keep it, so
// that it is never early.
func roundUp(t time.Time) time.Time {
	return t.UTC().Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}
