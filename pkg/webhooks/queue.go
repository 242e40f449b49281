package webhooks

import (
	"context"
	"time"
)

// Queue is where due deliveries come from.
type Queue interface {
	// Take claims deliveries that are due, limit at most and oldest first, each for
	// one attempt: until hold has passed nobody else is given it, and then, if it
	// was not settled, somebody is. It returns what it could claim beside an error.
	Take(ctx context.Context, limit int, hold time.Duration) ([]Claim, error)
}

// Claim is a delivery that is ours for one attempt.
type Claim interface {
	// Delivery returns the delivery as it was claimed.
	Delivery() Delivery
	// Settle writes the delivery as it is to be. It reports false where the claim
	// was lost meanwhile, and nothing was written.
	Settle(ctx context.Context, next Delivery) (bool, error)
}
