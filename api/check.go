package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/problem"
)

// The limits of openapi.yaml on requests, in characters, entries and seconds.
const (
	MaxTenantID   = 128     // The longest tenant_id.
	MaxName       = 128     // The longest id, owner, service, step type or request id.
	MaxReason     = 1024    // The longest reason of a control or operator's request.
	MaxFilters    = 64      // How many services or step types a claim may name.
	MaxClaim      = 100     // How many items one claim may ask for.
	MaxClaimLease = 86400   // The longest lease_seconds.
	MaxRetryAfter = 604800  // The longest retry_after_seconds.
	MaxOutboxID   = 255     // The longest outbox_id.
	MaxOutboxIDs  = 1000    // How many rows an operator's retry may name.
	MaxRetryLimit = 10000   // The largest limit of an operator's retry.
	MaxURI        = 2048    // The longest uri of a reference.
	MaxRef        = 8 << 10 // The size of a reference as it was sent, in bytes.
	MaxPage       = 1000    // How many entries a page may hold.
	DefaultPage   = 100     // How many entries a page holds unless asked otherwise.
	MaxPageToken  = 1024    // The longest page_token.
	MaxBatch      = 100     // How many commands a batch may hold.
	MaxRetryJobs  = 1000    // How many jobs a retry may name.
	MaxRetryRate  = 1000    // The largest rate_per_second.
	MaxRamp       = 3600    // The largest ramp_seconds.

	MaxOlderThan = 10 * 365 * 24 * 3600 // The largest older_than_seconds.
)

// Check returns what is wrong with the request by itself.
func (c *ClaimRequest) Check() []problem.Violation {
	var v violations
	v.text("/owner", c.Owner, 1, MaxName)
	v.texts("/services", c.Services, MaxFilters, MaxName)
	v.texts("/step_types", c.StepTypes, MaxFilters, MaxName)
	v.number("/max", float64(c.Max), MaxClaim)
	v.atLeast("/wait_seconds", c.WaitSeconds, 0)
	v.number("/lease_seconds", c.LeaseSeconds, MaxClaimLease)
	v.text("/request_id", c.RequestID, 1, MaxName)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *WorkVerb) Check() []problem.Violation {
	var v violations
	v.verb(*c)
	return v
}

// Check returns what is wrong with the request by itself, and turns a null
// reference into an absent one.
func (c *WorkCompletion) Check() []problem.Violation {
	var v violations
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.ref("/output_ref", &c.OutputRef)
	v.ref("/result_ref", &c.ResultRef)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *WorkFailure) Check() []problem.Violation {
	var v violations
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.text("/error/code", c.Error.Code, 0, MaxName)
	v.number("/retry_after_seconds", c.RetryAfterSeconds, MaxRetryAfter)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ControlRequest) Check() []problem.Violation {
	var v violations
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *AdminWorkRequest) Check() []problem.Violation {
	var v violations
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 0)
	v.text("/request_id", c.RequestID, 0, MaxName)
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *OutboxRetryRequest) Check() []problem.Violation {
	var v violations
	v.ids("/outbox_ids", c.OutboxIDs, MaxOutboxIDs, MaxOutboxID)
	filtered := c.TenantID != "" || c.JobID != "" || c.Lane != nil || c.OlderThanSeconds != 0 || c.Limit != 0
	if len(c.OutboxIDs) > 0 && filtered {
		v.add("/outbox_ids", "must not be combined with filters")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/jobId", c.JobID, 0, MaxName)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
	}
	v.number("/older_than_seconds", c.OlderThanSeconds, MaxOlderThan)
	v.number("/limit", float64(c.Limit), MaxRetryLimit)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *RerunRequest) Check() []problem.Violation {
	var v violations
	v.from(c.From)
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *RetryRequest) Check() []problem.Violation {
	var v violations
	v.ids("/job_ids", c.JobIDs, MaxRetryJobs, MaxName)
	filtered := c.TenantID != "" || c.RequestType != "" || c.StepType != "" || c.ErrorCode != "" ||
		!c.CreatedAfter.IsZero() || !c.CreatedBefore.IsZero() || c.Limit != 0
	if len(c.JobIDs) > 0 && filtered {
		v.add("/job_ids", "must not be combined with filters")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/request_type", c.RequestType, 0, MaxName)
	v.text("/step_type", c.StepType, 0, MaxName)
	v.text("/error_code", c.ErrorCode, 0, MaxName)
	v.from(c.From)
	v.number("/limit", float64(c.Limit), MaxRetryLimit)
	v.number("/rate_per_second", c.RatePerSecond, MaxRetryRate)
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *PauseRequest) Check() []problem.Violation {
	var v violations
	scopes := 0
	for _, named := range []bool{c.TenantID != "", c.ProtocolID != "", c.Lane != nil, c.All} {
		if named {
			scopes++
		}
	}
	if scopes != 1 {
		v.add("", "must hold exactly one of tenant_id, protocol_id, lane and all")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/protocol_id", c.ProtocolID, 0, MaxName)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
	}
	v.text("/reason", c.Reason, 1, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ResumeRequest) Check() []problem.Violation {
	var v violations
	if c.RampSeconds != nil {
		v.number("/ramp_seconds", *c.RampSeconds, MaxRamp)
	}
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// violations collects what is wrong with one request.
type violations []problem.Violation

// add adds a violation.
func (v *violations) add(pointer, message string) {
	*v = append(*v, problem.Violation{Pointer: pointer, Message: message})
}

// exceeds adds the violation of a value that exceeds a limit of its size.
func (v *violations) exceeds(pointer, message string) {
	*v = append(*v, problem.Violation{Pointer: pointer, Message: message, Code: problem.TooLarge})
}

// verb checks the fields that the verbs of the pull queue share.
func (v *violations) verb(c WorkVerb) {
	v.text("/owner", c.Owner, 1, MaxName)
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 1)
	v.text("/request_id", c.RequestID, 1, MaxName)
}

// from checks the starting point of a rerun, which may be absent.
func (v *violations) from(from RerunFrom) {
	if from != "" && !from.Valid() {
		v.add("/from", "must be failed or start")
	}
}

// text checks a string's length in characters.
func (v *violations) text(pointer, value string, shortest, longest int) {
	if value == "" && shortest > 0 {
		v.add(pointer, "is required and must not be empty")
	}
	if len(value) > longest && utf8.RuneCountInString(value) > longest {
		v.exceeds(pointer, fmt.Sprintf("must not be longer than %d characters", longest))
	}
}

// ids checks a list that selects by id: an empty one would select everything.
func (v *violations) ids(pointer string, values []string, most, longest int) {
	if values != nil && len(values) == 0 {
		v.add(pointer, "must not be empty: leave it out to name no ids")
	}
	v.texts(pointer, values, most, longest)
}

// texts checks a list of strings that must not be empty.
func (v *violations) texts(pointer string, values []string, most, longest int) {
	if len(values) > most {
		v.exceeds(pointer, fmt.Sprintf("must not hold more than %d entries", most))
		return
	}
	for i, value := range values {
		v.text(pointer+"/"+strconv.Itoa(i), value, 1, longest)
	}
}

// number checks that a number is not negative and not too large.
func (v *violations) number(pointer string, value float64, most int) {
	v.atLeast(pointer, value, 0)
	if value > float64(most) {
		v.add(pointer, fmt.Sprintf("must be at most %d", most))
	}
}

// atLeast checks a number's lower bound.
func (v *violations) atLeast(pointer string, value float64, least int) {
	if value < float64(least) {
		v.add(pointer, fmt.Sprintf("must be at least %d", least))
	}
}

// ref checks that a reference is an object with a URI and not too long, and turns
// null into an absent reference.
func (v *violations) ref(pointer string, ref *json.RawMessage) {
	trimmed := bytes.TrimLeft(*ref, " \t\r\n")
	switch {
	case len(trimmed) == 0:
	case bytes.Equal(trimmed, []byte("null")):
		*ref = nil
	case trimmed[0] != '{':
		v.add(pointer, "must be an object")
	case len(*ref) > MaxRef:
		v.exceeds(pointer, fmt.Sprintf("is %d bytes long; at most %d are allowed", len(*ref), MaxRef))
	default:
		v.uri(pointer+"/uri", *ref)
	}
}

// uri checks the URI of a reference. Any scheme will do: the allowed schemes bind
// applications only.
func (v *violations) uri(pointer string, ref json.RawMessage) {
	var members map[string]json.RawMessage
	var uri *string
	err := json.Unmarshal(ref, &members)
	if given, ok := members["uri"]; ok && err == nil {
		err = json.Unmarshal(given, &uri)
	}
	invalid := func(message string) {
		*v = append(*v, problem.Violation{Pointer: pointer, Message: message, Code: problem.RefInvalid})
	}
	switch {
	case err != nil:
		invalid("must be a string")
	case uri == nil:
		invalid("is required")
	case strings.TrimSpace(*uri) == "":
		invalid("must not be empty or blank")
	default:
		v.text(pointer, *uri, 0, MaxURI)
	}
}
