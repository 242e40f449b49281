package audit

import (
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// JobRow is a JOB row.
type JobRow struct {
	Raw                    string // the row byte for byte
	ID, Tenant             string
	IdempotencyKey         string
	Hash                   string
	State, Code            string
	RerunOf, Correlation   string
	Protocol               string
	Rev, Attempts          int64
	Created, Updated       time.Time
	Completed              time.Time
	EntryKind, EntryNonce  string
	EntryDue               time.Time
	SlotPartition, SlotRow string
	Claim                  string
	Callbacks              int
	Tombstone              bool
}

// ReadJob reads a JOB row by the names of its columns.
func ReadJob(p tablestore.Properties) JobRow {
	text := func(name string) string { return p.Get(name).String() }
	at := func(name string) time.Time { return p.Get(name).Time() }
	j := JobRow{
		Raw: Raw(p), ID: text("job_id"), Tenant: text("tenant_id"), IdempotencyKey: text("idempotency_key"),
		Hash: text("idempotency_hash"), State: text("state"), Code: text("error_code"), RerunOf: text("rerun_of"),
		Correlation: text("correlation_id"), Protocol: text("protocol_id"),
		Rev: p.Get("rev").Int(), Attempts: p.Get("attempts_total").Int(),
		Created: at("created_at"), Updated: at("updated_at"), Completed: at("completed_at"),
		EntryKind: text("entry_kind"), EntryNonce: text("entry_nonce"), EntryDue: at("entry_due"),
		SlotPartition: text("slot_partition"), SlotRow: text("slot_row"), Claim: text("claim"),
		Tombstone: p.Get("tombstone").Bool(),
	}
	if urls := text("callback_urls"); urls != "" {
		j.Callbacks = strings.Count(urls, "\n") + 1
	}
	return j
}

// Terminal reports whether the job has ended.
func (j *JobRow) Terminal() bool { return ended(j.State) }

// StepRow is a STEP row.
type StepRow struct {
	Raw                    string
	ID, State, Lease       string
	Type, Service          string
	OutboxID, ErrorCode    string
	Index, Attempt, Lane   int
	Expires, Timeout, Next time.Time
	Output, Result         string
	Memory                 []AttemptMemory
	Spent, Budget          [3]int // dispatch, ack, execution
	MaxAttempts            int
}

// AttemptMemory is what a step remembers of an attempt.
type AttemptMemory struct {
	No     int
	Digest string // stands for the lease
	Acked  bool
	Result string
}

// ReadStep reads a STEP row by the names of its columns.
func ReadStep(p tablestore.Properties) StepRow {
	text := func(name string) string { return p.Get(name).String() }
	s := StepRow{
		Raw: Raw(p), ID: text("step_id"), State: text("state"), Lease: text("lease_id"), OutboxID: text("outbox_id"),
		Type: text("step_type"), Service: text("service"), ErrorCode: text("last_error_code"),
		Index: int(p.Get("step_index").Int()), Attempt: int(p.Get("attempt_no").Int()), Lane: int(p.Get("lane").Int()),
		Expires: p.Get("lease_expires_at").Time(), Timeout: p.Get("timeout_at").Time(), Next: p.Get("next_attempt_at").Time(),
		Output: text("output_ref"), Result: text("result_ref"), MaxAttempts: int(p.Get("max_attempts").Int()),
	}
	for i, cause := range []string{"dispatch", "ack", "execution"} {
		s.Spent[i] = int(p.Get("spent_" + cause).Int())
		if delays := text("retry_" + cause); delays != "" {
			s.Budget[i] = strings.Count(delays, ",") + 1
		}
	}
	for part := range strings.SplitSeq(text("attempts"), ";") {
		fields := strings.Split(part, ":")
		if no, err := strconv.Atoi(fields[0]); err == nil && len(fields) == 4 {
			s.Memory = append(s.Memory, AttemptMemory{No: no, Digest: fields[1], Acked: fields[2] != "", Result: fields[3]})
		}
	}
	return s
}

// Terminal reports whether the step has ended.
func (s *StepRow) Terminal() bool { return ended(s.State) }

// Active reports whether the step is in somebody's hands, or waits to be again.
func (s *StepRow) Active() bool { return s.State != "PENDING" && !s.Terminal() }

// Live reports whether an attempt is in hand.
func (s *StepRow) Live() bool {
	return s.State == "DISPATCHING" || s.State == "AWAITING_ACK" || s.State == "IN_PROGRESS"
}

// End is the deadline of the attempt in hand.
func (s *StepRow) End() time.Time {
	if !s.Timeout.IsZero() && s.Timeout.Before(s.Expires) {
		return s.Timeout
	}
	return s.Expires
}

// Remembers finds what the step remembers of an attempt.
func (s *StepRow) Remembers(no int) AttemptMemory {
	for _, m := range s.Memory {
		if m.No == no {
			return m
		}
	}
	return AttemptMemory{}
}

// OutboxRow is an OUTBOX row.
type OutboxRow struct {
	Raw                   string
	ID, State, Lease, Bus string
	Step, Attempt         int
	Due, Sent             time.Time
}

// ReadOutbox reads an OUTBOX row by the names of its columns.
func ReadOutbox(p tablestore.Properties) OutboxRow {
	text := func(name string) string { return p.Get(name).String() }
	return OutboxRow{
		Raw: Raw(p), ID: text("outbox_id"), State: text("state"), Lease: text("lease_id"), Bus: text("bus"),
		Step: int(p.Get("step_index").Int()), Attempt: int(p.Get("attempt_no").Int()), Due: p.Get("next_attempt_at").Time(),
		Sent: p.Get("sent_at").Time(),
	}
}

// Message is the row's message id.
func (o *OutboxRow) Message() string { return o.ID + "/" + strconv.Itoa(o.Attempt) }

// Raw is a row byte for byte.
func Raw(p tablestore.Properties) string { return string(tablestore.EncodeProperties(nil, p)) }

// ended reports whether a state of a job or a step is terminal.
func ended(state string) bool {
	return state == "SUCCEEDED" || state == "FAILED_FINAL" || state == "CANCELLED"
}
