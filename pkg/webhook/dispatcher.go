package webhook

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Dispatcher makes attempts. It is safe for concurrent use.
type Dispatcher struct {
	// Send makes one attempt, as [Sender.Send] does. Required.
	Send func(ctx context.Context, message Message) Result
	// Gate isolates receivers from each other. Required.
	Gate *Gate
	// Policy says when to try again. Optional. Its zero value never retries; see
	// [StandardPolicy].
	Policy Policy
	// Random returns numbers in [0, 1), for the jitter. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Validate names the first field that is missing or invalid.
func (d *Dispatcher) Validate() error {
	switch {
	case d.Send == nil:
		return errors.New("webhook: Send is required")
	case d.Gate == nil:
		return errors.New("webhook: Gate is required")
	}
	return d.Policy.Validate()
}

// Attempt makes one attempt, unless the receiver's host is busy or in trouble. It
// returns the delivery to store, and the result of the attempt.
func (d *Dispatcher) Attempt(ctx context.Context, delivery Delivery) (Delivery, Result) {
	now := time.Now()
	pass, turn := d.Gate.Enter(hostOf(delivery.URL), now)
	if pass == nil {
		return delivery.deferred(turn, now), Result{Outcome: Deferred, Reason: "the receiver's host is busy or in trouble"}
	}
	result := d.Send(ctx, delivery.message())
	now = time.Now()
	pass.Leave(result, now)
	random := d.Random
	if random == nil {
		random = rand.Float64
	}
	return d.Policy.Apply(delivery, result, now, random()), result
}
