package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/access"
)

// The defaults of [Config].
const (
	DefaultMaxBodyBytes = 1 << 20
	DefaultBodyTimeout  = 30 * time.Second
	DefaultMaxWaits     = 5000
)

// Config is what a [Server] is made of.
type Config struct {
	// Commands accepts commands. Required.
	Commands Commands
	// Jobs reads and controls jobs. Required.
	Jobs Jobs
	// Callbacks takes platform services' reports. Required.
	Callbacks Callbacks
	// Work is the pull queue. Optional. Defaults to none: its paths answer 404.
	Work Work
	// Admin is what operators may do. Required.
	Admin Admin
	// Failures shows and reruns what failed. Required.
	Failures Failures
	// Pauses stops dispatch by scope. Required.
	Pauses Pauses
	// Webhooks shows the webhooks. Required.
	Webhooks Webhooks
	// Protocols shows the protocols. Required.
	Protocols Protocols
	// Readiness answers readyz. Required.
	Readiness Readiness
	// Access tells who calls. Required: one without a token file and an issuer
	// lets everybody do everything, and belongs on loopback.
	Access *access.Authenticator
	// Owners says whose objects are. Required.
	Owners Owners
	// CallerLimit limits the requests of each caller, TenantLimit those for each
	// tenant. Optional. Default to no limit.
	CallerLimit *access.Limiter
	TenantLimit *access.Limiter
	// Audit gets a record of each action of an operator, and of each control of a
	// job. Optional. Defaults to none.
	Audit *access.Audit
	// Registry is where the server's metrics go, and what /metrics shows.
	// Required.
	Registry *prometheus.Registry
	// Log gets the access log at debug, and each failure of this side once, with
	// the request's id. Required.
	Log *slog.Logger
	// MaxBodyBytes is the largest request body. Optional. Defaults to
	// [DefaultMaxBodyBytes].
	MaxBodyBytes int64
	// BodyTimeout is how long a client may take to send its body. Optional.
	// Defaults to [DefaultBodyTimeout].
	BodyTimeout time.Duration
	// MaxWaits is how many requests may wait at a time. Callers share them fairly:
	// beyond, the oldest of the caller with the most is answered, for another one.
	// Optional. Defaults to [DefaultMaxWaits].
	MaxWaits int
	// ProbesOnly leaves out all but /healthz, /readyz and /metrics, for a process
	// that does not serve the API. Optional. Defaults to false.
	ProbesOnly bool
}

// Validate reports the first field that makes no sense, by name.
func (c Config) Validate() error {
	for _, field := range []struct {
		name    string
		present bool
	}{
		{"Commands", c.Commands != nil},
		{"Jobs", c.Jobs != nil},
		{"Callbacks", c.Callbacks != nil},
		{"Admin", c.Admin != nil},
		{"Failures", c.Failures != nil},
		{"Pauses", c.Pauses != nil},
		{"Webhooks", c.Webhooks != nil},
		{"Protocols", c.Protocols != nil},
		{"Readiness", c.Readiness != nil},
		{"Access", c.Access != nil},
		{"Owners", c.Owners != nil},
		{"Registry", c.Registry != nil},
		{"Log", c.Log != nil},
	} {
		if !field.present {
			return fmt.Errorf("httpapi: %s is required", field.name)
		}
	}
	if c.MaxBodyBytes < 0 {
		return errors.New("httpapi: MaxBodyBytes must not be negative")
	}
	if c.BodyTimeout < 0 {
		return errors.New("httpapi: BodyTimeout must not be negative")
	}
	if c.MaxWaits < 0 {
		return errors.New("httpapi: MaxWaits must not be negative")
	}
	return nil
}

// withDefaults returns the configuration with its optional fields set.
func (c Config) withDefaults() Config {
	if c.Work == nil {
		c.Work = noWork{}
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if c.BodyTimeout == 0 {
		c.BodyTimeout = DefaultBodyTimeout
	}
	if c.MaxWaits == 0 {
		c.MaxWaits = DefaultMaxWaits
	}
	return c
}
