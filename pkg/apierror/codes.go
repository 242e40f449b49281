package apierror

import "net/http"

// Code is the machine-readable reason of a problem. Codes are part of the wire
// contract: new ones may be added, but none renamed or given another meaning.
type Code string

// The codes of invalid requests.
const (
	InvalidJSON              Code = "invalid_json"               // the body is not JSON
	InvalidEnvelope          Code = "invalid_envelope"           // a field or parameter is missing, unknown, mistyped or out of range
	PayloadInvalid           Code = "payload_invalid"            // the payload does not match a step's JSON Schema
	UnknownRequestType       Code = "unknown_request_type"       // no protocol accepts the request_type
	RefInvalid               Code = "ref_invalid"                // a reference has no URI, or one that is not allowed
	SchemaVersionUnsupported Code = "schema_version_unsupported" // the protocol does not name the schema_version
	IdempotencyMismatch      Code = "idempotency_mismatch"       // the idempotency key was used for another command
	NotAfterPassed           Code = "not_after_passed"           // not_after is not later than now and than not_before
	LimitUnsupported         Code = "limit_unsupported"          // the server's bus cannot limit the starts of this scope
	ScheduleInvalid          Code = "schedule_invalid"           // the times or the command of a schedule make no sense
	UnsupportedMediaType     Code = "unsupported_media_type"     // the body is not declared as application/json
	MethodNotAllowed         Code = "method_not_allowed"         // the path exists, but not with this method
	// TooLarge: the body, a part of it, or the directive that it would make,
	// exceeds a limit of bytes, characters, entries, digits or levels.
	TooLarge Code = "too_large"
)

// The codes of requests for an object that does not exist or that the caller
// may not see.
const (
	NotFound     Code = "not_found"      // no such path
	JobNotFound  Code = "job_not_found"  // no such job for this tenant
	StepNotFound Code = "step_not_found" // the job has no such step
	WorkNotFound Code = "work_not_found" // no such work item
	LineNotFound Code = "line_not_found" // no such line of jobs
	// ScheduleNotFound: the tenant has no schedule of that name.
	ScheduleNotFound Code = "schedule_not_found"
)

// The codes of requests that conflict with the current state.
const (
	Conflict            Code = "conflict"             // concurrent requests kept changing the object; the caller may retry
	IllegalTransition   Code = "illegal_transition"   // the state does not allow it
	NothingToRun        Code = "nothing_to_run"       // a rerun would have no step to execute
	StaleAttempt        Code = "stale_attempt"        // the pair of attempt and lease is not the current one
	ContradictoryResult Code = "contradictory_result" // this attempt already reported another status
	RevConflict         Code = "rev_conflict"         // the work item is no longer at the expected revision
	NotOwner            Code = "not_owner"            // another worker holds the work item
	LineBusy            Code = "line_busy"            // a command of mode reject, and its line has a job
	NotBlocking         Code = "not_blocking"         // the job to release does not block its line
	PredecessorRefused  Code = "predecessor_refused"  // not tried after another of its line; the caller may retry both
	ScheduleLimit       Code = "schedule_limit"       // the tenant or the store has as many schedules as it may
)

// The codes of access and load.
const (
	Unauthenticated Code = "unauthenticated" // no valid credential
	Forbidden       Code = "forbidden"       // the credential does not cover this
	TenantLimit     Code = "tenant_limit"    // the tenant's limit of jobs in flight is reached
	LineFull        Code = "line_full"       // the line has as many jobs as its protocol allows
	RateLimited     Code = "rate_limited"    // too many requests
)

// The codes of server failures.
const (
	StoreUnavailable  Code = "store_unavailable"  // the store does not answer; no data is known to be lost
	IssuerUnavailable Code = "issuer_unavailable" // the issuer of the token does not answer; the token may be valid
	ShuttingDown      Code = "shutting_down"      // this process drains; another one may accept the request
	Internal          Code = "internal"           // a fault of the server; only the log has details
)

// definition is the meaning of a code.
type definition struct {
	code   Code
	status int
	title  string
}

// definitions holds all codes, by status.
var definitions = []definition{
	{InvalidJSON, http.StatusBadRequest, "The body is not valid JSON"},
	{InvalidEnvelope, http.StatusBadRequest, "The request is not valid"},
	{Unauthenticated, http.StatusUnauthorized, "Authentication is required"},
	{Forbidden, http.StatusForbidden, "Access is denied"},
	{NotFound, http.StatusNotFound, "No such resource"},
	{JobNotFound, http.StatusNotFound, "No such job"},
	{StepNotFound, http.StatusNotFound, "No such step"},
	{WorkNotFound, http.StatusNotFound, "No such work item"},
	{LineNotFound, http.StatusNotFound, "No such line"},
	{ScheduleNotFound, http.StatusNotFound, "No such schedule"},
	{MethodNotAllowed, http.StatusMethodNotAllowed, "The method is not allowed here"},
	{Conflict, http.StatusConflict, "Concurrent changes to the object interfered"},
	{IllegalTransition, http.StatusConflict, "The current state does not allow this"},
	{NothingToRun, http.StatusConflict, "No step is left to execute"},
	{StaleAttempt, http.StatusConflict, "The attempt is not the current one"},
	{ContradictoryResult, http.StatusConflict, "The attempt already reported a different result"},
	{RevConflict, http.StatusConflict, "The work item is at a different revision"},
	{NotOwner, http.StatusConflict, "The work item has another owner"},
	{LineBusy, http.StatusConflict, "The order key has a job already"},
	{NotBlocking, http.StatusConflict, "The job does not block its line"},
	{PredecessorRefused, http.StatusConflict, "A command before it with the same order key was refused"},
	{ScheduleLimit, http.StatusConflict, "There are too many schedules"},
	{TooLarge, http.StatusRequestEntityTooLarge, "The request is too large"},
	{UnsupportedMediaType, http.StatusUnsupportedMediaType, "The content type is not supported"},
	{PayloadInvalid, http.StatusUnprocessableEntity, "The payload does not match its schema"},
	{UnknownRequestType, http.StatusUnprocessableEntity, "The request type is unknown"},
	{RefInvalid, http.StatusUnprocessableEntity, "A reference is not valid"},
	{SchemaVersionUnsupported, http.StatusUnprocessableEntity, "The schema version is not supported"},
	{IdempotencyMismatch, http.StatusUnprocessableEntity, "The idempotency key belongs to another command"},
	{NotAfterPassed, http.StatusUnprocessableEntity, "The job would expire before it may begin"},
	{LimitUnsupported, http.StatusUnprocessableEntity, "The server cannot limit this scope"},
	{ScheduleInvalid, http.StatusUnprocessableEntity, "The schedule is not valid"},
	{TenantLimit, http.StatusTooManyRequests, "The tenant has too many jobs in flight"},
	{LineFull, http.StatusTooManyRequests, "Too many jobs of the order key wait"},
	{RateLimited, http.StatusTooManyRequests, "Too many requests"},
	{Internal, http.StatusInternalServerError, "Internal error"},
	{StoreUnavailable, http.StatusServiceUnavailable, "The store is unavailable"},
	{IssuerUnavailable, http.StatusServiceUnavailable, "The issuer of the token is unavailable"},
	{ShuttingDown, http.StatusServiceUnavailable, "The server is shutting down"},
}

// Codes returns all codes, ordered by HTTP status. The caller owns the slice.
func Codes() []Code {
	codes := make([]Code, len(definitions))
	for i := range definitions {
		codes[i] = definitions[i].code
	}
	return codes
}

// define returns the code's definition, or that of [Internal] for an unknown
// code.
func define(code Code) definition {
	for i := range definitions {
		if definitions[i].code == code {
			return definitions[i]
		}
	}
	return definition{Internal, http.StatusInternalServerError, "Internal error"}
}

// Status returns the code's HTTP status, or 500 for an unknown code.
func (c Code) Status() int { return define(c).status }

// Title returns the code's sentence for people, without a full stop. It is the
// same for every problem with the code.
func (c Code) Title() string { return define(c).title }

// Type returns the URI that identifies the kind of problem, RFC 9457's type.
func (c Code) Type() string { return "urn:lucius:problem:" + string(define(c).code) }
