package webhooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// RunnerConfig is what a [Runner] is made of.
type RunnerConfig struct {
	// Queue has the deliveries. Required.
	Queue Queue
	// Send makes one attempt, as [Sender.Send] does. Required. It is called by
	// Workers goroutines.
	Send func(ctx context.Context, message Message) Result
	// Gate keeps receivers apart. Required.
	Gate *Gate
	// Policy says when to try again. Optional. Its zero value never does; see
	// [StandardPolicy].
	Policy Policy
	// Workers is how many attempts are under way at once. Optional. Defaults
	// to 64.
	Workers int
	// Interval is the time between two passes while there is nothing to do.
	// Optional. Defaults to 1 s.
	Interval time.Duration
	// Hold is for how long a delivery is claimed; it must be longer than the
	// sender's timeout. Optional. Defaults to 1 min.
	Hold time.Duration
	// Random returns numbers in [0, 1), for the jitter. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Logger is told of deliveries that could not be settled. Optional.
	Logger *slog.Logger
	// Observe is told of each attempt, from the workers' goroutines. Optional.
	Observe func(Result)
}

// Validate returns an error that names the field which makes no sense.
func (c *RunnerConfig) Validate() error {
	switch {
	case c.Queue == nil:
		return errors.New("webhooks: Queue is required")
	case c.Send == nil:
		return errors.New("webhooks: Send is required")
	case c.Gate == nil:
		return errors.New("webhooks: Gate is required")
	case c.Workers < 0 || c.Interval < 0 || c.Hold < 0:
		return fmt.Errorf("webhooks: Workers, Interval and Hold must not be negative, are %d, %s and %s", c.Workers, c.Interval, c.Hold)
	}
	return c.Policy.Validate()
}

func (c *RunnerConfig) withDefaults() RunnerConfig {
	full := *c
	full.Workers = cmp.Or(c.Workers, 64)
	full.Interval = cmp.Or(c.Interval, time.Second)
	full.Hold = cmp.Or(c.Hold, time.Minute)
	if c.Random == nil {
		full.Random = rand.Float64
	}
	if c.Logger == nil {
		full.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		full.Observe = func(Result) {}
	}
	return full
}
