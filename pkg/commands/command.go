package commands

import (
	"encoding/json"

	"github.com/lucius-project/lucius/pkg/routing"
)

// The limits of a command, in bytes of UTF-8 unless stated otherwise.
const (
	MaxTenantID       = 128
	MaxRequestType    = 128
	MaxSchemaVersion  = 32
	MaxDocID          = 256
	MaxIdempotencyKey = 255
	MaxCorrelationID  = 128
	MaxURI            = 2048
	MaxCallbackURL    = 2048
	// MaxCallbackURLs is a number of URLs.
	MaxCallbackURLs = 8
	// MaxRef is the size of a reference object as sent.
	MaxRef = 8 << 10
	// DefaultMaxPayload is the size of the payload as sent, unless the policy sets
	// another limit.
	DefaultMaxPayload = 128 << 10
	// LargestPayload is the largest payload that a policy may allow. A row counts two
	// bytes a character, so with a payload of ASCII it still has room for the rest of
	// a directive: three references, ids and names.
	LargestPayload = 448 << 10
)

// MaxViolations is how many violations an error names; one more says how many are
// left out.
const MaxViolations = 100

// Command is a valid command. Optional fields that were absent are empty.
//
// The raw fields are the bytes of the body, verbatim. They alias it, so the
// body must not be changed as long as the command is in use.
//
// Source: Option B spec, 5.1.
type Command struct {
	TenantID      string
	RequestType   string
	SchemaVersion string
	// Mode is the mode that the request asks for; empty leaves it to the
	// protocol.
	Mode  routing.Mode
	DocID string
	// IdempotencyKey comes from the body or from the Idempotency-Key header.
	IdempotencyKey string
	CorrelationID  string
	// Traceparent comes from the body, else from the traceparent header.
	Traceparent  string
	CallbackURLs []string
	InputRef     json.RawMessage
	OutputRef    json.RawMessage
	WorkspaceRef json.RawMessage
	Payload      json.RawMessage
	// PayloadTree is the parsed payload, for JSON Schemas. It must not be changed.
	PayloadTree map[string]any
	// Hash is the SHA-256, in hex, of the canonical form of exactly tenant_id,
	// request_type, input_ref, output_ref, payload and schema_version.
	//
	// Source: Ledger and state model, Canonical JSON for idempotency.
	Hash string
}

// Headers are the headers of the request that may replace fields of the
// command. Empty ones are absent.
type Headers struct {
	// IdempotencyKey is the Idempotency-Key header, as a String of RFC 9651 in
	// quotation marks or as plain text. If the body has a key as well, both
	// must be equal.
	IdempotencyKey string
	// Traceparent is the traceparent header. It is used if the body has none, and
	// ignored if malformed, as W3C Trace Context demands.
	Traceparent string
}
