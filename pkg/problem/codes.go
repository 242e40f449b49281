package problem

import "net/http"

// Code is the machine-readable reason of a problem. Codes are part of the wire
// contract: new ones may be added, but none renamed or given another meaning.
type Code string

// The codes of invalid requests.
const (
	// InvalidJSON: the body is not JSON.
	InvalidJSON Code = "invalid_json"
	// InvalidEnvelope: a field or parameter is missing, unknown, of the wrong
	// type or out of range, or a parameter is too long.
	InvalidEnvelope Code = "invalid_envelope"
	// PayloadInvalid: the payload does not match a step's JSON Schema.
	PayloadInvalid Code = "payload_invalid"
	// UnknownRequestType: no protocol accepts the request_type.
	UnknownRequestType Code = "unknown_request_type"
	// RefInvalid: a reference has no URI, or one that is not allowed.
	RefInvalid Code = "ref_invalid"
	// SchemaVersionUnsupported: the protocol does not name the schema_version.
	SchemaVersionUnsupported Code = "schema_version_unsupported"
	// IdempotencyMismatch: the idempotency key was used for another command.
	IdempotencyMismatch Code = "idempotency_mismatch"
	// TooLarge: the body, a part of it, or the directive that it would make,
	// exceeds a limit of bytes, characters, entries, digits or levels.
	TooLarge Code = "too_large"
	// UnsupportedMediaType: the body is not declared as application/json.
	UnsupportedMediaType Code = "unsupported_media_type"
	// MethodNotAllowed: the path exists, but not with this method.
	MethodNotAllowed Code = "method_not_allowed"
)

// The codes of requests for an object that does not exist or that the caller
// may not see.
const (
	// NotFound: no such path.
	NotFound Code = "not_found"
	// JobNotFound: no such job for this tenant.
	JobNotFound Code = "job_not_found"
	// StepNotFound: the job has no such step.
	StepNotFound Code = "step_not_found"
	// WorkNotFound: no such work item.
	WorkNotFound Code = "work_not_found"
)

// The codes of requests that conflict with the current state.
const (
	// Conflict: concurrent requests kept changing the same object; the caller
	// may retry.
	Conflict Code = "conflict"
	// IllegalTransition: the state does not allow it.
	IllegalTransition Code = "illegal_transition"
	// StaleAttempt: the pair of attempt and lease is not the current one.
	StaleAttempt Code = "stale_attempt"
	// ContradictoryResult: this attempt already reported another status.
	ContradictoryResult Code = "contradictory_result"
	// RevConflict: the work item is no longer at the expected revision.
	RevConflict Code = "rev_conflict"
	// NotOwner: another worker holds the work item.
	NotOwner Code = "not_owner"
)

// The codes of access and load.
const (
	// Unauthenticated: no valid credential.
	Unauthenticated Code = "unauthenticated"
	// Forbidden: the credential does not cover this.
	Forbidden Code = "forbidden"
	// TenantLimit: the tenant's limit of jobs in flight is reached.
	TenantLimit Code = "tenant_limit"
	// RateLimited: too many requests.
	RateLimited Code = "rate_limited"
)

// The codes of server failures.
const (
	// StoreUnavailable: the store does not answer. No data is known to be lost.
	StoreUnavailable Code = "store_unavailable"
	// IssuerUnavailable: the token cannot be checked, because its issuer does
	// not answer. The token may be valid.
	IssuerUnavailable Code = "issuer_unavailable"
	// ShuttingDown: this process drains; another one may accept the request.
	ShuttingDown Code = "shutting_down"
	// Internal: a fault of the server. Only the log has details.
	Internal Code = "internal"
)

// definition is the meaning of a code.
type definition struct {
	code   Code
	status int
	title  string
}

// definitions are all codes, by status.
var definitions = []definition{
	{InvalidJSON, http.StatusBadRequest, "The body is not valid JSON"},
	{InvalidEnvelope, http.StatusBadRequest, "The request is not valid"},
	{Unauthenticated, http.StatusUnauthorized, "Authentication is required"},
	{Forbidden, http.StatusForbidden, "Access is denied"},
	{NotFound, http.StatusNotFound, "No such resource"},
	{JobNotFound, http.StatusNotFound, "No such job"},
	{StepNotFound, http.StatusNotFound, "No such step"},
	{WorkNotFound, http.StatusNotFound, "No such work item"},
	{MethodNotAllowed, http.StatusMethodNotAllowed, "The method is not allowed here"},
	{Conflict, http.StatusConflict, "Concurrent changes got in the way"},
	{IllegalTransition, http.StatusConflict, "The present state does not allow this"},
	{StaleAttempt, http.StatusConflict, "The attempt is not the current one"},
	{ContradictoryResult, http.StatusConflict, "The attempt reported another result before"},
	{RevConflict, http.StatusConflict, "The work item has another revision"},
	{NotOwner, http.StatusConflict, "The work item has another owner"},
	{TooLarge, http.StatusRequestEntityTooLarge, "The request is too large"},
	{UnsupportedMediaType, http.StatusUnsupportedMediaType, "The content type is not supported"},
	{PayloadInvalid, http.StatusUnprocessableEntity, "The payload does not match its schema"},
	{UnknownRequestType, http.StatusUnprocessableEntity, "The request type is unknown"},
	{RefInvalid, http.StatusUnprocessableEntity, "A reference is not valid"},
	{SchemaVersionUnsupported, http.StatusUnprocessableEntity, "The schema version is not supported"},
	{IdempotencyMismatch, http.StatusUnprocessableEntity, "The idempotency key stands for another command"},
	{TenantLimit, http.StatusTooManyRequests, "The tenant has too many jobs in flight"},
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
