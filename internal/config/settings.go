package config

import (
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// setting is a row of the table of settings.
type setting struct {
	// variable is the environment variable. Its flag is the name in lower case with
	// dashes and without the prefix: LUCIUS_DATA_DIR is --data-dir.
	variable string
	standard string
	help     string
	// set parses the text into the setting's field.
	set func(text string) error
}

// DefaultListenAddr is the default of LUCIUS_LISTEN_ADDR.
const DefaultListenAddr = "127.0.0.1:8080"

// settings lists all settings in the order of --print-config. They set c's fields.
func (c *Config) settings() []setting { //nolint:funlen // It is a table.
	return []setting{
		// The address, the store and the roles.
		{"LUCIUS_LISTEN_ADDR", DefaultListenAddr, "address to serve on; loopback only without access control",
			into(&c.ListenAddr, address)},
		{"LUCIUS_STORAGE_BACKEND", BackendLocal, "local (durable), memory, postgres, ledger or table (both Azure)",
			into(&c.StorageBackend, oneOf(BackendLocal, BackendMemory, BackendPostgres, BackendLedger, BackendTable))},
		{"LUCIUS_DATA_DIR", "./lucius-data", "folder of the local store", into(&c.DataDir, required)},
		{"LUCIUS_PROTOCOLS_DIR", "./protocols", "folder of the protocol files", into(&c.ProtocolsDir, required)},
		{"LUCIUS_ROLES", "api,relay,sweeper", "what this process does", into(&c.Roles, subset(RoleAPI, RoleRelay, RoleSweeper))},

		// Callers and their limits.
		{"LUCIUS_AUTH_FILE", "", "file with the callers and the hashes of their tokens", into(&c.AuthFile, text)},
		{"LUCIUS_OIDC_ISSUER", "", "URL of the OpenID Connect issuer whose JWTs are accepted", into(&c.OIDCIssuer, issuer)},
		{"LUCIUS_OIDC_AUDIENCE", "", "audience that JWTs must have in aud", into(&c.OIDCAudience, text)},
		{"LUCIUS_OIDC_ROLES_CLAIM", auth.DefaultRolesClaim, "claim of a JWT that lists roles", into(&c.OIDCRolesClaim, required)},
		{"LUCIUS_OIDC_CLIENT_ID", "", "client id for signing in to the console at the issuer; empty for none", into(&c.OIDCClientID, text)},
		{"LUCIUS_OIDC_CLIENT_SECRET_FILE", "", "file with the client secret, if there is one", into(&c.OIDCClientSecretFile, text)},
		{"LUCIUS_OIDC_SCOPES", auth.DefaultScopes, "scopes that the sign-in requests", into(&c.OIDCScopes, required)},
		{"LUCIUS_PUBLIC_URL", "", "URL at which browsers reach the server, if it differs from that of their requests",
			into(&c.PublicURL, publicURL)},
		{"LUCIUS_ENVIRONMENT", "", "name of the environment, which the console shows, with a colour, such as production:red",
			into(&c.Environment, environment)},
		{"LUCIUS_TLS_CERT", "", "the server's certificate with its chain, in PEM", into(&c.TLSCert, text)},
		{"LUCIUS_TLS_KEY", "", "the certificate's key, in PEM", into(&c.TLSKey, text)},
		{"LUCIUS_TLS_CLIENT_CA", "", "certificate authorities for client certificates, in PEM", into(&c.TLSClientCA, text)},
		{"LUCIUS_RATE_LIMIT_CALLER", "0", "requests per second of each caller, as RATE or RATE:BURST; 0 means no limit",
			into(&c.CallerLimit, orOff(rateLimit))},
		{"LUCIUS_RATE_LIMIT_TENANT", "0", "requests per second for each tenant, as RATE or RATE:BURST; 0 means no limit",
			into(&c.TenantLimit, orOff(rateLimit))},
		{"LUCIUS_AUDIT_LOG", AuditStderr, "destination of the audit log: stderr, off, or a file", into(&c.AuditLog, required)},

		// The bus for directives and replies.
		{busVariable, BusQueue, "queue (the pull queue) or servicebus (Azure), which a namespace selects",
			into(&c.Bus, oneOf(BusQueue, BusServiceBus))},
		{"LUCIUS_SERVICEBUS_CONNECTION", "", "connection string of the namespace", into(&c.ServiceBus.Connection, text)},
		{"LUCIUS_SERVICEBUS_NAMESPACE", "", "or its host name, with the default Azure credential", into(&c.ServiceBus.Namespace, text)},
		{"LUCIUS_SERVICEBUS_WEBSOCKETS", "false", "use AMQP over WebSockets, on port 443", into(&c.ServiceBus.WebSockets, boolean)},
		{"LUCIUS_SERVICEBUS_ADMIN_CONNECTION", "", "connection string only for lucius azure; empty uses the server's",
			into(&c.ServiceBus.AdminConnection, text)},
		{"LUCIUS_SERVICEBUS_TOPIC_PREFIX", "global-bus-p", "name of a lane's topic without its number", into(&c.TopicPrefix, topicPrefix)},
		{"LUCIUS_SERVICEBUS_LANES", "16", "number of lanes", into(&c.Lanes, integer(1, 1024))},
		{repliesVariable, "false", "also read replies from topics; either of the next two selects it",
			into(&c.ServiceBus.Replies, boolean)},
		{"LUCIUS_SERVICEBUS_REPLY_PREFIX", "global-bus-replies-p", "name of a reply topic without its number",
			into(&c.ServiceBus.ReplyPrefix, topicPrefix)},
		{"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION", "lucius-invoker", "subscription on reply topics",
			into(&c.ServiceBus.ReplySubscription, subscription)},

		{"LUCIUS_POSTGRES_URL", "", "database of the backend postgres: postgres://user:password@host:5432/database",
			into(&c.PostgresURL, text)},

		// The storage account on Azure, and the table names in every store.
		{"LUCIUS_TABLE_CONNECTION", "", "connection string of the storage account", into(&c.TableConnection, text)},
		{"LUCIUS_TABLE_ENDPOINT", "", "or its table endpoint, with the default Azure credential", into(&c.TableEndpoint, text)},
		{"LUCIUS_LEDGER_TABLE", "luciusledger", "table of the jobs (ledger)", into(&c.Tables.Ledger, tableName)},
		{"LUCIUS_STEPS_TABLE", "luciussteps", "table of the jobs and steps (table)", into(&c.StepsTable, tableName)},
		{"LUCIUS_JOBS_TABLE", "luciusjobs", "table that shows jobs (table)", into(&c.ProjectedTables.Jobs, tableName)},
		{"LUCIUS_OUTBOX_TABLE", "luciusoutbox", "table that shows the outbox (table)", into(&c.ProjectedTables.Outbox, tableName)},
		{"LUCIUS_EVENTS_TABLE", "luciusevents", "table that shows the history (table)", into(&c.ProjectedTables.Events, tableName)},
		{"LUCIUS_IDEMPOTENCY_TABLE", "jobidempotency", "table of the keys", into(&c.Tables.Idempotency, tableName)},
		{"LUCIUS_JOB_INDEX_TABLE", "luciusjobindex", "table of the lists", into(&c.Tables.Index, tableName)},
		{"LUCIUS_SCHEDULE_TABLE", "luciusschedule", "table of the schedule and the live jobs", into(&c.Tables.Schedule, tableName)},
		{"LUCIUS_QUEUE_TABLE", "luciusqueue", "table of the pull queue", into(&c.Tables.Queue, tableName)},
		{"LUCIUS_CRON_TABLE", "luciuscron", "table of the schedules", into(&c.Tables.Cron, tableName)},

		// Deadlines and budgets.
		{"LUCIUS_ACK_TIMEOUT", "30s", "time from delivery to ACK", into(&c.Steps.AckTimeout, duration)},
		{"LUCIUS_LEASE_DURATION", "15m", "time that an ACK or a heartbeat gives a worker", into(&c.Steps.Lease, duration)},
		{stepTimeout, "0", "absolute limit on the run of one attempt; 0 or off means none",
			into(&c.Steps.Timeout, orOff(duration))},
		{"LUCIUS_DISPATCH_BACKOFF", "30s,2m,10m", "delays before each retry of a rejected publish", into(&c.Steps.Dispatch, delays)},
		{"LUCIUS_ACK_BACKOFF", "1m,5m,15m", "delays before each retry after an ACK timeout", into(&c.Steps.Ack, delays)},
		{"LUCIUS_EXECUTION_BACKOFF", "30s,2m,10m", "delays before each retry after a failed run", into(&c.Steps.Execution, delays)},
		{"LUCIUS_BACKOFF_JITTER", "0.1", "part of a delay that is randomised, 0 to 1", into(&c.Jitter, fraction)},
		{"LUCIUS_MAX_ATTEMPTS", "10", "attempts of a step that spend a budget, across all causes",
			into(&c.Steps.MaxAttempts, integer(1, 1000))},
		{"LUCIUS_OUTBOX_RETRY_INTERVAL", "1s", "time between passes of the relay", into(&c.RetryInterval, duration)},
		{"LUCIUS_CLOCK_TOLERANCE", "5s", "how far the clock may differ from the store's; 0 or off disables the check",
			into(&c.ClockTolerance, orOff(duration))},
		{"LUCIUS_LIMIT_SKEW", "250ms", "how far the clocks of two servers may differ, for the limits of services",
			into(&c.LimitSkew, duration)},
		{"LUCIUS_MAX_CLOSE", "1h", "how long a worker's answer can close its service", into(&c.MaxClose, duration)},
		{"LUCIUS_SWEEP_INTERVAL", "1s", "time between checks for deadlines, webhooks and purges", into(&c.SweepInterval, duration)},
		{"LUCIUS_PROTOCOLS_INTERVAL", "2s", "time between checks of the protocol files", into(&c.ProtocolsInterval, duration)},
		{"LUCIUS_PUBLISH_TIMEOUT", "10s", "time that one publish may take", into(&c.PublishTimeout, duration)},
		{"LUCIUS_SHUTDOWN_GRACE", "20s", "time to finish requests under way after SIGTERM", into(&c.ShutdownGrace, duration)},

		// Limits of requests, and logging.
		{"LUCIUS_MAX_CONNECTIONS", "10000", "connections that may be open at once", into(&c.MaxConnections, integer(1, 1_000_000))},
		{"LUCIUS_MAX_BODY_BYTES", "1048576", "largest request body", into(&c.MaxBodyBytes, integer(1024, 64<<20))},
		{"LUCIUS_MAX_PAYLOAD_BYTES", "131072", "largest payload of a command",
			into(&c.MaxPayloadBytes, integer(2, commands.LargestPayload))},
		{"LUCIUS_MAX_INFLIGHT_PER_TENANT", "0", "jobs that a tenant may have in flight; 0 means no limit",
			into(&c.MaxInflight, orOff(integer(0, maxInflight)))},
		{"LUCIUS_BULK_SHARE", "1/8", "share of bulk work in the directives that workers get while normal work waits",
			into(&c.BulkShare, share)},
		{"LUCIUS_TENANTS_FILE", "", "file of tenants with a different limit, reloaded when it changes", into(&c.TenantsFile, text)},
		{"LUCIUS_REF_PREFIXES", "", "schemes or prefixes that reference URIs must have; empty accepts any",
			into(&c.RefPrefixes, listOf(refPrefix))},
		{"LUCIUS_DEBUG_ADDR", "", "loopback address that serves Go's profiles under /debug/pprof/; empty serves none",
			into(&c.DebugAddr, text)},
		{"LUCIUS_LOG_LEVEL", "info", "debug, info, warn or error", into(&c.LogLevel, oneOf("debug", "info", "warn", "error"))},
		{"LUCIUS_LOG_JOBS", LogJobsAll, "ended jobs that are logged at info: all or failures",
			into(&c.LogJobs, oneOf(LogJobsAll, LogJobsFailures))},
		{"LUCIUS_LOG_FORMAT", "json", "json or text", into(&c.LogFormat, oneOf("json", "text"))},

		// Retention, and the start.
		{"LUCIUS_RETENTION", "720h", "how long an ended job is kept; 0 means forever", into(&c.Retention, orOff(kept))},
		{"LUCIUS_IDEMPOTENCY_TTL", "168h", "how long a key is kept after its job's end; 0 keeps it as long as the job",
			into(&c.KeyTTL, orOff(kept))},
		{"LUCIUS_ARCHIVE_DIR", "", "folder that gets a JSON line for each job before it is purged", into(&c.ArchiveDir, text)},
		{"LUCIUS_START_PAUSED", "false", "start with all dispatch paused, until an operator resumes it", into(&c.StartPaused, boolean)},

		// Webhooks.
		{"LUCIUS_WEBHOOK_SECRETS", "", "whsec_ secrets that webhooks are signed with, per tenant",
			into(&c.WebhookSecrets, listOf(webhook.ParseSecret))},
		{"LUCIUS_WEBHOOK_NETWORKS", "", "private networks that webhooks may go to, such as 10.0.0.0/8",
			into(&c.WebhookNetworks, listOf(network))},
		{"LUCIUS_WEBHOOK_ALLOW_HTTP", "false", "accept http callback URLs in addition to https", into(&c.WebhookAllowHTTP, boolean)},
	}
}
