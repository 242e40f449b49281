package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The limits of openapi.yaml on requests, in characters, entries and seconds.
const (
	MaxTenantID   = 128        // The longest tenant_id.
	MaxScopeName  = 128        // The longest name of what a pause stops, in bytes.
	MaxResolved   = 32         // How many steps a rerun may resolve.
	MaxDocID      = 256        // The longest doc_id, in bytes.
	MaxName       = 128        // The longest id, owner, service, step type or request id.
	MaxReason     = 1024       // The longest reason of a control or operator's request.
	MaxFilters    = 64         // How many services or step types a claim may name.
	MaxClaim      = 100        // How many items one claim may ask for.
	MaxLease      = 86400      // The longest lease_seconds.
	MaxClaimWait  = 60         // The longest wait_seconds.
	MaxRetryAfter = 604800     // The longest retry_after_seconds.
	MaxOutboxID   = 255        // The longest outbox_id.
	MaxOutboxIDs  = 1000       // How many rows an operator's retry may name.
	MaxRetryLimit = 10000      // The largest limit of an operator's retry.
	MaxURI        = 2048       // The longest uri of a reference.
	MaxRef        = 8 << 10    // The size of a reference as it was sent, in bytes.
	MaxPage       = 1000       // How many entries a page may hold.
	DefaultPage   = 100        // How many entries a page holds unless asked otherwise.
	MaxPageToken  = 1024       // The longest page_token.
	MaxMinutes    = 60         // The largest minutes of the operators' views.
	MaxBatch      = 100        // How many commands or completions a batch may hold.
	MaxRetryJobs  = 1000       // How many jobs a retry may name.
	MaxBulkJobs   = 10_000     // How many jobs an operation changes, unless its limit is lower.
	MaxRetryRate  = 1000       // The largest rate_per_second.
	MaxRamp       = 3600       // The largest ramp_seconds.
	MaxPause      = 31536000   // The largest for_seconds of a pause or a closure.
	MaxStarts     = 1000000000 // The largest count of a limit.
	MaxRunning    = 10_000     // The largest max_running of a limit.
	MaxMark       = 2592000    // The largest for_seconds of a mark.

	MaxInbox = 100 // How many commands of the inbox a request may name.

	MaxOlderThan = 10 * 365 * 24 * 3600 // The largest older_than_seconds.
)

// Check returns what is wrong with the request by itself.
func (c *ClaimRequest) Check() []apierror.Violation {
	var v violations
	v.id("/owner", c.Owner)
	v.list("/services", c.Services, "take any", MaxFilters, MaxName)
	v.list("/step_types", c.StepTypes, "take any", MaxFilters, MaxName)
	v.number("/max", float64(c.Max), MaxClaim)
	v.number("/wait_seconds", c.WaitSeconds, MaxClaimWait)
	v.number("/lease_seconds", c.LeaseSeconds, MaxLease)
	v.text("/version", c.Version, 0, MaxName)
	v.printable("/version", c.Version)
	v.text("/host", c.Host, 0, MaxName)
	v.printable("/host", c.Host)
	v.id("/request_id", c.RequestID)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *WorkVerb) Check() []apierror.Violation {
	var v violations
	v.verb(*c)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *WorkHeartbeat) Check() []apierror.Violation {
	var v violations
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.progress(c.Progress)
	return v
}

// Check returns what is wrong with the batch as a whole: each completion is checked, and
// refused, by itself.
func (c *WorkCompletionBatch) Check() []apierror.Violation {
	return CheckBatch("/items", len(c.Items))
}

// CheckBatch returns what is wrong with the number of entries of a batch.
func CheckBatch(pointer string, entries int) []apierror.Violation {
	var v violations
	if entries == 0 {
		v.add(pointer, "is required and must not be empty")
	}
	if entries > MaxBatch {
		v.exceeds(pointer, fmt.Sprintf("must not hold more than %d entries", MaxBatch))
	}
	return v
}

// Check returns what is wrong with the request by itself.
func (c *WorkFailure) Check() []apierror.Violation {
	var v violations
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.text("/error/code", c.Error.Code, 0, MaxName)
	v.number("/retry_after_seconds", c.RetryAfterSeconds, MaxRetryAfter)
	v.throttle(c.Scope, c.RetryAfterSeconds, c.Retryable, "unless retryable is true")
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ControlRequest) Check() []apierror.Violation {
	var v violations
	v.reason(c.Reason, 0)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ReleaseRequest) Check() []apierror.Violation {
	var v violations
	v.text("/jobId", c.JobID, 1, MaxName)
	v.reason(c.Reason, 0)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *LineCancelRequest) Check() []apierror.Violation {
	var v violations
	v.reason(c.Reason, 1)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *RescheduleRequest) Check() []apierror.Violation {
	var v violations
	if c.NotBefore.IsZero() && c.DelaySeconds == nil && c.NotAfter.IsZero() && !c.NeverExpires {
		v.add("", "must name not_before, delay_seconds, not_after or never_expires")
	}
	if c.DelaySeconds != nil {
		v.number("/delay_seconds", float64(*c.DelaySeconds), int(statemachine.MaxAhead.Seconds()))
		if !c.NotBefore.IsZero() {
			v.add("/delay_seconds", "must not be set if not_before is")
		}
	}
	if c.NeverExpires && !c.NotAfter.IsZero() {
		v.add("/never_expires", "must not be set if not_after is")
	}
	now := time.Now()
	latest := now.Add(statemachine.MaxAhead)
	if c.NotBefore.After(latest) {
		v.add("/not_before", "must be at most 366 days ahead")
	}
	switch {
	case c.NotAfter.After(latest):
		v.add("/not_after", "must be at most 366 days ahead")
	case !c.NotAfter.IsZero() && !c.NotAfter.After(now):
		v = append(v, apierror.Violation{
			Pointer: "/not_after", Message: "must be later than now and than not_before", Code: apierror.NotAfterPassed,
		})
	}
	v.reason(c.Reason, 0)
	return v
}

// Dates returns the job's new dates: nil for one that stays, and the zero time for one that is removed, as a
// not_before that has passed is.
func (c *RescheduleRequest) Dates(now time.Time) (notBefore, notAfter *time.Time) {
	begin := c.NotBefore.Time
	if c.DelaySeconds != nil {
		begin = now.Add(time.Duration(*c.DelaySeconds) * time.Second)
	}
	if !begin.IsZero() {
		if begin = begin.UTC().Truncate(time.Millisecond); !begin.After(now) {
			begin = time.Time{}
		}
		notBefore = &begin
	}
	if !c.NotAfter.IsZero() || c.NeverExpires {
		end := c.NotAfter.UTC().Truncate(time.Millisecond)
		notAfter = &end
	}
	return notBefore, notAfter
}

// Check returns what is wrong with the request by itself.
func (c *PrioritizeRequest) Check() []apierror.Violation {
	var v violations
	if c.Priority == "" {
		v.add("/priority", "is required")
	}
	v.priority(c.Priority)
	v.reason(c.Reason, 0)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *MarkRequest) Check() []apierror.Violation {
	var v violations
	v.id("/finding_id", c.FindingID)
	v.optional("/tenant_id", c.TenantID)
	if !c.State.Valid() {
		v.add("/state", "must be open, acknowledged or snoozed")
	}
	v.text("/note", c.Note, 0, MaxReason)
	v.printable("/note", c.Note)
	v.number("/for_seconds", c.ForSeconds, MaxMark)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *AdminWorkRequest) Check() []apierror.Violation {
	var v violations
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 1)
	v.id("/request_id", c.RequestID)
	v.reason(c.Reason, 0)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *OutboxRetryRequest) Check() []apierror.Violation {
	var v violations
	v.list("/outbox_ids", c.OutboxIDs, "name no ids", MaxOutboxIDs, MaxOutboxID)
	filtered := c.TenantID != nil || c.JobID != nil || c.Lane != nil || c.OlderThanSeconds != 0 || c.Limit != 0
	if len(c.OutboxIDs) > 0 && filtered {
		v.add("/outbox_ids", "must not be combined with filters")
	}
	v.filter("/tenant_id", c.TenantID)
	v.filter("/jobId", c.JobID)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
	}
	v.number("/older_than_seconds", c.OlderThanSeconds, MaxOlderThan)
	v.number("/limit", float64(c.Limit), MaxRetryLimit)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *InboxRetryRequest) Check() []apierror.Violation {
	return checkInbox(c.CommandIDs, c.All, c.Reason, 0)
}

// Check returns what is wrong with the request by itself.
func (c *InboxDiscardRequest) Check() []apierror.Violation {
	v := checkInbox(c.CommandIDs, c.All, c.Reason, 1)
	switch {
	case c.State != nil && !c.All:
		v.add("/state", "must be absent unless all is true")
	case c.State != nil && !c.State.Valid():
		v.add("/state", "must be waiting or refused")
	}
	return v
}

func checkInbox(ids []string, all bool, reason string, shortest int) violations {
	var v violations
	v.list("/command_ids", ids, "name no ids", MaxInbox, MaxName)
	if all == (len(ids) > 0) {
		v.add("/all", "must be true unless command_ids names some, and then be absent")
	}
	v.reason(reason, shortest)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *RerunRequest) Check() []apierror.Violation {
	var v violations
	v.from(c.From)
	if c.FromStep != nil {
		v.text("/from_step", *c.FromStep, 1, MaxName)
		if c.From != "" {
			v.add("/from_step", "must not be combined with from")
		}
	}
	for _, text := range []*json.RawMessage{&c.Payload, &c.PayloadPatch} {
		if string(*text) == "null" {
			*text = nil // It is absent, as in a command.
		}
	}
	v.ref("/input_ref", &c.InputRef)
	v.ref("/output_ref", &c.OutputRef)
	v.ref("/workspace_ref", &c.WorkspaceRef)
	if len(c.Resolve) > MaxResolved {
		v.exceeds("/resolve", fmt.Sprintf("must not hold more than %d steps", MaxResolved))
		return v
	}
	seen := map[string]bool{}
	for i := range c.Resolve {
		at := "/resolve/" + strconv.Itoa(i)
		v.text(at+"/step_id", c.Resolve[i].StepID, 1, MaxName)
		if seen[c.Resolve[i].StepID] {
			v.add(at+"/step_id", "must not name a step twice")
		}
		seen[c.Resolve[i].StepID] = true
		if v.ref(at+"/output_ref", &c.Resolve[i].OutputRef); c.Resolve[i].OutputRef == nil {
			v.add(at+"/output_ref", "is required")
		}
	}
	if c.Protocol != "" && !c.Protocol.Valid() {
		v.add("/protocol", "must be kept or current")
	}
	if c.Callbacks != "" && !c.Callbacks.Valid() {
		v.add("/callbacks", "must be keep or none")
	}
	v.priority(c.Priority)
	for _, key := range v.tags(c.Tags) {
		if strings.HasPrefix(key, statemachine.SystemTag) {
			v.add(string(jsontext.Pointer("/tags").AppendToken(key)), "is a tag of the system")
		}
	}
	v.reason(c.Reason, 0)
	return v
}

// RefTo returns the reference to a URI.
func RefTo(uri string) json.RawMessage {
	text, _ := json.Marshal(map[string]string{"uri": uri}) // Two strings always encode.
	return text
}

// ParseResolved returns a step that was done by hand, given as "STEP=URI" of its output, and whether
// the text has this form.
func ParseResolved(text string) (ResolvedStep, bool) {
	step, uri, ok := strings.Cut(text, "=")
	return ResolvedStep{StepID: step, OutputRef: RefTo(uri)}, ok && step != "" && uri != ""
}

// All reports whether the filter selects all jobs.
func (f *OperationFilter) All() bool { return reflect.ValueOf(f).Elem().IsZero() }

// Check returns what is wrong with the request by itself.
func (c *RetryRequest) Check() []apierror.Violation {
	var v violations
	v.list("/job_ids", c.JobIDs, "name no ids", MaxRetryJobs, MaxName)
	filtered := c.TenantID != nil || c.RequestType != nil || c.Service != nil || c.StepType != nil || c.ErrorCode != nil ||
		c.DocID != nil || c.Tags != nil ||
		!c.CreatedAfter.IsZero() || !c.CreatedBefore.IsZero() || !c.EndedAfter.IsZero() || !c.EndedBefore.IsZero() || c.Limit != 0
	if len(c.JobIDs) > 0 && filtered {
		v.add("/job_ids", "must not be combined with filters")
	}
	v.filter("/tenant_id", c.TenantID)
	v.filter("/request_type", c.RequestType)
	v.filter("/service", c.Service)
	v.filter("/step_type", c.StepType)
	v.filter("/error_code", c.ErrorCode)
	v.document(c.DocID, c.Tags)
	v.from(c.From)
	v.priority(c.Priority)
	v.pace(c.Limit, c.RatePerSecond, c.Reason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *BulkRequest) Check() []apierror.Violation {
	var v violations
	v.list("/job_ids", c.JobIDs, "name no ids", MaxRetryJobs, MaxName)
	filtered := c.TenantID != nil || c.RequestType != nil || c.State != nil || c.Service != nil || c.StepType != nil ||
		c.ErrorCode != nil || c.DocID != nil || c.Tags != nil || !c.CreatedAfter.IsZero() || !c.CreatedBefore.IsZero() || c.Limit != 0
	if len(c.JobIDs) > 0 && filtered {
		v.add("/job_ids", "must not be combined with filters")
	}
	v.filter("/tenant_id", c.TenantID)
	v.filter("/request_type", c.RequestType)
	if c.State != nil && !c.State.Valid() {
		v.add("/state", "must be the state of a job")
	}
	v.filter("/service", c.Service)
	v.filter("/step_type", c.StepType)
	v.filter("/error_code", c.ErrorCode)
	v.document(c.DocID, c.Tags)
	v.pace(c.Limit, c.RatePerSecond, c.Reason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ResumeRequest) Check() []apierror.Violation {
	var v violations
	if c.RampSeconds != nil {
		v.number("/ramp_seconds", *c.RampSeconds, MaxRamp)
	}
	v.reason(c.Reason, 0)
	return v
}

// violations collects what is wrong with one request.
type violations []apierror.Violation

// add adds a violation.
func (v *violations) add(pointer, message string) {
	*v = append(*v, apierror.Violation{Pointer: pointer, Message: message})
}

// exceeds adds the violation of a value that exceeds a limit of its size.
func (v *violations) exceeds(pointer, message string) {
	*v = append(*v, apierror.Violation{Pointer: pointer, Message: message, Code: apierror.TooLarge})
}

// verb checks the fields that the verbs of the pull queue share.
func (v *violations) verb(c WorkVerb) {
	v.id("/owner", c.Owner)
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 1)
	v.id("/request_id", c.RequestID)
}

// pace checks how many jobs an operation is for, how fast, and why.
func (v *violations) pace(limit int32, rate float64, reason string) {
	v.number("/limit", float64(limit), MaxRetryLimit)
	v.number("/rate_per_second", rate, MaxRetryRate)
	v.reason(reason, 0)
}

// priority checks a class, if there is one.
func (v *violations) priority(p Priority) {
	if p != "" && !p.Valid() {
		v.add("/priority", "must be normal or bulk")
	}
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

// filter checks a text that narrows a choice, unless it is absent: an empty one would
// select everything.
func (v *violations) filter(pointer string, value *string) {
	if value != nil && *value == "" {
		v.add(pointer, "must not be empty: leave it out to select all")
		return
	}
	v.optional(pointer, value)
}

// optional checks a text unless it is absent.
func (v *violations) optional(pointer string, value *string) {
	switch {
	case value == nil:
	case *value == "":
		v.add(pointer, "must not be empty: leave it out")
	default:
		v.text(pointer, *value, 1, MaxName)
	}
}

// id checks the id that a caller gives itself or its request. It is compared, logged
// and shown, so it must not differ from another one in what readers do not see.
func (v *violations) id(pointer, id string) {
	v.text(pointer, id, 1, MaxName)
	if strings.TrimSpace(id) != id {
		v.add(pointer, "must not be blank, nor begin or end with a blank")
	}
	v.printable(pointer, id)
}

// reason checks a reason, which logs and histories show.
func (v *violations) reason(reason string, shortest int) {
	v.text("/reason", reason, shortest, MaxReason)
	v.printable("/reason", reason)
}

// printable checks that a text has no control characters.
func (v *violations) printable(pointer, text string) {
	if strings.ContainsFunc(text, unicode.IsControl) {
		v.add(pointer, "must not contain control characters")
	}
}

// document checks the filters by document and tags.
func (v *violations) document(docID *string, tags Tags) {
	switch {
	case docID == nil:
	case *docID == "":
		v.add("/doc_id", "must not be empty: leave it out to select all")
	case len(*docID) > MaxDocID:
		v.exceeds("/doc_id", fmt.Sprintf("must be at most %d bytes", MaxDocID))
	}
	if tags != nil && len(tags) == 0 {
		v.add("/tags", "must not be empty: leave it out")
	}
	v.tags(tags)
}

// tags checks tags, and returns their keys if there are not too many.
func (v *violations) tags(tags Tags) []string {
	if len(tags) > statemachine.MaxTags {
		v.exceeds("/tags", fmt.Sprintf("must not hold more than %d tags", statemachine.MaxTags))
		return nil
	}
	keys := slices.Sorted(maps.Keys(tags))
	for _, key := range keys {
		if fault := statemachine.TagFault(key, tags[key]); fault != "" {
			v.add(string(jsontext.Pointer("/tags").AppendToken(key)), fault)
		}
	}
	return keys
}

// list checks a list of strings that selects, if it is not absent: an empty one would
// select everything. without says what leaving it out means.
func (v *violations) list(pointer string, values []string, without string, most, longest int) {
	if values != nil && len(values) == 0 {
		v.add(pointer, "must not be empty: leave it out to "+without)
	}
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

// throttle checks the scope of a throttled attempt, which may be absent. retried says that the
// report has another attempt follow, and unless what it lacks otherwise.
func (v *violations) throttle(scope ThrottleScope, retryAfter float64, retried bool, unless string) {
	switch {
	case scope == "":
		return
	case !scope.Valid():
		v.add("/scope", "must be service or tenant")
	case !retried:
		v.add("/scope", "must not be set "+unless)
	}
	if retryAfter == 0 {
		v.add("/retry_after_seconds", "is required with scope, and must be more than 0")
	}
}

// progress checks the progress of a heartbeat, which may be absent.
func (v *violations) progress(p *Progress) {
	if p != nil {
		v.number("/progress/fraction", p.Fraction, 1)
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
	case !jsontext.Value(*ref).IsValid():
		// encoding/json accepts it. The next step's directive would hold it, which readers
		// that are as strict as for commands refuse, this server's among them.
		v.add(pointer, "must have each name once in an object, and no half of a surrogate pair")
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
		*v = append(*v, apierror.Violation{Pointer: pointer, Message: message, Code: apierror.RefInvalid})
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
