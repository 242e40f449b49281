package webhook

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Config configures a [Sender].
type Config struct {
	// Guard decides where webhooks may go. Required.
	Guard *Guard
	// Secrets returns the secrets with which a tenant's webhooks are signed, at
	// least one; see [TenantSecrets]. Required. It must be safe for concurrent use
	// and must not block.
	Secrets func(tenantID string) []Secret
	// Timeout is how long one attempt may take, from the look-up of the name to
	// the end of the answer. Optional. Defaults to 15 s.
	Timeout time.Duration
	// MaxRetryAfter is the longest Retry-After of a receiver that is obeyed.
	// Optional. Defaults to 24 h.
	MaxRetryAfter time.Duration
	// MaxConnsPerHost is the most connections to one host; further attempts wait
	// within Timeout. It should not be less than the Gate's PerHost.
	// Optional. Defaults to 16.
	MaxConnsPerHost int
	// MaxIdleConns is the most idle connections that are kept. Optional. Defaults
	// to 64.
	MaxIdleConns int
	// UserAgent is the header of that name. Optional. Defaults to
	// Lucius-Webhooks/1.0.
	UserAgent string
	// RootCAs are the authorities of receivers' certificates. Optional.
	// Defaults to the system's.
	RootCAs *x509.CertPool
	// Resolver looks up names. Optional. Defaults to the system's.
	Resolver *net.Resolver
}

// Validate names the first field that is missing or invalid.
func (c *Config) Validate() error {
	if c.Guard == nil {
		return errors.New("webhook: Guard is required")
	}
	if c.Secrets == nil {
		return errors.New("webhook: Secrets is required")
	}
	switch {
	case c.Timeout < 0 || c.MaxRetryAfter < 0:
		return fmt.Errorf("webhook: Timeout and MaxRetryAfter must not be negative, are %s and %s", c.Timeout, c.MaxRetryAfter)
	case c.MaxConnsPerHost < 0 || c.MaxIdleConns < 0:
		return fmt.Errorf("webhook: MaxConnsPerHost and MaxIdleConns must not be negative, are %d and %d",
			c.MaxConnsPerHost, c.MaxIdleConns)
	}
	return nil
}

func (c *Config) withDefaults() Config {
	full := *c
	full.Timeout = cmp.Or(c.Timeout, 15*time.Second)
	full.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, 24*time.Hour)
	full.MaxConnsPerHost = cmp.Or(c.MaxConnsPerHost, 16)
	full.MaxIdleConns = cmp.Or(c.MaxIdleConns, 64)
	full.UserAgent = cmp.Or(c.UserAgent, "Lucius-Webhooks/1.0")
	return full
}
