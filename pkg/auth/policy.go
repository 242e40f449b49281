package auth

import "net/http"

const (
	get  = http.MethodGet
	post = http.MethodPost
)

// rules is the policy: one rule for each operation of the OpenAPI document, in its
// order. A test compares it with the document and with docs/access.md.
var rules = []Rule{
	{"submitCommand", post, "/v1/commands", []Role{Submit}, Named, false},
	{"orchestrate", post, "/v1/orchestrate", []Role{Submit}, Named, false},
	{"submitBatch", post, "/v1/commands:batch", []Role{Submit}, Named, false},

	// The tenant that a callback names must be the job's, so a check of the name is a
	// check of the job. Whether the caller serves the step is checked as well, once
	// the step is known: Caller.MayServe.
	{"callbackAck", post, "/v1/callbacks/ack", []Role{Platform}, Named, false},
	{"callbackResult", post, "/v1/callbacks/result", []Role{Platform}, Named, false},
	{"callbackHeartbeat", post, "/v1/callbacks/heartbeat", []Role{Platform}, Named, false},

	{"claimWork", post, "/v1/work:claim", []Role{Platform}, Narrowed, false},
	{"startWork", post, "/v1/work/{workId}:start", []Role{Platform}, Owned, false},
	{"heartbeatWork", post, "/v1/work/{workId}:heartbeat", []Role{Platform}, Owned, false},
	{"completeWork", post, "/v1/work/{workId}:complete", []Role{Platform}, Owned, false},
	{"failWork", post, "/v1/work/{workId}:fail", []Role{Platform}, Owned, false},
	{"listWorkEvents", get, "/v1/work/{workId}/events", []Role{Platform, Read}, Owned, false},
	{"getWork", get, "/v1/work/{workId}", []Role{Platform, Read}, Owned, false},

	{"listJobs", get, "/v1/jobs", []Role{Read}, Named, false},
	{"cancelJob", post, "/v1/jobs/{jobId}:cancel", []Role{Submit}, Owned, true},
	{"pauseJob", post, "/v1/jobs/{jobId}:pause", []Role{Submit}, Owned, true},
	{"resumeJob", post, "/v1/jobs/{jobId}:resume", []Role{Submit}, Owned, true},
	{"rerunJob", post, "/v1/jobs/{jobId}:rerun", []Role{Submit}, Owned, true},
	{"listJobSteps", get, "/v1/jobs/{jobId}/steps", []Role{Read}, Owned, false},
	{"listJobEvents", get, "/v1/jobs/{jobId}/events", []Role{Read}, Owned, false},
	{"listJobWebhooks", get, "/v1/jobs/{jobId}/webhooks", []Role{Read}, Owned, false},
	{"getJob", get, "/v1/jobs/{jobId}", []Role{Read}, Owned, false},

	{"retryOutbox", post, "/v1/admin/outbox/retry", []Role{Admin}, Named, true},
	{"listOutbox", get, "/v1/admin/outbox", []Role{Admin}, Named, false},
	{"listFailures", get, "/v1/admin/failures", []Role{Read}, Named, false},
	{"createRetry", post, "/v1/admin/retries", []Role{Admin}, Named, true},
	{"cancelRetry", post, "/v1/admin/retries/{retryId}:cancel", []Role{Admin}, Owned, true},
	{"getRetry", get, "/v1/admin/retries/{retryId}", []Role{Admin}, Owned, false},
	{"listPauses", get, "/v1/admin/pauses", []Role{Admin}, Narrowed, false},
	{"createPause", post, "/v1/admin/pauses", []Role{Admin}, Named, true},
	{"resumePause", post, "/v1/admin/pauses/{pauseId}:resume", []Role{Admin}, Owned, true},
	{"listWebhooks", get, "/v1/admin/webhooks", []Role{Read}, Named, false},
	{"replayWebhook", post, "/v1/admin/webhooks/{webhookId}:replay", []Role{Admin}, Owned, true},
	{"listStuck", get, "/v1/admin/stuck", []Role{Admin}, Everywhere, false},
	{"stallWork", post, "/v1/admin/work/{workId}:stall", []Role{Admin}, Owned, true},
	{"requeueWork", post, "/v1/admin/work/{workId}:requeue", []Role{Admin}, Owned, true},

	// Protocols are the same for all tenants.
	{"listProtocols", get, "/v1/protocols", []Role{Read}, Anywhere, false},

	// Probes have no credential. Metrics show every tenant's load.
	{"getHealth", get, "/healthz", nil, Public, false},
	{"getReadiness", get, "/readyz", nil, Public, false},
	{"getMetrics", get, "/metrics", []Role{Read, Admin}, Everywhere, false},
	{"getOpenAPI", get, "/openapi.yaml", nil, Public, false},
	{"getDocs", get, "/docs", nil, Public, false},
}
