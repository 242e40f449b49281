package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// Role is a part of the work that the processes on one store share.
type Role string

// The roles. Each store needs at least one process with each role.
const (
	RoleAPI     Role = "api"     // serves the API, and reads replies from the bus
	RoleRelay   Role = "relay"   // publishes directives
	RoleSweeper Role = "sweeper" // acts on deadlines, purges, repairs, sends webhooks
)

// Config configures a [Server]. The configurations of its parts, such as Ledger and HTTP,
// hold what is specific to the part; [Open] sets the fields that connect it to others.
type Config struct {
	// Store holds the jobs. Close it after [Server.Run] has returned. Required.
	Store tablestore.Store
	// Protocols define the steps of each request type. Required.
	Protocols *commands.ProtocolHolder
	// HTTP configures the API. Its Auth is required. Open sets the use cases except Backup,
	// and Ready, Registry, Log, Lanes and ProbesOnly.
	HTTP httpapi.Config
	// Ledger configures how and for how long jobs are stored. Open sets Store, Bus, Hold,
	// Handoff, Held, Ready, Taker, Observe, Unsure, Later, Looked, Ended and Sample, and Shared if the
	// store is a [tablestore.Notifier]. Optional.
	Ledger ledger.Config
	// Policy limits commands. Open sets CheckCallbackURL. Optional.
	Policy commands.Policy
	// Defaults are the timeouts and budgets that a protocol does not set. Optional.
	// Defaults to [DefaultPolicy]; to change some, start from its result.
	Defaults statemachine.Policy
	// Routing sets the number of lanes and the names of their topics. Optional.
	Routing routing.Config
	// Webhooks decides where webhooks may be sent. Optional.
	Webhooks webhook.GuardConfig
	// WebhookSecrets sign webhooks. Optional. Without one, receivers cannot verify them.
	WebhookSecrets []webhook.Secret
	// SendWebhook makes one attempt to send a webhook. Optional. Defaults to sending over
	// HTTP. It must be safe for concurrent use.
	SendWebhook func(ctx context.Context, message webhook.Message) webhook.Result
	// Roles are the roles of this process. Optional. Defaults to all.
	Roles []Role
	// OpenBus returns the bus that carries directives to services. apply applies callbacks
	// that arrive over the bus. Optional. Defaults to the pull queue, from which workers
	// claim over HTTP.
	OpenBus func(apply Apply) (*Bus, error)
	// Inbox stores the commands that applications submit in their own transactions; only a
	// process with the role api accepts them. The caller closes it after [Server.Run] has
	// returned. Optional.
	Inbox inbox.Source
	// InboxWake makes the server read the inbox at once. Optional. Without it, the server
	// reads the inbox once a second.
	InboxWake <-chan struct{}
	// PublishTimeout bounds the publish of one directive. Optional. Defaults to 10 s.
	PublishTimeout time.Duration
	// RelayInterval is the time between two passes of the relay, and SweepInterval the time
	// between two passes over deadlines, webhooks and purges. Optional. Default to 1 s.
	RelayInterval, SweepInterval time.Duration
	// BulkShare gives bulk work one directive in so many while normal work of the same kind waits,
	// at least 2. Optional. Defaults to [workqueue.DefaultBulkShare].
	BulkShare int
	// ClockTolerance is how far this host's clock may differ from the store's, if the store
	// has one. Beyond it, the server does not act on deadlines, purge or repair. Optional.
	// Defaults to no limit.
	ClockTolerance time.Duration
	// Build names the program, as a text that is greater for a newer one: the first that is newer than the one before
	// computes the next occurrences of schedules again, by its time zones. Optional.
	Build string
	// LimitSkew is by how much the clocks of two processes on a shared store may differ, for the
	// limits, and MaxClose is how long a RESULT can close a service. Optional. Default to 250 ms
	// and an hour.
	LimitSkew, MaxClose time.Duration
	// Grace is how long Run waits for requests in progress when it stops. Optional.
	// Defaults to 20 s.
	Grace time.Duration
	// StartPaused, unless empty, pauses all dispatch at the start, with this reason, until
	// an operator resumes it. Optional.
	StartPaused string
	// Watchers reload files. Run runs their loops, and readyz warns of refused files.
	// Optional.
	Watchers []*background.Watcher
	// ReloadInterval is the time between two reads of the files. Optional. Defaults to 1 s.
	ReloadInterval time.Duration
	// Loops are further background loops for Run to run. Optional.
	Loops []background.Loop
	// Registry collects the metrics that /metrics shows. Optional. Defaults to a new one.
	Registry *prometheus.Registry
	// Logger is the server's log. Optional. Defaults to none.
	Logger *slog.Logger
	// LogFailuresOnly leaves the ends of jobs that did not fail out of the log. Optional.
	// Defaults to a line at level info for each job that ends.
	LogFailuresOnly bool
	// Tracer makes traces of jobs. Optional.
	Tracer Tracer
	// Replica names this process in the log. Optional.
	Replica string
	// Fatal is called with an illegal transition in the relay, which is a defect, before
	// it stops Run. Optional.
	Fatal func(defect *seqledger.IllegalTransitionError)
}

// Apply applies a callback to its job. Its errors are those of the API.
type Apply = func(ctx context.Context, callback callbacks.Callback) (callbacks.Answer, error)

// Bus carries directives to services, and their callbacks back unless those come over HTTP.
// The caller closes it after [Server.Run] has returned.
type Bus struct {
	// Publisher publishes directives. Required.
	Publisher outbox.Publisher
	// Replies reads callbacks. Optional.
	Replies Replies
	// DeadLetters holds callbacks that could not be handled. Optional.
	DeadLetters DeadLetters
}

// Replies reads callbacks from topics.
type Replies interface {
	// Run reads until the context ends. It logs errors.
	Run(ctx context.Context) error
	// Down returns the topics that cannot be read.
	Down() []callbacks.UnreadTopic
}

// DeadLetters counts the callbacks that could not be handled. Its methods may be called at
// the same time, Count once at a time.
type DeadLetters interface {
	// Count counts the dead letters.
	Count(ctx context.Context) error
	// Counted returns the result of the last Count.
	Counted() callbacks.DeadLetters
}

// Tracer makes traces of jobs. Its methods must be safe for concurrent use, and must not
// block.
type Tracer interface {
	// Sample decides whether to record a trace that begins in this process.
	Sample(traceID [16]byte) bool
	// Received returns the context for a request with this traceparent header.
	Received(ctx context.Context, traceparent string) context.Context
	// Observe records a committed change of a job.
	Observe(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition)
	// Webhook records an attempt to send a webhook of the job.
	Webhook(job *statemachine.Job, began time.Time, outcome, failure string)
}

// DefaultPolicy returns the default timeouts and budgets of a step.
func DefaultPolicy() statemachine.Policy {
	return statemachine.Policy{
		AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, MaxAttempts: 10,
		Dispatch:  []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
		Ack:       []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
		Execution: []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
	}
}

// withDefaults sets the defaults. The error names the missing or invalid field.
func (c *Config) withDefaults() error {
	switch {
	case c.Store == nil:
		return errors.New("server: Store is required")
	case c.Protocols == nil:
		return errors.New("server: Protocols is required")
	case c.HTTP.Auth == nil:
		return errors.New("server: HTTP.Auth is required")
	}
	all := []Role{RoleAPI, RoleRelay, RoleSweeper}
	for _, role := range c.Roles {
		if !slices.Contains(all, role) {
			return fmt.Errorf("server: Roles has %q: there are %q", role, all)
		}
	}
	if len(c.Roles) == 0 {
		c.Roles = all
	}
	switch d := &c.Defaults; {
	case d.AckTimeout > 0 && d.Lease > 0:
	case d.AckTimeout == 0 && d.Lease == 0 && d.MaxAttempts == 0 && len(d.Dispatch)+len(d.Ack)+len(d.Execution) == 0:
		*d = DefaultPolicy()
	default:
		return fmt.Errorf("server: Defaults has AckTimeout %s and Lease %s, which must be positive: start from DefaultPolicy()",
			d.AckTimeout, d.Lease)
	}
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 10*time.Second)
	c.RelayInterval = cmp.Or(c.RelayInterval, time.Second)
	c.SweepInterval = cmp.Or(c.SweepInterval, time.Second)
	c.Grace = cmp.Or(c.Grace, 20*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Registry = cmp.Or(c.Registry, prometheus.NewRegistry())
	c.Routing.Lanes = cmp.Or(c.Routing.Lanes, routing.DefaultLanes)
	return nil
}

// has reports whether the process has the role.
func (c *Config) has(role Role) bool { return slices.Contains(c.Roles, role) }
