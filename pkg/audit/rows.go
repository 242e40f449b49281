package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// columns reads the columns of a row by their names.
type columns tablestore.Properties

func (c columns) get(name string) tablestore.Value { return tablestore.Properties(c).Get(name) }
func (c columns) text(name string) string          { return c.get(name).String() }
func (c columns) int(name string) int              { return int(c.get(name).Int()) }
func (c columns) time(name string) time.Time       { return c.get(name).Time() }

// Raw returns a row byte for byte.
func Raw(p tablestore.Properties) string {
	data, _ := tablestore.EncodeProperties(nil, p, nil)
	return string(data)
}

// ended reports whether a state of a job or a step is terminal.
func ended(state string) bool {
	return state == "SUCCEEDED" || state == "FAILED_FINAL" || state == "CANCELLED"
}

// JobRow is a JOB row.
type JobRow struct {
	Tenant, IdempotencyKey string
	Hash, Record           string
	State, Code            string
	RerunOf, Supersedes    string
	Correlation, Doc       string
	Tags                   []string // Each "key=value".
	Protocol, Class        string
	Rev, Attempts          int64
	Updated, Completed     time.Time
	NotBefore, NotAfter    time.Time
	Started, Parked        bool
	OrderKey, OrderMode    string
	Blocks                 bool
	Place                  statemachine.Place
	Occurrence             statemachine.Occurrence
	EntryKind, EntryNonce  string
	EntryDue               time.Time
	SlotPartition, SlotRow string
	Callbacks              int
	Tombstone              bool
}

// ReadJob reads a JOB row.
func ReadJob(p tablestore.Properties) JobRow {
	c := columns(p)
	j := JobRow{
		Tenant: c.text("tenant_id"), IdempotencyKey: c.text("idempotency_key"), Hash: c.text("idempotency_hash"),
		State: c.text("state"), Code: c.text("error_code"), RerunOf: c.text("rerun_of"), Supersedes: c.text("supersedes"),
		Correlation: c.text("correlation_id"), Doc: c.text("doc_id"),
		Protocol: c.text("protocol_id"), Class: c.text("class"), Rev: c.get("rev").Int(), Attempts: c.get("attempts_total").Int(),
		Updated: c.time("updated_at"), Completed: c.time("completed_at"),
		NotBefore: c.time("not_before"), NotAfter: c.time("not_after"),
		Started: c.get("started").Bool(), Parked: c.get("parked").Bool(),
		EntryKind: c.text("entry_kind"), EntryNonce: c.text("entry_nonce"), EntryDue: c.time("entry_due"),
		SlotPartition: c.text("slot_partition"), SlotRow: c.text("slot_row"), Record: c.text("claim"),
		Tombstone: c.get("tombstone").Bool(),
	}
	j.OrderKey, j.OrderMode, j.Blocks = c.text("order_key"), c.text("order_mode"), c.get("order_blocks").Bool()
	_ = json.Unmarshal([]byte(c.text("place")), &j.Place) // The rules of lines report a place that cannot be read.
	_ = json.Unmarshal([]byte(c.text("occurrence")), &j.Occurrence)
	if tags := c.text("tags"); tags != "" {
		j.Tags = strings.Split(tags, "\n")
	}
	if urls := c.text("callback_urls"); urls != "" {
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
	Outcome                string // Set if a rerun did not execute it.
	WorkID, Owner          string // As it shows them.
	Index, Attempt, Lane   int
	Expires, Timeout, Next time.Time
	ClaimLease             time.Duration // As its worker asked, 0 if it did not.
	Output, Result         string
	GaveOutput, GaveResult bool
	Throttled              bool
	Memory                 []AttemptMemory
	Spent, Budget          [3]int // By cause: dispatch, ack, execution.
	MaxAttempts            int
}

// AttemptMemory is what a step remembers of an attempt.
type AttemptMemory struct {
	No     int
	Digest string // Of the lease.
	Acked  bool
	Result string
}

// ReadStep reads a STEP row.
func ReadStep(p tablestore.Properties) StepRow {
	c := columns(p)
	s := StepRow{
		Raw: Raw(p), ID: c.text("step_id"), State: c.text("state"), Lease: c.text("lease_id"), OutboxID: c.text("outbox_id"),
		Type: c.text("step_type"), Service: c.text("service"), Outcome: c.text("outcome"), ErrorCode: c.text("last_error_code"),
		WorkID: c.text("work_id"), Owner: c.text("owner"), Index: c.int("step_index"), Attempt: c.int("attempt_no"), Lane: c.int("lane"),
		Expires: c.time("lease_expires_at"), Timeout: c.time("timeout_at"), Next: c.time("next_attempt_at"),
		ClaimLease: time.Duration(c.int("claim_lease_ms")) * time.Millisecond,
		Output:     c.text("output_ref"), Result: c.text("result_ref"), MaxAttempts: c.int("max_attempts"),
		GaveOutput: c.get("gave_output").Bool(), GaveResult: c.get("gave_result").Bool(),
		Throttled: c.get("throttled").Bool(),
	}
	for i, cause := range []string{"dispatch", "ack", "execution"} {
		s.Spent[i] = c.int("spent_" + cause)
		if delays := c.text("retry_" + cause); delays != "" {
			s.Budget[i] = strings.Count(delays, ",") + 1
		}
	}
	for part := range strings.SplitSeq(c.text("attempts"), ";") {
		fields := strings.Split(part, ":")
		if no, err := strconv.Atoi(fields[0]); err == nil && len(fields) == 4 {
			s.Memory = append(s.Memory, AttemptMemory{No: no, Digest: fields[1], Acked: fields[2] != "", Result: fields[3]})
		}
	}
	return s
}

// Terminal reports whether the step has ended.
func (s *StepRow) Terminal() bool { return ended(s.State) }

// Live reports whether an attempt is dispatched or executed.
func (s *StepRow) Live() bool {
	return s.State == "DISPATCHING" || s.State == "AWAITING_ACK" || s.State == "IN_PROGRESS"
}

// End returns the deadline of the live attempt.
func (s *StepRow) End() time.Time {
	if !s.Timeout.IsZero() && s.Timeout.Before(s.Expires) {
		return s.Timeout
	}
	return s.Expires
}

// Remembers returns what the step remembers of an attempt, or the zero value.
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
	Due, Sent, Updated    time.Time
	Rejected              bool
}

// ReadOutbox reads an OUTBOX row.
func ReadOutbox(p tablestore.Properties) OutboxRow {
	c := columns(p)
	return OutboxRow{
		Raw: Raw(p), ID: c.text("outbox_id"), State: c.text("state"), Lease: c.text("lease_id"), Bus: c.text("bus"),
		Step: c.int("step_index"), Attempt: c.int("attempt_no"), Due: c.time("next_attempt_at"), Sent: c.time("sent_at"),
		Updated: c.time("updated_at"), Rejected: c.get("rejected").Bool(),
	}
}

// Message returns the row's message id.
func (o *OutboxRow) Message() string { return o.ID + "/" + strconv.Itoa(o.Attempt) }

// ItemRow is an OPENITEM or an ITEM row: what a step lacks to be a work item of the
// pull queue.
type ItemRow struct {
	Raw, Key                     string
	WorkID, DedupeKey, Message   string
	Owner, Ended, ErrorCode      string
	Step, First, Attempt, Claims int // First is the attempt for which the item was made.
	Rev, ReadyRev                int64
	ReadySince, Created, Updated time.Time
	ReadyClass                   string
	Slots                        []statemachine.RunSlot // The run slots that it names.
	Open, Removed                bool                   // Only the key says whether the item is open.
	Requests                     []statemachine.Remembered
}

// ReadItem reads an OPENITEM or an ITEM row.
func ReadItem(key string, p tablestore.Properties) (ItemRow, error) {
	c := columns(p)
	i := ItemRow{
		Raw: Raw(p), Key: key, WorkID: c.text("work_id"), DedupeKey: c.text("dedupe_key"), Message: c.text("message_id"),
		Owner: c.text("owner"), Ended: c.text("ended"), ErrorCode: c.text("error_code"), Step: c.int("step_index"),
		Attempt: c.int("attempt_no"), Claims: c.int("claims"), Rev: c.get("rev").Int(), ReadyRev: c.get("ready_rev").Int(),
		ReadySince: c.time("ready_since"), ReadyClass: c.text("ready_class"), Created: c.time("created_at"), Updated: c.time("updated_at"),
		Open: strings.HasPrefix(key, "OPENITEM:"), Removed: c.get("removed").Bool(),
	}
	if slots := c.text("slots"); slots != "" {
		if err := json.Unmarshal([]byte(slots), &i.Slots); err != nil {
			return i, fmt.Errorf("its run slots are not readable: %w", err)
		}
	}
	parts := strings.Split(key, ":")
	var err error
	if i.First, err = strconv.Atoi(parts[len(parts)-1]); err != nil {
		return i, fmt.Errorf("its key names no attempt: %w", err)
	}
	var requests []struct {
		Actor     string                     `json:"a"`
		ID        string                     `json:"i"`
		Operation statemachine.ItemOperation `json:"o"`
		Rev       int64                      `json:"r"`
		Attempt   int                        `json:"n"`
		Expires   time.Time                  `json:"e"`
	}
	if stored := c.text("requests"); stored != "" {
		if err := json.Unmarshal([]byte(stored), &requests); err != nil {
			return i, fmt.Errorf("its requests are not readable: %w", err)
		}
	}
	for _, r := range requests {
		i.Requests = append(i.Requests, statemachine.Remembered{
			Actor: r.Actor, RequestID: r.ID, Operation: r.Operation, Rev: r.Rev, Attempt: r.Attempt, ExpiresAt: r.Expires,
		})
	}
	return i, nil
}

// RejectedRow is a CALLBACK row: a callback of a job that was refused.
type RejectedRow struct {
	Step  string    `json:"s"`
	Kind  string    `json:"k"`
	Cause string    `json:"c"`
	Rev   int64     `json:"v"`
	At    time.Time `json:"a"`
}

// ReadRejected reads a CALLBACK row.
func ReadRejected(p tablestore.Properties) (RejectedRow, error) {
	var row RejectedRow
	if err := json.Unmarshal(tablestore.Large(p, "rejected"), &row); err != nil {
		return row, fmt.Errorf("a refused callback is not readable: %w", err)
	}
	return row, nil
}

// ReadMoves reads the moves of work items in an EVENT or a BEAT row.
func ReadMoves(p tablestore.Properties) ([]statemachine.ItemEvent, error) {
	text := tablestore.Large(p, "moves")
	if len(text) == 0 {
		return nil, nil
	}
	var stored []struct {
		WorkID  string                     `json:"w"`
		Rev     int64                      `json:"v"`
		Type    statemachine.ItemEventType `json:"t"`
		From    statemachine.ItemStatus    `json:"f"`
		To      statemachine.ItemStatus    `json:"to"`
		Actor   string                     `json:"a"`
		Request string                     `json:"r"`
		Attempt int                        `json:"n"`
	}
	if err := json.Unmarshal(text, &stored); err != nil {
		return nil, fmt.Errorf("its moves of work items are not readable: %w", err)
	}
	events := make([]statemachine.ItemEvent, len(stored))
	for i, m := range stored {
		events[i] = statemachine.ItemEvent{
			WorkID: m.WorkID, Rev: m.Rev, Type: m.Type, From: m.From, To: m.To, At: columns(p).time("at"),
			Actor: m.Actor, RequestID: m.Request, Attempt: m.Attempt,
		}
	}
	return events, nil
}

// change is an EVENT row: one change of a job.
type change struct {
	rev       int64
	at        time.Time
	operation string
	moves     []move
	items     []statemachine.ItemEvent // The moves of work items.
}

// move is one transition of a change.
type move struct {
	Object string `json:"object"`
	ID     string `json:"object_id"`
	Type   string `json:"type"`
	From   string `json:"from"`
	To     string `json:"to"`
	Detail string `json:"detail"`
}

func readChange(p tablestore.Properties) (change, error) {
	c := columns(p)
	read := change{rev: c.get("rev").Int(), at: c.time("at"), operation: c.text("operation")}
	if err := json.Unmarshal(tablestore.Large(p, "entries"), &read.moves); err != nil {
		return read, fmt.Errorf("its entries are not readable: %w", err)
	}
	var err error
	read.items, err = ReadMoves(p)
	return read, err
}
