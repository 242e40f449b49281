package auth

import (
	"net/http"
	"slices"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// Scope says for which tenants an operation needs the role.
type Scope int

// The scopes.
const (
	// Public needs no credential.
	Public Scope = iota
	// Anywhere needs the role for any tenant: the answer belongs to no tenant.
	Anywhere
	// Named needs the role for the tenant that the request names in its body or query,
	// or for all tenants if it names none. Denied with forbidden.
	Named
	// Owned needs the role for the tenant of each object that the request names, or for
	// all tenants if the object has none. Denied as if there were no such object.
	Owned
	// Narrowed needs the role for any tenant, and covers only the objects of the
	// caller's tenants.
	Narrowed
	// Everywhere needs the role for all tenants. Denied with forbidden.
	Everywhere
)

// String returns the scope's name in the documentation.
func (s Scope) String() string {
	return [...]string{"public", "any", "named", "owner", "own", "all"}[s]
}

// Rule says who may call one operation.
type Rule struct {
	Operation    string // The operationId in the OpenAPI document.
	Method, Path string // Those of the OpenAPI document.
	Roles        []Role // The caller needs one of them; empty for [Public].
	Scope        Scope  // The tenants for which the caller needs the role.
	Audited      bool   // Each call goes into the audit log.
}

// RuleFor returns the rule of an operation by its method and its path, with the
// parameters as the OpenAPI document has them: /v1/jobs/{jobId}:cancel.
func RuleFor(method, path string) (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Method == method && r.Path == path })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// Rules returns the rules of all operations, in the order of the OpenAPI
// document. The caller owns the slice.
func Rules() []Rule { return slices.Clone(rules) }

// Admit is the first check, before the request is read: it returns a problem of code
// forbidden if the caller may not call the operation for any tenant.
func (r Rule) Admit(c Caller) error {
	allowed, extent := c.Has, ""
	if r.Scope == Everywhere {
		allowed, extent = func(role Role) bool { return c.May(role, "") }, " for all tenants"
	}
	if r.Scope == Public || slices.ContainsFunc(r.Roles, allowed) {
		return nil
	}
	return apierror.Newf(apierror.Forbidden, "This requires the role %s%s.", oneOf(r.Roles), extent)
}

// Allows reports whether the caller may call the operation for the tenant. The empty
// tenant means all. Answer a refused object as if it did not exist.
func (r Rule) Allows(c Caller, tenant string) bool {
	switch r.Scope {
	case Public:
		return true
	case Anywhere, Everywhere:
		return r.Admit(c) == nil
	default:
		return slices.ContainsFunc(r.Roles, func(role Role) bool { return c.May(role, tenant) })
	}
}

// AllowsStep is Allows for a step: a platform caller may be limited to services.
func (r Rule) AllowsStep(c Caller, tenant, service string) bool {
	return slices.ContainsFunc(r.Roles, func(role Role) bool {
		return c.May(role, tenant) && (role != Platform || c.MayServe(tenant, service))
	})
}

// Check is Allows for a tenant that the request names itself: it returns a
// problem of code forbidden.
func (r Rule) Check(c Caller, tenant string) error {
	switch {
	case r.Allows(c, tenant):
		return nil
	case tenant == "":
		return apierror.Newf(apierror.Forbidden, "This requires the role %s for all tenants; name a tenant_id of yours.", oneOf(r.Roles))
	default:
		return apierror.Newf(apierror.Forbidden, "This requires the role %s for the tenant.", oneOf(r.Roles))
	}
}

const (
	get  = http.MethodGet
	post = http.MethodPost
	put  = http.MethodPut
	del  = http.MethodDelete
)

// rules is the policy: one rule for each operation of the OpenAPI document, in its
// order. A test compares it with the document and with docs/run/access.md.
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
	{"completeWorkBatch", post, "/v1/work:complete", []Role{Platform}, Owned, false},
	{"failWork", post, "/v1/work/{workId}:fail", []Role{Platform}, Owned, false},
	{"listWorkEvents", get, "/v1/work/{workId}/events", []Role{Platform, Read}, Owned, false},
	{"getWork", get, "/v1/work/{workId}", []Role{Platform, Read}, Owned, false},

	{"listJobs", get, "/v1/jobs", []Role{Read}, Named, false},
	{"cancelJob", post, "/v1/jobs/{jobId}:cancel", []Role{Submit}, Owned, true},
	{"pauseJob", post, "/v1/jobs/{jobId}:pause", []Role{Submit}, Owned, true},
	{"prioritizeJob", post, "/v1/jobs/{jobId}:prioritize", []Role{Submit}, Owned, true},
	{"rescheduleJob", post, "/v1/jobs/{jobId}:reschedule", []Role{Submit}, Owned, true},
	{"resumeJob", post, "/v1/jobs/{jobId}:resume", []Role{Submit}, Owned, true},
	{"rerunJob", post, "/v1/jobs/{jobId}:rerun", []Role{Submit}, Owned, true},
	{"getLineage", get, "/v1/jobs/{jobId}/lineage", []Role{Read}, Owned, false},
	{"listJobSteps", get, "/v1/jobs/{jobId}/steps", []Role{Read}, Owned, false},
	{"listJobEvents", get, "/v1/jobs/{jobId}/events", []Role{Read}, Owned, false},
	{"listRejectedCallbacks", get, "/v1/jobs/{jobId}/rejected", []Role{Read}, Owned, false},
	{"listJobWebhooks", get, "/v1/jobs/{jobId}/webhooks", []Role{Read}, Owned, false},
	{"getJob", get, "/v1/jobs/{jobId}", []Role{Read}, Owned, false},

	{"listLines", get, "/v1/lines", []Role{Read}, Named, false},
	{"cancelLine", post, "/v1/lines/{lineId}:cancel", []Role{Submit}, Owned, true},
	{"releaseLine", post, "/v1/lines/{lineId}:release", []Role{Submit}, Owned, true},
	{"listLineJobs", get, "/v1/lines/{lineId}/jobs", []Role{Read}, Owned, false},
	{"getLine", get, "/v1/lines/{lineId}", []Role{Read}, Owned, false},

	{"previewSchedule", post, "/v1/schedules:preview", []Role{Read}, Anywhere, false},
	{"listLosses", get, "/v1/schedules:lost", []Role{Read}, Named, false},
	{"listSchedules", get, "/v1/schedules", []Role{Read}, Named, false},
	{"pauseSchedule", post, "/v1/schedules/{tenantId}/{name}:pause", []Role{Submit}, Owned, true},
	{"resumeSchedule", post, "/v1/schedules/{tenantId}/{name}:resume", []Role{Submit}, Owned, true},
	{"runSchedule", post, "/v1/schedules/{tenantId}/{name}:run", []Role{Submit}, Owned, true},
	{"backfillSchedule", post, "/v1/schedules/{tenantId}/{name}:backfill", []Role{Submit}, Owned, true},
	{"cancelBackfill", post, "/v1/schedules/{tenantId}/{name}/backfills/{backfillId}:cancel", []Role{Submit}, Owned, true},
	{"listBackfills", get, "/v1/schedules/{tenantId}/{name}/backfills", []Role{Read}, Owned, false},
	{"listFires", get, "/v1/schedules/{tenantId}/{name}/fires", []Role{Read}, Owned, false},
	{"getSchedule", get, "/v1/schedules/{tenantId}/{name}", []Role{Read}, Owned, false},
	{"putSchedule", put, "/v1/schedules/{tenantId}/{name}", []Role{Submit}, Owned, true},
	{"deleteSchedule", del, "/v1/schedules/{tenantId}/{name}", []Role{Submit}, Owned, true},

	{"retryOutbox", post, "/v1/admin/outbox/retry", []Role{Admin}, Named, true},
	{"listOutbox", get, "/v1/admin/outbox", []Role{Admin}, Named, false},
	{"listFailures", get, "/v1/admin/failures", []Role{Read}, Named, false},
	{"listRetries", get, "/v1/admin/retries", []Role{Admin}, Named, false},
	{"createRetry", post, "/v1/admin/retries", []Role{Admin}, Named, true},
	{"createCancellation", post, "/v1/admin/cancellations", []Role{Admin}, Named, true},
	{"createPausing", post, "/v1/admin/pausings", []Role{Admin}, Named, true},
	{"createResumption", post, "/v1/admin/resumptions", []Role{Admin}, Named, true},
	{"listOperations", get, "/v1/admin/operations", []Role{Admin}, Named, false},
	{"cancelOperation", post, "/v1/admin/operations/{operationId}:cancel", []Role{Admin}, Owned, true},
	{"getOperation", get, "/v1/admin/operations/{operationId}", []Role{Admin}, Owned, false},
	{"listPauses", get, "/v1/admin/pauses", []Role{Admin}, Narrowed, false},
	{"createPause", post, "/v1/admin/pauses", []Role{Admin}, Named, true},
	{"resumePause", post, "/v1/admin/pauses/{pauseId}:resume", []Role{Admin}, Owned, true},
	{"listLimits", get, "/v1/admin/limits", []Role{Admin}, Narrowed, false},
	{"getLimit", get, "/v1/admin/limits/{limitId}", []Role{Admin}, Owned, false},
	{"setLimit", put, "/v1/admin/limits/{limitId}", []Role{Admin}, Owned, true},
	{"deleteLimit", del, "/v1/admin/limits/{limitId}", []Role{Admin}, Owned, true},
	{"closeLimit", post, "/v1/admin/limits/{limitId}:close", []Role{Admin}, Owned, true},
	{"openLimit", post, "/v1/admin/limits/{limitId}:open", []Role{Admin}, Owned, true},
	{"listMarks", get, "/v1/admin/marks", []Role{Read, Admin}, Narrowed, false},
	{"setMark", post, "/v1/admin/marks", []Role{Admin}, Named, true},
	{"listWebhooks", get, "/v1/admin/webhooks", []Role{Read}, Named, false},
	{"replayWebhook", post, "/v1/admin/webhooks/{webhookId}:replay", []Role{Admin}, Owned, true},
	{"listServices", get, "/v1/admin/services", []Role{Read, Admin}, Everywhere, false},
	{"listWorkers", get, "/v1/admin/workers", []Role{Read, Admin}, Narrowed, false},
	{"getOverview", get, "/v1/admin/overview", []Role{Read, Admin}, Everywhere, false},
	{"createBackup", post, "/v1/admin/backup", []Role{Admin}, Everywhere, true},
	{"listStuck", get, "/v1/admin/stuck", []Role{Admin}, Everywhere, false},
	{"listAuditTrail", get, "/v1/admin/audit-trail", []Role{Admin}, Everywhere, false},
	{"listInbox", get, "/v1/admin/inbox", []Role{Admin}, Everywhere, false},
	{"retryInbox", post, "/v1/admin/inbox:retry", []Role{Admin}, Everywhere, true},
	{"discardInbox", post, "/v1/admin/inbox:discard", []Role{Admin}, Everywhere, true},
	{"stallWork", post, "/v1/admin/work/{workId}:stall", []Role{Admin}, Owned, true},
	{"requeueWork", post, "/v1/admin/work/{workId}:requeue", []Role{Admin}, Owned, true},

	// Protocols are the same for all tenants.
	{"listProtocols", get, "/v1/protocols", []Role{Read}, Anywhere, false},
	{"getIdentity", get, "/v1/whoami", Roles(), Anywhere, false},

	// Probes have no credential. Metrics show every tenant's load.
	{"getRoot", get, "/", nil, Public, false},
	{"getHealth", get, "/healthz", nil, Public, false},
	{"getReadiness", get, "/readyz", nil, Public, false},
	{"getMetrics", get, "/metrics", []Role{Read, Admin}, Everywhere, false},
	{"getOpenAPI", get, "/openapi.yaml", nil, Public, false},
	{"getDocs", get, "/docs", nil, Public, false},
}
