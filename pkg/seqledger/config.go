package seqledger

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// DefaultWindow is the default of Config.Window.
const DefaultWindow = 4096

// Config configures a ledger.
type Config struct {
	// LeaseDuration is how long a lease lives after its last heartbeat.
	// Required.
	//
	// Source: Stage1 seq ledger spec, Lease Ownership, leaseExpiresMs.
	LeaseDuration time.Duration

	// Window is how many seqs may be open at a time: taken up and not yet
	// COMMITTED. Optional. Defaults to DefaultWindow.
	Window int

	// Retry is the retry guard. Optional. Defaults to no retries.
	Retry Policy

	// Fatal is called with the illegal transition that halts the ledger, at
	// most once, by the goroutine that tried it and without any lock held. In
	// production it logs the facts and exits the process with a non-zero code.
	// Required.
	Fatal func(*IllegalTransitionError)
}

// Validate returns an error that names the field that is missing or out of
// range.
func (c Config) Validate() error {
	if c.LeaseDuration <= 0 {
		return fmt.Errorf("LeaseDuration must be positive, is %s", c.LeaseDuration)
	}
	if c.Window < 0 {
		return fmt.Errorf("Window must not be negative, is %d", c.Window)
	}
	if c.Retry.MaxAttempts < 0 {
		return fmt.Errorf("Retry.MaxAttempts must not be negative, is %d", c.Retry.MaxAttempts)
	}
	if c.Fatal == nil {
		return errors.New("Fatal is required")
	}
	return nil
}

// Class is the kind of a failure, as the retry guard sees it.
type Class string

// LeaseExpired is the class of an attempt that ended because its lease was
// reclaimed.
const LeaseExpired Class = "lease_expired"

// Policy is the retry guard. It is data, so that the same inputs always give
// the same decision.
//
// Source: Stage1 seq ledger spec, Retry Guard.
type Policy struct {
	// MaxAttempts is the greatest number of attempts of a seq, including the
	// first. Optional. Defaults to 1: no retry.
	MaxAttempts int

	// Retryable lists the classes that may be retried. Optional. Defaults to
	// none.
	Retryable []Class
}

// Allows reports whether a seq may be retried after that many attempts, the
// last of which failed with that class.
func (p Policy) Allows(class Class, attempts int) bool {
	return attempts < p.MaxAttempts && slices.Contains(p.Retryable, class)
}
