package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/marks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// The defaults of [Config].
const (
	DefaultMaxBodyBytes = 1 << 20
	DefaultBodyTimeout  = 30 * time.Second
	DefaultMaxWaits     = 5000
)

// UseCases are the use cases that the handlers call. All but Inbox,
// Circuits and Backup are required.
type UseCases struct {
	// Ledger looks up webhooks and the owners of objects.
	Ledger     *ledger.Ledger
	Commands   *commands.Service
	Jobs       *search.Service
	Callbacks  *callbacks.Service
	Queue      *workqueue.Queue
	Operator   *outbox.Operator
	Reconciler *background.Reconciler
	Counts     *search.Counts
	Operations *background.Operations
	// Admission keeps the pauses, limits and closures, and Gate is this process's view of them.
	Admission *admission.Service
	Gate      *admission.Gate
	Marks     *marks.Service
	Schedules *schedules.Service // Required to serve /v1/schedules.
	Protocols *commands.ProtocolHolder
	// Circuits returns the circuits of the bus that are not closed. It must be safe for
	// concurrent use. The error is the store's.
	Circuits func(ctx context.Context) ([]breaker.Circuit, error)
	// Inbox is the commands that were submitted in applications' transactions. It is nil if
	// the store is not theirs.
	Inbox inbox.Operator
	// InboxSurvey returns the latest counts of the inbox. It is nil if Inbox is.
	InboxSurvey func() inbox.Survey
	// Backup takes a backup of the store. It must be safe for concurrent use. It is nil if
	// the store has none.
	Backup func(ctx context.Context) (Backup, error)
}

// Config is what a [Server] is made of.
type Config struct {
	UseCases

	// Ready answers readyz: sentences that say what is degraded, or an error if the
	// store does not answer. It must be safe for concurrent use. Required.
	Ready func(ctx context.Context) (warnings []string, err error)
	// Auth authenticates callers. Required. Without a token file and an issuer it
	// lets every caller do everything; then listen on loopback only.
	Auth *auth.Authenticator
	// CallerLimit limits the requests of each caller, TenantLimit those for each
	// tenant. Optional. Default to no limit.
	CallerLimit *auth.Limiter
	TenantLimit *auth.Limiter
	// Audit gets a record of each action of an operator, and of each control of a
	// job. Optional. Defaults to one that only keeps the newest.
	Audit *auth.Audit
	// Registry holds the server's metrics; /metrics shows it.
	// Required.
	Registry *prometheus.Registry
	// Log gets the access log at debug, and each server-side failure once, with the
	// request's id. Required.
	Log *slog.Logger
	// Lanes is the number of lanes, for the check of pauses. Optional. Defaults to no
	// check.
	Lanes int
	// MaxBodyBytes is the largest request body. Optional. Defaults to
	// [DefaultMaxBodyBytes].
	MaxBodyBytes int64
	// BodyTimeout is how long a client may take to send its body. Optional.
	// Defaults to [DefaultBodyTimeout].
	BodyTimeout time.Duration
	// MaxWaits is how many requests may wait at a time; one caller may have half of them.
	// Optional. Defaults to [DefaultMaxWaits].
	MaxWaits int
	// Console makes what serves the pages under /ui/, which call the API as clients do. It
	// must end their streams when ended is closed. Optional. Defaults to no pages.
	Console func(api http.Handler, ended <-chan struct{}) (http.Handler, error)
	// ProbesOnly serves only /healthz, /readyz and /metrics, for a process without
	// the API. Optional. Defaults to false.
	ProbesOnly bool
}
