package config

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/commands"
)

// setting is one setting: its variable, and the parser of its text.
type setting struct {
	// Variable is the environment variable. The flag is its name in lower case
	// without the prefix, with dashes: LUCIUS_DATA_DIR is --data-dir.
	variable string
	standard string
	help     string
	set      func(*Config, string) error
}

// settings lists all settings, in the order of --print-config.
func settings() []setting {
	return slices.Concat(serving(), admitting(), bus(), tables(), timing(), limits(), keeping(), announcing())
}

// serving has the settings of the address, the store and the roles.
func serving() []setting {
	return []setting{
		{"LUCIUS_LISTEN_ADDR", "127.0.0.1:8080", "address to serve on; loopback if all may call", func(c *Config, s string) error {
			return address(&c.ListenAddr, s)
		}},
		{"LUCIUS_STORAGE_BACKEND", BackendLocal, "local (durable), memory, ledger or table (both Azure)", func(c *Config, s string) error {
			return oneOf(&c.StorageBackend, s, BackendLocal, BackendMemory, BackendLedger, BackendTable)
		}},
		{"LUCIUS_DATA_DIR", "./lucius-data", "folder of the local store", func(c *Config, s string) error {
			return required(&c.DataDir, s)
		}},
		{"LUCIUS_PROTOCOLS_DIR", "./protocols", "folder of the protocol files", func(c *Config, s string) error {
			return required(&c.ProtocolsDir, s)
		}},
		{"LUCIUS_ROLES", "api,relay,sweeper", "what this process does", func(c *Config, s string) error {
			return subset(&c.Roles, s, RoleAPI, RoleRelay, RoleSweeper)
		}},
	}
}

// bus has the settings of the bus for directives and replies.
func bus() []setting {
	return []setting{
		{"LUCIUS_BUS", BusQueue, "queue (the pull queue) or servicebus (Azure)", func(c *Config, s string) error {
			return oneOf(&c.Bus, s, BusQueue, BusServiceBus)
		}},
		{"LUCIUS_SERVICEBUS_CONNECTION", "", "connection string of the namespace", func(c *Config, s string) error {
			c.ServiceBus.Connection = s
			return nil
		}},
		{"LUCIUS_SERVICEBUS_NAMESPACE", "", "or its host name, with the default Azure credential", func(c *Config, s string) error {
			c.ServiceBus.Namespace = s
			return nil
		}},
		{"LUCIUS_SERVICEBUS_TOPIC_PREFIX", "global-bus-p", "topic of a lane without its number", func(c *Config, s string) error {
			return required(&c.TopicPrefix, s)
		}},
		{"LUCIUS_SERVICEBUS_LANES", "16", "number of lanes", func(c *Config, s string) error {
			return integer(&c.Lanes, s, 1, 1024)
		}},
		{"LUCIUS_SERVICEBUS_REPLIES", "false", "take replies from topics too", func(c *Config, s string) error {
			return boolean(&c.ServiceBus.Replies, s)
		}},
		{"LUCIUS_SERVICEBUS_REPLY_PREFIX", "global-bus-replies-p", "reply topic without its number", func(c *Config, s string) error {
			return required(&c.ServiceBus.ReplyPrefix, s)
		}},
		{"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION", "lucius-invoker", "subscription on reply topics", func(c *Config, s string) error {
			return required(&c.ServiceBus.ReplySubscription, s)
		}},
	}
}

// timing are the deadlines and budgets.
func timing() []setting {
	return []setting{
		{"LUCIUS_ACK_TIMEOUT", "30s", "time from delivery to ACK", func(c *Config, s string) error {
			return positive(&c.AckTimeout, s)
		}},
		{"LUCIUS_LEASE_DURATION", "15m", "time that an ACK or a heartbeat gives a worker", func(c *Config, s string) error {
			return positive(&c.Lease, s)
		}},
		{"LUCIUS_STEP_RESULT_TIMEOUT", "0", "absolute limit of one attempt's run; 0 or off is none", func(c *Config, s string) error {
			return duration(&c.StepTimeout, s)
		}},
		{"LUCIUS_DISPATCH_BACKOFF", "30s,2m,10m", "delays before each retry of a rejected publish", func(c *Config, s string) error {
			return delays(&c.DispatchBackoff, s)
		}},
		{"LUCIUS_ACK_BACKOFF", "1m,5m,15m", "delays before each retry after an ACK timeout", func(c *Config, s string) error {
			return delays(&c.AckBackoff, s)
		}},
		{"LUCIUS_EXECUTION_BACKOFF", "30s,2m,10m", "delays before each retry after a failed run", func(c *Config, s string) error {
			return delays(&c.ExecutionBackoff, s)
		}},
		{"LUCIUS_BACKOFF_JITTER", "0.1", "part of a delay that is randomised, 0 to 1", func(c *Config, s string) error {
			return fraction(&c.Jitter, s)
		}},
		{"LUCIUS_MAX_ATTEMPTS", "10", "attempts of a step that spend a budget, over all causes", func(c *Config, s string) error {
			return integer(&c.MaxAttempts, s, 1, 1000)
		}},
		{"LUCIUS_OUTBOX_RETRY_INTERVAL", "1s", "time between two passes of the relay", func(c *Config, s string) error {
			return positive(&c.RetryInterval, s)
		}},
		{"LUCIUS_SWEEP_INTERVAL", "1s", "time between two passes of the sweeper", func(c *Config, s string) error {
			return positive(&c.SweepInterval, s)
		}},
		{"LUCIUS_PROTOCOLS_INTERVAL", "2s", "time between two checks of the protocol files", func(c *Config, s string) error {
			return positive(&c.ProtocolsInterval, s)
		}},
		{"LUCIUS_PUBLISH_TIMEOUT", "10s", "time that one publish may take", func(c *Config, s string) error {
			return positive(&c.PublishTimeout, s)
		}},
		{"LUCIUS_SHUTDOWN_GRACE", "20s", "time to finish requests under way after SIGTERM", func(c *Config, s string) error {
			return positive(&c.ShutdownGrace, s)
		}},
	}
}

// limits has the settings that bound requests and logging.
func limits() []setting {
	return []setting{
		{"LUCIUS_MAX_CONNECTIONS", "10000", "connections that may be open at once", func(c *Config, s string) error {
			return integer(&c.MaxConnections, s, 1, 1_000_000)
		}},
		{"LUCIUS_MAX_BODY_BYTES", "1048576", "largest request body", func(c *Config, s string) error {
			return integer(&c.MaxBodyBytes, s, 1024, 64<<20)
		}},
		{"LUCIUS_MAX_PAYLOAD_BYTES", "131072", "largest payload of a command", func(c *Config, s string) error {
			return integer(&c.MaxPayloadBytes, s, 2, commands.LargestPayload)
		}},
		{"LUCIUS_MAX_INFLIGHT_PER_TENANT", "0", "jobs that a tenant may have in flight; 0 is no limit", func(c *Config, s string) error {
			return integer(&c.MaxInflight, s, 0, 1_000_000)
		}},
		{"LUCIUS_REF_PREFIXES", "", "schemes or prefixes that reference URIs must have; empty takes any", func(c *Config, s string) error {
			c.RefPrefixes = list(s)
			return nil
		}},
		{"LUCIUS_LOG_LEVEL", "info", "debug, info, warn or error", func(c *Config, s string) error {
			return oneOf(&c.LogLevel, s, "debug", "info", "warn", "error")
		}},
		{"LUCIUS_LOG_FORMAT", "json", "json or text", func(c *Config, s string) error {
			return oneOf(&c.LogFormat, s, "json", "text")
		}},
	}
}

// keeping has the settings of retention and of the start.
func keeping() []setting {
	return []setting{
		{"LUCIUS_RETENTION", "720h", "how long an ended job is kept; 0 is for ever", func(c *Config, s string) error {
			return duration(&c.Retention, s)
		}},
		{"LUCIUS_IDEMPOTENCY_TTL", "168h", "how long a key outlives its job; 0 is as long as the job", func(c *Config, s string) error {
			return duration(&c.KeyTTL, s)
		}},
		{"LUCIUS_ARCHIVE_DIR", "", "folder that gets a JSON line of each job before it is purged", func(c *Config, s string) error {
			c.ArchiveDir = s
			return nil
		}},
		{"LUCIUS_START_PAUSED", "false", "pause all dispatch at the start, until an operator resumes it", func(c *Config, s string) error {
			return boolean(&c.StartPaused, s)
		}},
	}
}

// tables has the settings of the storage account on Azure, and of the table names in
// every store.
func tables() []setting {
	name := func(variable, standard, help string, of func(*Tables) *string) setting {
		return setting{variable, standard, help, func(c *Config, s string) error { return tableName(of(&c.Tables), s) }}
	}
	return []setting{
		{"LUCIUS_TABLE_CONNECTION", "", "connection string of the storage account", func(c *Config, s string) error {
			c.TableConnection = s
			return nil
		}},
		{"LUCIUS_TABLE_ENDPOINT", "", "or its table endpoint, with the default Azure credential", func(c *Config, s string) error {
			c.TableEndpoint = s
			return nil
		}},
		name("LUCIUS_LEDGER_TABLE", "luciusledger", "table of the jobs (ledger)", func(t *Tables) *string { return &t.Ledger }),
		name("LUCIUS_STEPS_TABLE", "luciussteps", "table of the jobs and steps (table)", func(t *Tables) *string { return &t.Steps }),
		name("LUCIUS_JOBS_TABLE", "luciusjobs", "table that shows jobs (table)", func(t *Tables) *string { return &t.Jobs }),
		name("LUCIUS_OUTBOX_TABLE", "luciusoutbox", "table that shows the outbox (table)", func(t *Tables) *string { return &t.Outbox }),
		name("LUCIUS_EVENTS_TABLE", "luciusevents", "table that shows the history (table)", func(t *Tables) *string { return &t.Events }),
		name("LUCIUS_IDEMPOTENCY_TABLE", "jobidempotency", "table of the keys", func(t *Tables) *string { return &t.Idempotency }),
		name("LUCIUS_JOB_INDEX_TABLE", "luciusjobindex", "table of the lists", func(t *Tables) *string { return &t.Index }),
		name("LUCIUS_INFLIGHT_TABLE", "luciusinflight", "table of the live jobs", func(t *Tables) *string { return &t.Inflight }),
		name("LUCIUS_SCHEDULE_TABLE", "luciusschedule", "table of the schedule", func(t *Tables) *string { return &t.Schedule }),
		name("LUCIUS_QUEUE_TABLE", "luciusqueue", "table of the pull queue", func(t *Tables) *string { return &t.Queue }),
	}
}

// secret reports whether a variable's value must not be shown.
func secret(variable string) bool {
	return slices.Contains([]string{
		"LUCIUS_TABLE_CONNECTION", "LUCIUS_SERVICEBUS_CONNECTION", "LUCIUS_WEBHOOK_SECRETS",
	}, variable)
}

// announcing has the settings of webhooks.
func announcing() []setting {
	return []setting{
		{"LUCIUS_WEBHOOK_SECRETS", "", "whsec_ secrets that webhooks are signed with, per tenant", func(c *Config, s string) error {
			return secrets(&c.WebhookSecrets, s)
		}},
		{"LUCIUS_WEBHOOK_NETWORKS", "", "private networks that webhooks may go to, such as 10.0.0.0/8", func(c *Config, s string) error {
			return networks(&c.WebhookNetworks, s)
		}},
		{"LUCIUS_WEBHOOK_ALLOW_HTTP", "false", "accept http callback URLs in addition to https", func(c *Config, s string) error {
			return boolean(&c.WebhookAllowHTTP, s)
		}},
	}
}
