package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/api"
)

// Config configures a [Worker].
type Config struct {
	// Client calls the server. Its transport must not have a timeout shorter than a
	// long poll of ClaimWait. Required.
	Client *api.ClientWithResponses
	// Owner is the worker's name, unique among the running workers. Required.
	Owner string
	// Services are the services whose steps the worker does. Required.
	Services []string
	// Handle does the work of one directive and returns the reference of its
	// result, a JSON object, or nil for none. It is called from many goroutines.
	// Its context ends with [ErrCancelled], [ErrLeaseLost] or [ErrStopped] as its
	// cause; it should return soon then. Required.
	Handle func(ctx context.Context, directive api.Directive) (json.RawMessage, error)
	// Permanent reports whether no other attempt can succeed after this error.
	// Optional. Defaults to never.
	Permanent func(error) bool
	// Parallel limits the directives in hand at once, up to 100. Optional. Defaults
	// to 4.
	Parallel int
	// ClaimWait is how long a claim waits for work, up to 60s. Optional. Defaults
	// to 20s.
	ClaimWait time.Duration
	// Grace is how long directives in hand may still take after a stop. Optional.
	// Defaults to 10s.
	Grace time.Duration
	// Log receives failures. Optional.
	Log *slog.Logger
}

// Validate returns an error that names the first invalid field.
func (c *Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.New("Client is required")
	case c.Owner == "":
		return errors.New("Owner is required")
	case len(c.Services) == 0:
		return errors.New("Services is required")
	case c.Handle == nil:
		return errors.New("Handle is required")
	case c.Parallel < 0 || c.Parallel > api.MaxClaim:
		return fmt.Errorf("Parallel is %d, it must be from 1 to %d", c.Parallel, api.MaxClaim)
	case c.ClaimWait < 0 || c.ClaimWait > time.Minute:
		return fmt.Errorf("ClaimWait is %s, it must be at most a minute", c.ClaimWait)
	case c.Grace < 0:
		return fmt.Errorf("Grace is %s, it must not be negative", c.Grace)
	}
	return nil
}

// setDefaults fills in the defaults.
func (c *Config) setDefaults() {
	if c.Permanent == nil {
		c.Permanent = func(error) bool { return false }
	}
	if c.Parallel == 0 {
		c.Parallel = 4
	}
	if c.ClaimWait == 0 {
		c.ClaimWait = 20 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}
