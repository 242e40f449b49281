package commands

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The limits of a command, in bytes of UTF-8 unless stated otherwise.
const (
	MaxTenantID       = 128
	MaxRequestType    = 128
	MaxSchemaVersion  = 32
	MaxDocID          = 256
	MaxIdempotencyKey = 255
	MaxCorrelationID  = 128
	MaxOrderKey       = 256
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
	Mode  statemachine.Mode
	DocID string
	Tags  statemachine.Tags
	// IdempotencyKey comes from the body or from the Idempotency-Key header.
	IdempotencyKey string
	CorrelationID  string
	// Traceparent comes from the body, else from the traceparent header.
	Traceparent  string
	CallbackURLs []string
	// NotBefore and NotAfter are the job's dates, see [statemachine.Job].
	NotBefore, NotAfter time.Time
	// OrderKey and OrderMode replace those of the protocol's order.
	OrderKey  string
	OrderMode statemachine.OrderMode
	// Priority is the name of the class; empty leaves it to the protocol.
	Priority     string
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

// Policy holds the operator's settings for commands.
type Policy struct {
	// AllowedRefs are the schemes ("s3") and the prefixes
	// ("https://store.example.com/in/") of which a reference's uri must have one.
	// An entry with a colon is a prefix. One that ends neither in a slash nor in
	// a colon ends at a segment: s3://bucket allows s3://bucket/a and not
	// s3://bucket2/a. A uri that leaves its prefix by a ".." segment is not
	// allowed. Optional. Defaults to any uri.
	AllowedRefs []string
	// MaxPayloadBytes is the largest payload, as sent; at most
	// [LargestPayload]. Optional. Defaults to [DefaultMaxPayload].
	MaxPayloadBytes int
	// CheckCallbackURL returns why no webhook may go to the URL, as the continuation
	// of "callback URL …", or "". It is called before the other checks, because it
	// knows the allowed schemes. Optional. Defaults to accepting any absolute http or
	// https URL. It must not block.
	CheckCallbackURL func(url string) string
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)

// Validate names the first invalid field.
func (p Policy) Validate() error {
	if p.MaxPayloadBytes < 0 || p.MaxPayloadBytes > LargestPayload {
		return fmt.Errorf("MaxPayloadBytes is %d and must be from 0 to %d", p.MaxPayloadBytes, LargestPayload)
	}
	for i, entry := range p.AllowedRefs {
		name, _, _ := strings.Cut(entry, ":")
		if !scheme.MatchString(name) || strings.ContainsFunc(entry, unicode.IsControl) {
			return fmt.Errorf("AllowedRefs[%d] is %q and must be a scheme such as s3, or a prefix that begins with one", i, entry)
		}
	}
	return nil
}

// allows reports whether a reference may have the uri.
//
// Source: Option B spec, 5.2.
func (p Policy) allows(uri string) bool {
	if len(p.AllowedRefs) == 0 {
		return true
	}
	for _, entry := range p.AllowedRefs {
		if !strings.Contains(entry, ":") {
			if name, _, found := strings.Cut(uri, ":"); found && strings.EqualFold(name, entry) {
				return true
			}
			continue
		}
		if hasPrefix(uri, entry) && !hasDotSegment(uri) {
			return true
		}
	}
	return false
}

// callbackFault returns why no webhook may go to the URL, or "".
func (p Policy) callbackFault(text string) string {
	if p.CheckCallbackURL != nil {
		if fault := p.CheckCallbackURL(text); fault != "" {
			return fault
		}
	}
	target, err := url.Parse(text)
	switch {
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Hostname() == "":
		return "must be an absolute http or https URL"
	case target.User != nil:
		return "must not carry a user name or password"
	}
	return ""
}

// hasPrefix reports whether uri begins with prefix, and prefix ends at a segment.
func hasPrefix(uri, prefix string) bool {
	rest, found := strings.CutPrefix(uri, prefix)
	if !found || rest == "" {
		return found
	}
	return strings.ContainsRune("/:", rune(prefix[len(prefix)-1])) || strings.ContainsRune("/?#", rune(rest[0]))
}

// plainDots decodes the encodings in which a dot segment may hide.
var plainDots = strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/", `\`, "/")

// hasDotSegment reports whether a segment of the uri's path is "." or "..".
func hasDotSegment(uri string) bool {
	path := uri
	if end := strings.IndexAny(uri, "?#"); end >= 0 {
		path = uri[:end]
	}
	for segment := range strings.SplitSeq(plainDots.Replace(path), "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
