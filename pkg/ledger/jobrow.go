package ledger

import (
	"fmt"
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

// jobColumns are the names that encodeJob writes.
var jobColumns = nameSet(columnVersion, "job_id", "tenant_id", "tenant_bucket", "request_type", "schema_version",
	"protocol_id", "protocol_version", "mode", "doc_id", "state", "rev", "started", "current_step_id",
	"current_step_index", "attempts_total", "idempotency_key", "idempotency_hash", "input_ref", "output_ref",
	"workspace_ref", "final_output", "callback_urls", "correlation_id", "traceparent", "rerun_of", "error_code",
	"error_message", "created_at", "updated_at", "completed_at", "entry_kind", "entry_due", "entry_nonce",
	"slot_partition", "slot_row", "slot_numbered", "claim", "tombstone")

func nameSet(names ...string) func(string) bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return func(name string) bool { return set[name] }
}

// encodeJob makes the Job row's properties.
func encodeJob(j *statemachine.Job, h *head, loaded tablestore.Properties) tablestore.Properties {
	c := newColumns(40)
	c.str("job_id", j.ID)
	c.str("tenant_id", j.TenantID)
	c.str("tenant_bucket", j.TenantBucket)
	c.str("request_type", j.RequestType)
	c.str("schema_version", j.SchemaVersion)
	c.str("protocol_id", j.ProtocolID)
	c.str("protocol_version", j.ProtocolVersion)
	c.str("mode", string(j.Mode))
	c.str("doc_id", j.DocID)
	c.str("state", string(j.State))
	c.int("rev", j.Rev)
	c.bool("started", j.Started)
	c.str("current_step_id", j.CurrentStepID)
	c.int("current_step_index", int64(j.CurrentStepIndex))
	c.int("attempts_total", int64(j.AttemptsTotal))
	c.str("idempotency_key", j.IdempotencyKey)
	c.str("idempotency_hash", j.IdempotencyHash)
	c.bytes("input_ref", j.InputRef)
	c.bytes("output_ref", j.OutputRef)
	c.bytes("workspace_ref", j.WorkspaceRef)
	c.bytes("final_output", j.FinalOutput)
	c.str("callback_urls", strings.Join(j.CallbackURLs, "\n"))
	c.str("correlation_id", j.CorrelationID)
	c.str("traceparent", j.Traceparent)
	c.str("rerun_of", j.RerunOf)
	c.str("error_code", j.ErrorCode)
	c.str("error_message", j.ErrorMessage)
	c.time("created_at", j.CreatedAt)
	c.time("updated_at", j.UpdatedAt)
	c.time("completed_at", j.CompletedAt)
	encodeHead(c, h)
	return c.carry(loaded, jobColumns)
}

func encodeHead(c *columns, h *head) {
	c.str("entry_kind", string(h.entry.Kind))
	c.time("entry_due", h.entry.Due)
	c.str("entry_nonce", h.entry.Nonce)
	c.str("slot_partition", h.slot.Partition)
	c.str("slot_row", h.slot.Row)
	c.bool("slot_numbered", h.slot.Numbered)
	c.str("claim", h.claim)
	c.bool("tombstone", h.tombstone)
}

// decodeJob reads the Job row.
func decodeJob(row *tablestore.Row) (statemachine.Job, head, error) {
	var j statemachine.Job
	var h head
	if err := checkVersion(row); err != nil {
		return j, h, err
	}
	for i := range row.Properties {
		p := &row.Properties[i]
		if !decodeJobText(&j, p.Name, p.Value) && !decodeJobRest(&j, p.Name, p.Value) {
			decodeHead(&h, p.Name, p.Value)
		}
	}
	if j.State == "" && !h.tombstone {
		return j, h, fmt.Errorf("the Job row of %s has no state", row.Key.Partition)
	}
	return j, h, nil
}

func decodeJobText(j *statemachine.Job, name string, v tablestore.Value) bool {
	switch name {
	case "job_id":
		j.ID = v.String()
	case "tenant_id":
		j.TenantID = v.String()
	case "tenant_bucket":
		j.TenantBucket = v.String()
	case "request_type":
		j.RequestType = v.String()
	case "schema_version":
		j.SchemaVersion = v.String()
	case "protocol_id":
		j.ProtocolID = v.String()
	case "protocol_version":
		j.ProtocolVersion = v.String()
	case "mode":
		j.Mode = statemachine.Mode(v.String())
	case "doc_id":
		j.DocID = v.String()
	case "state":
		j.State = statemachine.JobState(v.String())
	case "current_step_id":
		j.CurrentStepID = v.String()
	case "idempotency_key":
		j.IdempotencyKey = v.String()
	case "idempotency_hash":
		j.IdempotencyHash = v.String()
	case "correlation_id":
		j.CorrelationID = v.String()
	case "traceparent":
		j.Traceparent = v.String()
	case "rerun_of":
		j.RerunOf = v.String()
	case "error_code":
		j.ErrorCode = v.String()
	case "error_message":
		j.ErrorMessage = v.String()
	default:
		return false
	}
	return true
}

func decodeJobRest(j *statemachine.Job, name string, v tablestore.Value) bool {
	switch name {
	case "rev":
		j.Rev = v.Int()
	case "started":
		j.Started = v.Bool()
	case "current_step_index":
		j.CurrentStepIndex = int(v.Int())
	case "attempts_total":
		j.AttemptsTotal = int(v.Int())
	case "input_ref":
		j.InputRef = v.Bytes()
	case "output_ref":
		j.OutputRef = v.Bytes()
	case "workspace_ref":
		j.WorkspaceRef = v.Bytes()
	case "final_output":
		j.FinalOutput = v.Bytes()
	case "callback_urls":
		j.CallbackURLs = strings.Split(v.String(), "\n")
	case "created_at":
		j.CreatedAt = v.Time()
	case "updated_at":
		j.UpdatedAt = v.Time()
	case "completed_at":
		j.CompletedAt = v.Time()
	default:
		return false
	}
	return true
}

func decodeHead(h *head, name string, v tablestore.Value) {
	switch name {
	case "entry_kind":
		h.entry.Kind = Kind(v.String())
	case "entry_due":
		h.entry.Due = v.Time()
	case "entry_nonce":
		h.entry.Nonce = v.String()
	case "slot_partition":
		h.slot.Partition = v.String()
	case "slot_row":
		h.slot.Row = v.String()
	case "slot_numbered":
		h.slot.Numbered = v.Bool()
	case "claim":
		h.claim = v.String()
	case "tombstone":
		h.tombstone = v.Bool()
	}
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
