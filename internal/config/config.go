// Package config reads the server's configuration: flags, then environment
// variables, then defaults. It refuses an invalid value with an error that names it,
// and a setting that the selected store or bus would not use.
package config

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// Environment names the environment of the server, such as production, on every page of the console.
type Environment struct {
	Name   string // empty for none
	Colour string // one of environmentColours
}

// Config is the configuration of one server process.
type Config struct {
	ListenAddr      string
	DebugAddr       string
	StorageBackend  string
	DataDir         string
	PostgresURL     string
	TableConnection string
	TableEndpoint   string
	Tables          ledger.Tables
	// StepsTable stands for Tables.Ledger with [BackendTable].
	StepsTable      string
	ProjectedTables ProjectedTables
	ProtocolsDir    string
	Bus             string
	ServiceBus      ServiceBus
	TopicPrefix     string
	Lanes           int
	Roles           []string

	// Steps are the timeouts and budgets of a step whose protocol sets none, and Jitter
	// the part of a delay that is randomised.
	Steps  statemachine.Policy
	Jitter float64

	RetryInterval time.Duration
	SweepInterval time.Duration
	// ClockTolerance is how far the clock may be from the store's; 0 is any.
	ClockTolerance time.Duration
	PublishTimeout time.Duration
	// LimitSkew is by how much the clocks of two servers may differ, MaxClose how long a RESULT
	// can close a service.
	LimitSkew, MaxClose time.Duration
	ShutdownGrace       time.Duration
	// ProtocolsInterval is the time between two checks of the protocol files.
	ProtocolsInterval time.Duration

	// MaxConnections is how many connections may be open at once.
	MaxConnections  int
	MaxBodyBytes    int
	MaxPayloadBytes int
	// MaxInflight is the most jobs of a tenant in flight, 0 for no limit, and
	// TenantsFile the file of other limits; see [Config.OpenTenants].
	MaxInflight int
	TenantsFile string
	// BulkShare says that bulk work gets one directive in so many.
	BulkShare   int
	RefPrefixes []string

	Retention   time.Duration
	KeyTTL      time.Duration
	ArchiveDir  string
	StartPaused bool

	Access

	WebhookSecrets   []webhook.Secret
	WebhookNetworks  []netip.Prefix
	WebhookAllowHTTP bool

	LogLevel  string
	LogFormat string
	// LogJobs is [LogJobsAll] or [LogJobsFailures].
	LogJobs string
}

// The ended jobs that the log has a line for.
const (
	LogJobsAll      = "all"
	LogJobsFailures = "failures"
)

// The storage backends and buses that this program knows.
const (
	BackendLocal    = "local"
	BackendMemory   = "memory"
	BackendPostgres = "postgres"
	BackendLedger   = "ledger" // Azure Table Storage, one table for all of a job
	BackendTable    = "table"  // Azure Table Storage, the tables of Phase 1
	BusQueue        = "queue"
	BusServiceBus   = "servicebus" // Azure Service Bus, a topic for each lane
)

// ProjectedTables are the tables that show the jobs with [BackendTable].
type ProjectedTables struct{ Jobs, Outbox, Events string }

// OnAzure reports whether the rows are in a storage account.
func (c *Config) OnAzure() bool {
	return c.StorageBackend == BackendLedger || c.StorageBackend == BackendTable
}

// Shared reports whether several processes can use the store.
func (c *Config) Shared() bool { return c.OnAzure() || c.StorageBackend == BackendPostgres }

// ServiceBus configures the namespace, and whether replies use it too.
type ServiceBus struct {
	Connection string
	Namespace  string
	// WebSockets says to speak AMQP over WebSockets.
	WebSockets bool
	// AdminConnection is used to inspect and provision the namespace. Optional.
	AdminConnection string
	// Replies says that replies are read from topics.
	Replies           bool
	ReplyPrefix       string
	ReplySubscription string
}

// The roles of a process.
const (
	RoleAPI     = "api"
	RoleRelay   = "relay"
	RoleSweeper = "sweeper"
)

// Has reports whether the process has the role.
func (c *Config) Has(role string) bool {
	return slices.Contains(c.Roles, role)
}

// Access configures the callers and their rate limits.
type Access struct {
	AuthFile       string
	OIDCIssuer     string
	OIDCAudience   string
	OIDCRolesClaim string
	// The console's sign-in at the issuer. There is none without OIDCClientID.
	OIDCClientID         string
	OIDCClientSecretFile string
	OIDCScopes           string
	// PublicURL is the server's URL for browsers; empty if it is that of their requests.
	PublicURL   string
	Environment Environment
	TLSCert     string
	TLSKey      string
	TLSClientCA string
	// CallerLimit and TenantLimit have a Rate of 0 if there is no limit.
	CallerLimit auth.LimitConfig
	TenantLimit auth.LimitConfig
	// AuditLog is [AuditStderr], [AuditOff], or a file.
	AuditLog string
}

// The destinations of the audit log other than a file.
const (
	AuditStderr = "stderr"
	AuditOff    = "off"
)

// Configured reports whether callers need a credential.
func (a *Access) Configured() bool { return a.AuthFile != "" || a.OIDCIssuer != "" }
