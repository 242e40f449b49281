package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// head is what the Job row holds beside the job itself: what stands for it in
// other partitions.
type head struct {
	entry entryRef // the schedule entry that stands for the job
	slot  slotRef  // its in-flight slot
	claim string   // row key of its idempotency claim
	// tombstone says that there is no job: its accept was given up on.
	tombstone bool
}

// entryRef names a schedule entry within its job; the zero value names none.
type entryRef struct {
	Kind  Kind
	Due   time.Time
	Nonce string
}

// slotRef names an in-flight slot; the zero value names none. A numbered slot
// is shared with other jobs in turn, any other is the job's own.
type slotRef struct {
	Partition string
	Row       string
	Numbered  bool
}

// jobRow is what a JOB row stores.
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
	text("error_code", func(r *jobRow) *string { return &r.job.ErrorCode }),
	text("error_message", func(r *jobRow) *string { return &r.job.ErrorMessage }),
	instant("created_at", func(r *jobRow) *time.Time { return &r.job.CreatedAt }),
	instant("updated_at", func(r *jobRow) *time.Time { return &r.job.UpdatedAt }),
	instant("completed_at", func(r *jobRow) *time.Time { return &r.job.CompletedAt }),
}

// headColumns are the columns of what stands for the job in other partitions.
var headColumns = []column[jobRow]{
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
	jobCodec = newCodec(slices.Concat(jobColumns, headColumns)...)
	// projectedCodec is for a job without what stands for it in other partitions.
	projectedCodec = newCodec(jobColumns...)
)

// encodeJob makes a JOB row's properties.
func encodeJob(j *statemachine.Job, h *head, loaded tablestore.Properties) tablestore.Properties {
	return jobCodec.encode(&jobRow{j, h}, loaded)
}

// decodeJob reads a JOB row.
func decodeJob(row *tablestore.Row, j *statemachine.Job, h *head) error {
	if err := jobCodec.decode(row, &jobRow{j, h}); err != nil {
		return err
	}
	if j.State == "" && !h.tombstone {
		return fmt.Errorf("the Job row of %s has no state", row.Key.Partition)
	}
	return nil
}

// JobColumns are the properties of the job's row, without what stands for the
// job in other partitions. stored are those of the row that is written over, of
// which unknown ones are kept.
func JobColumns(job *statemachine.Job, stored tablestore.Properties) tablestore.Properties {
	return projectedCodec.encode(&jobRow{job: job}, stored)
}
