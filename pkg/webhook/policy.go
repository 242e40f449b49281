package webhook

import (
	"fmt"
	"slices"
	"time"
)

// Policy says when a webhook is sent again, and when no more. It is pure: callers
// pass the time and the randomness.
type Policy struct {
	// Delays are the times from one attempt to the next; the first attempt is made
	// immediately, so n delays allow n+1 attempts. Optional: empty allows one.
	Delays []time.Duration
	// Jitter is the largest share, from 0 to 1, by which a delay is lengthened.
	// Optional. Defaults to 0.
	Jitter float64
}

// StandardPolicy is the schedule that Standard Webhooks gives as its example: ten
// attempts over three days.
//
// Source: Standard Webhooks 1.0, Deliverability and reliability.
func StandardPolicy() Policy {
	return Policy{
		Delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		Jitter: 0.1,
	}
}

// Validate names the first field that is out of range.
func (p Policy) Validate() error {
	for i, delay := range p.Delays {
		if delay < 0 {
			return fmt.Errorf("webhook: Delays[%d] must not be negative, is %s", i, delay)
		}
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		return fmt.Errorf("webhook: Jitter must be from 0 to 1, is %g", p.Jitter)
	}
	return nil
}

// Next says what follows from the result of an attempt: the state, and for
// StatePending when it is sent again. attempts counts this one; random is from
// [0, 1). The next attempt is not before the receiver's Retry-After, nor before the
// schedule's delay. Interrupted and Deferred leave it due now.
func (p Policy) Next(attempts int, result Result, now time.Time, random float64) (time.Time, State) {
	switch result.Outcome {
	case Delivered:
		return time.Time{}, StateDelivered
	case Gone:
		return time.Time{}, StateGone
	case Refused:
		return time.Time{}, StateRefused
	case Interrupted, Deferred:
		return roundUp(now), StatePending
	default:
		return p.again(attempts, result.After, now, random)
	}
}

// again returns the time of the next attempt, if there is one.
func (p Policy) again(attempts int, after time.Duration, now time.Time, random float64) (time.Time, State) {
	if attempts > len(p.Delays) {
		return time.Time{}, StateExhausted
	}
	delay := max(p.Delays[max(attempts, 1)-1], after)
	delay += time.Duration(float64(delay) * p.Jitter * random)
	return roundUp(now.Add(delay)), StatePending
}

// Apply returns the delivery after an attempt with this result. It does not count
// attempts that sent nothing or were interrupted; an interruption also keeps the
// previous result.
func (p Policy) Apply(d Delivery, result Result, now time.Time, random float64) Delivery {
	counts := []Outcome{Delivered, Gone, RetryAfter, Failed}
	if slices.Contains(counts, result.Outcome) {
		d.Attempts++
	}
	d.NextAttemptAt, d.State = p.Next(d.Attempts, result, now, random)
	if result.Outcome != Interrupted {
		d.LastStatus, d.LastError = result.Status, result.Reason
	}
	d.UpdatedAt = now.UTC()
	return d
}
