package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// head is the part of the Job row that names the job's rows in other partitions.
type head struct {
	entry entryRef // the schedule entry of the job's next deadline
	slot  slotRef  // its in-flight slot
	claim string   // row key of its idempotency claim
	// tombstone says that there is no job: its accept was abandoned, or it is purged.
	tombstone bool
}

// entryRef names a schedule entry within its job; the zero value names none.
type entryRef struct {
	Kind  Kind
	Due   time.Time
	Nonce string
}

// slotRef names an in-flight slot; the zero value names none. Jobs of a tenant with
// a limit take turns in its numbered slots; any other slot belongs to one job.
type slotRef struct {
	Partition string
	Row       string
	Numbered  bool
}

// jobRow is the content of a JOB row.
type jobRow struct {
	job  *statemachine.Job
	head *head
}

// jobColumns are the columns of the job itself.
//
// Source: Ledger and state model, Jobs table; Option B spec, 12.2.
var jobColumns = []column[jobRow]{
	text("job_id", func(r *jobRow) *string { return &r.job.ID }),
	text("tenant_id", func(r *jobRow) *string { return &r.job.TenantID }),
	text("tenant_bucket", func(r *jobRow) *string { return &r.job.TenantBucket }),
	text("request_type", func(r *jobRow) *string { return &r.job.RequestType }),
	text("schema_version", func(r *jobRow) *string { return &r.job.SchemaVersion }),
	text("protocol_id", func(r *jobRow) *string { return &r.job.ProtocolID }),
	text("protocol_version", func(r *jobRow) *string { return &r.job.ProtocolVersion }),
	text("mode", func(r *jobRow) *statemachine.Mode { return &r.job.Mode }),
	text("doc_id", func(r *jobRow) *string { return &r.job.DocID }),
	text("state", func(r *jobRow) *statemachine.JobState { return &r.job.State }),
	integer("rev", func(r *jobRow) *int64 { return &r.job.Rev }),
	flag("started", func(r *jobRow) *bool { return &r.job.Started }),
	text("current_step_id", func(r *jobRow) *string { return &r.job.CurrentStepID }),
	integer("current_step_index", func(r *jobRow) *int { return &r.job.CurrentStepIndex }),
	integer("attempts_total", func(r *jobRow) *int { return &r.job.AttemptsTotal }),
	text("idempotency_key", func(r *jobRow) *string { return &r.job.IdempotencyKey }),
	text("idempotency_hash", func(r *jobRow) *string { return &r.job.IdempotencyHash }),
	document("input_ref", func(r *jobRow) *json.RawMessage { return &r.job.InputRef }),
	document("output_ref", func(r *jobRow) *json.RawMessage { return &r.job.OutputRef }),
	document("workspace_ref", func(r *jobRow) *json.RawMessage { return &r.job.WorkspaceRef }),
	document("final_output", func(r *jobRow) *json.RawMessage { return &r.job.FinalOutput }),
	list("callback_urls", func(r *jobRow) *[]string { return &r.job.CallbackURLs },
		func(urls []string) string { return strings.Join(urls, "\n") },
		func(s string) ([]string, error) { return strings.Split(s, "\n"), nil }),
	text("correlation_id", func(r *jobRow) *string { return &r.job.CorrelationID }),
	text("traceparent", func(r *jobRow) *string { return &r.job.Traceparent }),
	text("rerun_of", func(r *jobRow) *string { return &r.job.RerunOf }),
	text("supersedes", func(r *jobRow) *string { return &r.job.Supersedes }),
	text("error_code", func(r *jobRow) *string { return &r.job.ErrorCode }),
	text("error_message", func(r *jobRow) *string { return &r.job.ErrorMessage }),
	instant("created_at", func(r *jobRow) *time.Time { return &r.job.CreatedAt }),
	instant("updated_at", func(r *jobRow) *time.Time { return &r.job.UpdatedAt }),
	instant("completed_at", func(r *jobRow) *time.Time { return &r.job.CompletedAt }),
}

// headColumns are the columns that the projected Jobs table does not have.
var headColumns = []column[jobRow]{
	instant("stage_at", func(r *jobRow) *time.Time { return &r.job.StageAt }),
	text("entry_kind", func(r *jobRow) *Kind { return &r.head.entry.Kind }),
	instant("entry_due", func(r *jobRow) *time.Time { return &r.head.entry.Due }),
	text("entry_nonce", func(r *jobRow) *string { return &r.head.entry.Nonce }),
	text("slot_partition", func(r *jobRow) *string { return &r.head.slot.Partition }),
	text("slot_row", func(r *jobRow) *string { return &r.head.slot.Row }),
	flag("slot_numbered", func(r *jobRow) *bool { return &r.head.slot.Numbered }),
	text("claim", func(r *jobRow) *string { return &r.head.claim }),
	flag("tombstone", func(r *jobRow) *bool { return &r.head.tombstone }),
}

var (
	jobCodec       = newCodec(slices.Concat(jobColumns, headColumns)...)
	projectedCodec = newCodec(jobColumns...) // for the projected Jobs table
)

func encodeJob(j *statemachine.Job, h *head, loaded tablestore.Properties) tablestore.Properties {
	return jobCodec.encode(&jobRow{j, h}, loaded)
}

func decodeJob(row *tablestore.Row, j *statemachine.Job, h *head) error {
	if err := jobCodec.decode(row, &jobRow{j, h}); err != nil {
		return err
	}
	if j.State == "" && !h.tombstone {
		return fmt.Errorf("the Job row of %s has no state", row.Key.Partition)
	}
	return nil
}

// stepCodec holds the columns of a STEP row.
//
// Source: Ledger and state model, Steps table; Option B spec, 12.3.
var stepCodec = newCodec(slices.Concat([]column[statemachine.Step]{
	text("step_id", func(s *statemachine.Step) *string { return &s.ID }),
	integer("step_index", func(s *statemachine.Step) *int { return &s.Index }),
	text("step_type", func(s *statemachine.Step) *string { return &s.Type }),
	text("service", func(s *statemachine.Step) *string { return &s.Service }),
	text("input", func(s *statemachine.Step) *statemachine.InputSource { return &s.Input }),
	text("payload_pointer", func(s *statemachine.Step) *string { return &s.PayloadPointer }),
	text("state", func(s *statemachine.Step) *statemachine.StepState { return &s.State }),
	integer("attempt_no", func(s *statemachine.Step) *int { return &s.AttemptNo }),
	text("lease_id", func(s *statemachine.Step) *string { return &s.LeaseID }),
	instant("lease_expires_at", func(s *statemachine.Step) *time.Time { return &s.LeaseExpiresAt }),
	millis("claim_lease_ms", func(s *statemachine.Step) *time.Duration { return &s.ClaimLease }),
	instant("started_at", func(s *statemachine.Step) *time.Time { return &s.StartedAt }),
	instant("timeout_at", func(s *statemachine.Step) *time.Time { return &s.TimeoutAt }),
	instant("next_attempt_at", func(s *statemachine.Step) *time.Time { return &s.NextAttemptAt }),
	text("outbox_id", func(s *statemachine.Step) *string { return &s.OutboxID }),
	text("work_id", func(s *statemachine.Step) *string { return &s.WorkID }),
	text("owner", func(s *statemachine.Step) *string { return &s.Owner }),
	progressColumn,
	document("input_ref", func(s *statemachine.Step) *json.RawMessage { return &s.InputRef }),
	document("output_ref", func(s *statemachine.Step) *json.RawMessage { return &s.OutputRef }),
	document("result_ref", func(s *statemachine.Step) *json.RawMessage { return &s.ResultRef }),
	flag("gave_output", func(s *statemachine.Step) *bool { return &s.GaveOutput }),
	flag("gave_result", func(s *statemachine.Step) *bool { return &s.GaveResult }),
	text("last_error_code", func(s *statemachine.Step) *string { return &s.LastErrorCode }),
	text("last_error_message", func(s *statemachine.Step) *string { return &s.LastErrorMessage }),
	instant("created_at", func(s *statemachine.Step) *time.Time { return &s.CreatedAt }),
	instant("updated_at", func(s *statemachine.Step) *time.Time { return &s.UpdatedAt }),
	instant("completed_at", func(s *statemachine.Step) *time.Time { return &s.CompletedAt }),
	list("attempts", func(s *statemachine.Step) *[]statemachine.Attempt { return &s.Attempts }, formatAttempts, parseAttempts),
	integer("spent_dispatch", func(s *statemachine.Step) *int { return &s.Spent.Dispatch }),
	integer("spent_ack", func(s *statemachine.Step) *int { return &s.Spent.Ack }),
	integer("spent_execution", func(s *statemachine.Step) *int { return &s.Spent.Execution }),
	text("retry_cause", func(s *statemachine.Step) *statemachine.Cause { return &s.RetryCause }),
	millis("ack_timeout_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.AckTimeout }),
	millis("lease_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.Lease }),
	millis("timeout_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.Timeout }),
	list("retry_dispatch", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Dispatch }, formatDelays, parseDelays),
	list("retry_ack", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Ack }, formatDelays, parseDelays),
	list("retry_execution", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Execution }, formatDelays, parseDelays),
	integer("max_attempts", func(s *statemachine.Step) *int { return &s.Policy.MaxAttempts }),
}, within(func(s *statemachine.Step) *statemachine.Report { return &s.LastReport }, reportColumns),
	within(func(s *statemachine.Step) *statemachine.Routing { return &s.Routing }, routingColumns))...)

// progressColumn is the column of a step's progress, omitted if there is none.
var progressColumn = column[statemachine.Step]{
	"progress",
	func(s *statemachine.Step, value *tablestore.Value) {
		if s.Progress != nil {
			data, _ := json.Marshal(s.Progress) // It cannot fail: api.Progress rejects fractions that are not numbers.
			*value = tablestore.String(string(data))
		}
	},
	func(s *statemachine.Step, value *tablestore.Value) error {
		return json.Unmarshal([]byte(value.String()), &s.Progress)
	},
}

// reportColumns are the columns that hold what a callback says about how it was sent.
var reportColumns = []column[statemachine.Report]{
	text("callback_timestamp", func(r *statemachine.Report) *string { return &r.Timestamp }),
	text("callback_correlation_id", func(r *statemachine.Report) *string { return &r.CorrelationID }),
}

// routingColumns are the columns of a routing decision.
var routingColumns = []column[statemachine.Routing]{
	text("resolved_mode", func(r *statemachine.Routing) *statemachine.Mode { return &r.ResolvedMode }),
	integer("lane", func(r *statemachine.Routing) *int { return &r.Lane }),
	text("topic", func(r *statemachine.Routing) *string { return &r.Topic }),
	text("routing_key_used", func(r *statemachine.Routing) *string { return &r.RoutingKeyUsed }),
	text("decision_source", func(r *statemachine.Routing) *string { return &r.DecisionSource }),
	text("decision_reason", func(r *statemachine.Routing) *string { return &r.DecisionReason }),
}

// formatAttempts writes "no:digest:acked:result" for each attempt, joined by
// semicolons; digests are hex and results upper-case names.
func formatAttempts(attempts []statemachine.Attempt) string {
	b := make([]byte, 0, 64)
	for i, a := range attempts {
		if i > 0 {
			b = append(b, ';')
		}
		b = strconv.AppendInt(b, int64(a.No), 10)
		b = append(append(b, ':'), a.LeaseDigest...)
		if a.Acked {
			b = append(b, ":acked:"...)
		} else {
			b = append(b, "::"...)
		}
		b = append(b, a.Result...)
	}
	return string(b)
}

func parseAttempts(s string) ([]statemachine.Attempt, error) {
	attempts := make([]statemachine.Attempt, 0, strings.Count(s, ";")+1)
	for part := range strings.SplitSeq(s, ";") {
		no, rest, _ := strings.Cut(part, ":")
		digest, rest, _ := strings.Cut(rest, ":")
		acked, result, ok := strings.Cut(rest, ":")
		n, err := strconv.Atoi(no)
		if err != nil || !ok {
			return nil, fmt.Errorf("bad memory of attempts %q", part)
		}
		attempts = append(attempts, statemachine.Attempt{
			No: n, LeaseDigest: digest, Acked: acked != "", Result: statemachine.ResultStatus(result),
		})
	}
	return attempts, nil
}

// outboxCodec holds the columns of an OUTBOX row. The directive has a separate row,
// which loading a job does not read.
//
// Source: Ledger and state model, Outbox table.
var outboxCodec = newCodec(slices.Concat([]column[statemachine.Outbox]{
	text("outbox_id", func(o *statemachine.Outbox) *string { return &o.ID }),
	text("step_id", func(o *statemachine.Outbox) *string { return &o.StepID }),
	integer("step_index", func(o *statemachine.Outbox) *int { return &o.StepIndex }),
	integer("attempt_no", func(o *statemachine.Outbox) *int { return &o.AttemptNo }),
	text("lease_id", func(o *statemachine.Outbox) *string { return &o.LeaseID }),
	text("state", func(o *statemachine.Outbox) *statemachine.OutboxState { return &o.State }),
	text("bus", func(o *statemachine.Outbox) *statemachine.Bus { return &o.Bus }),
	instant("next_attempt_at", func(o *statemachine.Outbox) *time.Time { return &o.DueAt }),
	flag("rejected", func(o *statemachine.Outbox) *bool { return &o.Rejected }),
	integer("failures", func(o *statemachine.Outbox) *int { return &o.Failures }),
	text("last_error", func(o *statemachine.Outbox) *string { return &o.LastError }),
	instant("created_at", func(o *statemachine.Outbox) *time.Time { return &o.CreatedAt }),
	instant("sent_at", func(o *statemachine.Outbox) *time.Time { return &o.SentAt }),
	instant("updated_at", func(o *statemachine.Outbox) *time.Time { return &o.UpdatedAt }),
}, within(func(o *statemachine.Outbox) *statemachine.Routing { return &o.Routing }, routingColumns))...)

// itemCodec holds the columns of a work item's row, open or ended.
//
// Source: Job lifecycle plan 02, Required invariants per status.
var itemCodec = newCodec(
	text("work_id", func(r *statemachine.ItemRecord) *string { return &r.WorkID }),
	text("dedupe_key", func(r *statemachine.ItemRecord) *string { return &r.DedupeKey }),
	integer("step_index", func(r *statemachine.ItemRecord) *int { return &r.StepIndex }),
	integer("attempt_no", func(r *statemachine.ItemRecord) *int { return &r.AttemptNo }),
	text("message_id", func(r *statemachine.ItemRecord) *string { return &r.MessageID }),
	text("owner", func(r *statemachine.ItemRecord) *string { return &r.Owner }),
	integer("claims", func(r *statemachine.ItemRecord) *int { return &r.Claims }),
	integer("rev", func(r *statemachine.ItemRecord) *int64 { return &r.Rev }),
	instant("ready_since", func(r *statemachine.ItemRecord) *time.Time { return &r.ReadySince }),
	integer("ready_rev", func(r *statemachine.ItemRecord) *int64 { return &r.ReadyRev }),
	text("requeue_actor", func(r *statemachine.ItemRecord) *string { return &r.RequeuedBy.Actor }),
	text("requeue_id", func(r *statemachine.ItemRecord) *string { return &r.RequeuedBy.RequestID }),
	text("requeue_reason", func(r *statemachine.ItemRecord) *string { return &r.RequeuedBy.Reason }),
	list("requests", func(r *statemachine.ItemRecord) *[]statemachine.Remembered { return &r.Requests }, formatRequests, parseRequests),
	text("ended", func(r *statemachine.ItemRecord) *statemachine.ItemStatus { return &r.Ended }),
	flag("removed", func(r *statemachine.ItemRecord) *bool { return &r.Removed }),
	text("error_code", func(r *statemachine.ItemRecord) *string { return &r.Failure.Code }),
	text("error_message", func(r *statemachine.ItemRecord) *string { return &r.Failure.Message }),
	instant("created_at", func(r *statemachine.ItemRecord) *time.Time { return &r.CreatedAt }),
	instant("updated_at", func(r *statemachine.ItemRecord) *time.Time { return &r.UpdatedAt }),
)

// storedRequest is the stored form of a remembered request.
type storedRequest struct {
	Actor     string `json:"a"`
	ID        string `json:"i"`
	Operation string `json:"o"`
	Rev       int64  `json:"r"`
	Attempt   int    `json:"n"`
	ExpiresMS int64  `json:"e"`
}

func formatRequests(requests []statemachine.Remembered) string {
	out := make([]storedRequest, len(requests))
	for i, r := range requests {
		out[i] = storedRequest{r.Actor, r.RequestID, string(r.Operation), r.Rev, r.Attempt, r.ExpiresAt.UnixMilli()}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return "" // Unreachable: all fields are strings and numbers.
	}
	return string(data)
}

func parseRequests(s string) ([]statemachine.Remembered, error) {
	var stored []storedRequest
	if err := json.Unmarshal([]byte(s), &stored); err != nil {
		return nil, fmt.Errorf("remembered requests: %w", err)
	}
	out := make([]statemachine.Remembered, len(stored))
	for i, r := range stored {
		out[i] = statemachine.Remembered{
			Actor: r.Actor, RequestID: r.ID, Operation: statemachine.ItemOperation(r.Operation), Rev: r.Rev, Attempt: r.Attempt,
			ExpiresAt: time.UnixMilli(r.ExpiresMS).UTC(),
		}
	}
	return out, nil
}
