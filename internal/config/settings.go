package config

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
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

// settings lists all settings in the order of --print-config. They set c's fields.
func (c *Config) settings() []setting {
	return []setting{
		// The address, the store and the roles.
		{"LUCIUS_LISTEN_ADDR", "127.0.0.1:8080", "address to serve on; loopback if all may call", address(&c.ListenAddr)},
		{"LUCIUS_STORAGE_BACKEND", BackendLocal, "local (durable), memory, ledger or table (both Azure)",
			oneOf(&c.StorageBackend, BackendLocal, BackendMemory, BackendLedger, BackendTable)},
		{"LUCIUS_DATA_DIR", "./lucius-data", "folder of the local store", required(&c.DataDir)},
		{"LUCIUS_PROTOCOLS_DIR", "./protocols", "folder of the protocol files", required(&c.ProtocolsDir)},
		{"LUCIUS_ROLES", "api,relay,sweeper", "what this process does", subset(&c.Roles, RoleAPI, RoleRelay, RoleSweeper)},

		// Callers and their limits.
		{"LUCIUS_AUTH_FILE", "", "file of the callers and the hashes of their tokens", text(&c.AuthFile)},
		{"LUCIUS_OIDC_ISSUER", "", "URL of the OpenID Connect issuer whose JWTs are taken", issuer(&c.OIDCIssuer)},
		{"LUCIUS_OIDC_AUDIENCE", "", "what JWTs must have in aud", text(&c.OIDCAudience)},
		{"LUCIUS_OIDC_ROLES_CLAIM", auth.DefaultRolesClaim, "claim of a JWT that lists roles", required(&c.OIDCRolesClaim)},
		{"LUCIUS_TLS_CERT", "", "the server's certificate with its chain, in PEM", text(&c.TLSCert)},
		{"LUCIUS_TLS_KEY", "", "the certificate's key, in PEM", text(&c.TLSKey)},
		{"LUCIUS_TLS_CLIENT_CA", "", "authorities of client certificates, in PEM", text(&c.TLSClientCA)},
		{"LUCIUS_RATE_LIMIT_CALLER", "0", "requests a second of each caller, as RATE or RATE:BURST; 0 is no limit",
			rateLimit(&c.CallerLimit)},
		{"LUCIUS_RATE_LIMIT_TENANT", "0", "requests a second for each tenant, as RATE or RATE:BURST; 0 is no limit",
			rateLimit(&c.TenantLimit)},
		{"LUCIUS_AUDIT_LOG", AuditStderr, "where the audit log goes: stderr, off, or a file", required(&c.AuditLog)},

		// The bus for directives and replies.
		{"LUCIUS_BUS", BusQueue, "queue (the pull queue) or servicebus (Azure)", oneOf(&c.Bus, BusQueue, BusServiceBus)},
		{"LUCIUS_SERVICEBUS_CONNECTION", "", "connection string of the namespace", text(&c.ServiceBus.Connection)},
		{"LUCIUS_SERVICEBUS_NAMESPACE", "", "or its host name, with the default Azure credential", text(&c.ServiceBus.Namespace)},
		{"LUCIUS_SERVICEBUS_TOPIC_PREFIX", "global-bus-p", "topic of a lane without its number", required(&c.TopicPrefix)},
		{"LUCIUS_SERVICEBUS_LANES", "16", "number of lanes", integer(&c.Lanes, 1, 1024)},
		{"LUCIUS_SERVICEBUS_REPLIES", "false", "take replies from topics too", boolean(&c.ServiceBus.Replies)},
		{"LUCIUS_SERVICEBUS_REPLY_PREFIX", "global-bus-replies-p", "reply topic without its number", required(&c.ServiceBus.ReplyPrefix)},
		{"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION", "lucius-invoker", "subscription on reply topics",
			required(&c.ServiceBus.ReplySubscription)},

		// The storage account on Azure, and the table names in every store.
		{"LUCIUS_TABLE_CONNECTION", "", "connection string of the storage account", text(&c.TableConnection)},
		{"LUCIUS_TABLE_ENDPOINT", "", "or its table endpoint, with the default Azure credential", text(&c.TableEndpoint)},
		{"LUCIUS_LEDGER_TABLE", "luciusledger", "table of the jobs (ledger)", tableName(&c.Tables.Ledger)},
		{"LUCIUS_STEPS_TABLE", "luciussteps", "table of the jobs and steps (table)", tableName(&c.Tables.Steps)},
		{"LUCIUS_JOBS_TABLE", "luciusjobs", "table that shows jobs (table)", tableName(&c.Tables.Jobs)},
		{"LUCIUS_OUTBOX_TABLE", "luciusoutbox", "table that shows the outbox (table)", tableName(&c.Tables.Outbox)},
		{"LUCIUS_EVENTS_TABLE", "luciusevents", "table that shows the history (table)", tableName(&c.Tables.Events)},
		{"LUCIUS_IDEMPOTENCY_TABLE", "jobidempotency", "table of the keys", tableName(&c.Tables.Idempotency)},
		{"LUCIUS_JOB_INDEX_TABLE", "luciusjobindex", "table of the lists", tableName(&c.Tables.Index)},
		{"LUCIUS_INFLIGHT_TABLE", "luciusinflight", "table of the live jobs", tableName(&c.Tables.Inflight)},
		{"LUCIUS_SCHEDULE_TABLE", "luciusschedule", "table of the schedule", tableName(&c.Tables.Schedule)},
		{"LUCIUS_QUEUE_TABLE", "luciusqueue", "table of the pull queue", tableName(&c.Tables.Queue)},

		// Deadlines and budgets.
		{"LUCIUS_ACK_TIMEOUT", "30s", "time from delivery to ACK", positive(&c.AckTimeout)},
		{"LUCIUS_LEASE_DURATION", "15m", "time that an ACK or a heartbeat gives a worker", positive(&c.Lease)},
		{"LUCIUS_STEP_RESULT_TIMEOUT", "0", "absolute limit of one attempt's run; 0 or off is none", duration(&c.StepTimeout)},
		{"LUCIUS_DISPATCH_BACKOFF", "30s,2m,10m", "delays before each retry of a rejected publish", delays(&c.DispatchBackoff)},
		{"LUCIUS_ACK_BACKOFF", "1m,5m,15m", "delays before each retry after an ACK timeout", delays(&c.AckBackoff)},
		{"LUCIUS_EXECUTION_BACKOFF", "30s,2m,10m", "delays before each retry after a failed run", delays(&c.ExecutionBackoff)},
		{"LUCIUS_BACKOFF_JITTER", "0.1", "part of a delay that is randomised, 0 to 1", fraction(&c.Jitter)},
		{"LUCIUS_MAX_ATTEMPTS", "10", "attempts of a step that spend a budget, over all causes", integer(&c.MaxAttempts, 1, 1000)},
		{"LUCIUS_OUTBOX_RETRY_INTERVAL", "1s", "time between two passes of the relay", positive(&c.RetryInterval)},
		{"LUCIUS_SWEEP_INTERVAL", "1s", "time between two passes of the sweeper", positive(&c.SweepInterval)},
		{"LUCIUS_PROTOCOLS_INTERVAL", "2s", "time between two checks of the protocol files", positive(&c.ProtocolsInterval)},
		{"LUCIUS_PUBLISH_TIMEOUT", "10s", "time that one publish may take", positive(&c.PublishTimeout)},
		{"LUCIUS_SHUTDOWN_GRACE", "20s", "time to finish requests under way after SIGTERM", positive(&c.ShutdownGrace)},

		// Limits of requests, and logging.
		{"LUCIUS_MAX_CONNECTIONS", "10000", "connections that may be open at once", integer(&c.MaxConnections, 1, 1_000_000)},
		{"LUCIUS_MAX_BODY_BYTES", "1048576", "largest request body", integer(&c.MaxBodyBytes, 1024, 64<<20)},
		{"LUCIUS_MAX_PAYLOAD_BYTES", "131072", "largest payload of a command", integer(&c.MaxPayloadBytes, 2, commands.LargestPayload)},
		{"LUCIUS_MAX_INFLIGHT_PER_TENANT", "0", "jobs that a tenant may have in flight; 0 is no limit",
			integer(&c.MaxInflight, 0, 1_000_000)},
		{"LUCIUS_REF_PREFIXES", "", "schemes or prefixes that reference URIs must have; empty takes any", texts(&c.RefPrefixes)},
		{"LUCIUS_LOG_LEVEL", "info", "debug, info, warn or error", oneOf(&c.LogLevel, "debug", "info", "warn", "error")},
		{"LUCIUS_LOG_FORMAT", "json", "json or text", oneOf(&c.LogFormat, "json", "text")},

		// Retention, and the start.
		{"LUCIUS_RETENTION", "720h", "how long an ended job is kept; 0 is for ever", duration(&c.Retention)},
		{"LUCIUS_IDEMPOTENCY_TTL", "168h", "how long a key outlives its job; 0 is as long as the job", duration(&c.KeyTTL)},
		{"LUCIUS_ARCHIVE_DIR", "", "folder that gets a JSON line of each job before it is purged", text(&c.ArchiveDir)},
		{"LUCIUS_START_PAUSED", "false", "pause all dispatch at the start, until an operator resumes it", boolean(&c.StartPaused)},

		// Webhooks.
		{"LUCIUS_WEBHOOK_SECRETS", "", "whsec_ secrets that webhooks are signed with, per tenant", secrets(&c.WebhookSecrets)},
		{"LUCIUS_WEBHOOK_NETWORKS", "", "private networks that webhooks may go to, such as 10.0.0.0/8", networks(&c.WebhookNetworks)},
		{"LUCIUS_WEBHOOK_ALLOW_HTTP", "false", "accept http callback URLs in addition to https", boolean(&c.WebhookAllowHTTP)},
	}
}

// secret reports whether a variable's value must not be shown.
func secret(variable string) bool {
	return slices.Contains([]string{
		"LUCIUS_TABLE_CONNECTION", "LUCIUS_SERVICEBUS_CONNECTION", "LUCIUS_WEBHOOK_SECRETS",
	}, variable)
}
