package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Tables are the names of the tables.
type Tables struct {
	Ledger, Schedule, Idempotency, Index, Queue, Cron string
}

// Options are the facts about a store that its jobs are judged by.
type Options struct {
	Tables Tables // Required.
	// Shards and ReadyShards are the numbers of shards of the schedule and of the
	// ready index. Required.
	Shards, ReadyShards int
	ListsLive           bool          // Live jobs are listed by their state, and their changes keep the list exact.
	Split               bool          // The store writes the batches of a change one after the other.
	Now                 time.Time     // Required.
	KeyTTL              time.Duration // An idempotency key outlives its job by it; 0 is as long as the job is kept.
	Retention           time.Duration // A job is kept so long after its end; 0 is forever.
	// Slack is how long work may be overdue. Optional. Defaults to 10
	// minutes, which is beyond the grace that the system itself gives.
	Slack time.Duration
	// Clocks is how far the clocks of two processes may differ. Optional. Defaults to 5 s, as the servers'
	// LUCIUS_CLOCK_TOLERANCE.
	Clocks time.Duration
	// Quiescent says that nothing must be left to do: every job has ended, and its
	// post work is done.
	Quiescent bool
}

// DefaultClocks is how far the servers let their clocks differ by default.
const DefaultClocks = 5 * time.Second

// defaultSlack is twice the grace after which an accept is abandoned.
const defaultSlack = 10 * time.Minute

// Evidence is everything that is stored of one job.
type Evidence struct {
	JobID  string
	Job    *JobRow // nil if there is none
	Steps  []StepRow
	Outbox []OutboxRow
	Items  []ItemRow
	// Rejected are the callbacks that were refused.
	Rejected []RejectedRow

	changes    []change
	beats      []statemachine.ItemEvent // Heartbeats of work items, which are not part of the changes.
	directives map[string][]byte        // By step and attempt, such as 0000:000001.
	payload    bool                     // Its COMMAND row is there.
	webhooks   []columns
	unreadable []string
	// outside holds those of the rows in other partitions that exist: see wants.
	outside map[tablestore.Key]tablestore.Properties
}

// gather sorts the rows of a job's partition, in any order.
func gather(jobID string, rows []tablestore.Row) *Evidence {
	e := &Evidence{JobID: jobID, directives: map[string][]byte{}, outside: map[tablestore.Key]tablestore.Properties{}}
	for _, row := range rows {
		p := row.Properties
		var err error
		switch kind, rest, _ := strings.Cut(row.Key.Row, ":"); kind {
		case "JOB":
			job := ReadJob(p)
			e.Job = &job
		case "COMMAND":
			e.payload = true
		case "STEP":
			e.Steps = append(e.Steps, ReadStep(p))
		case "OUTBOX":
			e.Outbox = append(e.Outbox, ReadOutbox(p))
		case "DIRECTIVE":
			e.directives[rest] = tablestore.Large(p, "directive")
		case "WEBHOOK":
			e.webhooks = append(e.webhooks, columns(p))
		case "EVENT":
			var c change
			c, err = readChange(p)
			e.changes = append(e.changes, c)
		case "OPENITEM", "ITEM":
			var item ItemRow
			item, err = ReadItem(row.Key.Row, p)
			e.Items = append(e.Items, item)
		case "CALLBACK":
			var one RejectedRow
			one, err = ReadRejected(p)
			e.Rejected = append(e.Rejected, one)
		case "BEAT":
			var beats []statemachine.ItemEvent
			beats, err = ReadMoves(p)
			e.beats = append(e.beats, beats...)
		}
		if err != nil {
			e.unreadable = append(e.unreadable, fmt.Sprintf("row %s: %v", row.Key.Row, err))
		}
	}
	return e
}

// wants returns the keys of the rows in other partitions that the judgement needs.
func (e *Evidence) wants(o *Options) []tablestore.Key {
	if e.Job == nil || e.Job.Tombstone {
		return nil
	}
	keys := []tablestore.Key{e.slotKey(o), e.recordKey(o)}
	if e.Job.EntryKind != "" {
		keys = append(keys, e.EntryKey(o))
	}
	if item := e.Queued(); item != nil {
		keys = append(keys, e.HintKey(item, o))
	}
	for i := range e.Items {
		keys = append(keys, e.Items[i].slotKeys(o)...)
	}
	if e.Job.Place.Line != "" && !e.Job.Terminal() {
		keys = append(keys, e.placeKey(o))
	}
	for _, w := range e.webhooks {
		if w.text("state") == "PENDING" {
			keys = append(keys, e.webhookEntry(w, o))
		}
	}
	return append(keys, e.ListKeys(o)...)
}

// EntryKey returns the key of the schedule entry that the job names. It uses only the
// schedule's table and the shards of the options.
func (e *Evidence) EntryKey(o *Options) tablestore.Key {
	return e.entry(o, e.Job.EntryKind, e.Job.EntryDue, e.Job.EntryNonce)
}

// webhookEntry returns the key of the schedule entry of a webhook that is pending.
func (e *Evidence) webhookEntry(w columns, o *Options) tablestore.Key {
	return e.entry(o, "webhook", w.time("next_attempt_at"), strconv.Itoa(w.int("index")))
}

func (e *Evidence) entry(o *Options, kind string, due time.Time, nonce string) tablestore.Key {
	return tablestore.Key{
		Table: o.Tables.Schedule, Partition: tablestore.Join("shard", tablestore.Pad(int64(shard(e.JobID, o.Shards)), 3)),
		Row: tablestore.Join(kind, tablestore.Pad(due.UnixMilli(), 13), e.JobID, nonce),
	}
}

func (e *Evidence) slotKey(o *Options) tablestore.Key {
	return tablestore.Key{Table: o.Tables.Schedule, Partition: e.Job.SlotPartition, Row: e.Job.SlotRow}
}

func (e *Evidence) recordKey(o *Options) tablestore.Key {
	if id := e.Job.Occurrence.ScheduleID; id != "" {
		return tablestore.Key{Table: o.Tables.Cron, Partition: id, Row: e.Job.Record}
	}
	return tablestore.Key{Table: o.Tables.Idempotency, Partition: tablestore.Escape(e.Job.Tenant), Row: e.Job.Record}
}

// ListKeys returns the keys of the index rows that list the job: by its acceptance, its
// correlation id, its document and each of its tags, by its end if it has ended, else by its
// state if live jobs are so listed, and a rerun also under the job that it supersedes. It uses
// only the index's table and ListsLive of the options.
func (e *Evidence) ListKeys(o *Options) []tablestore.Key {
	month, row := listPlace(e.JobID)
	keys := []tablestore.Key{{Table: o.Tables.Index, Partition: tablestore.Join("jobs", e.Job.Tenant, month), Row: row}}
	if e.Job.Correlation != "" {
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("correlation", e.Job.Correlation),
			Row: tablestore.Join(e.Job.Tenant, "") + row,
		})
	}
	if e.Job.Doc != "" {
		sum := sha256.Sum256([]byte(tablestore.Join(e.Job.Tenant, e.Job.Doc)))
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("doc", hex.EncodeToString(sum[:])), Row: row,
		})
	}
	for _, tag := range e.Job.Tags {
		name, value, _ := strings.Cut(tag, "=")
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("tags", e.Job.Tenant, month), Row: tablestore.Join(name, value, "") + row,
		})
	}
	if e.Job.Terminal() {
		partition := tablestore.Join("ended", e.Job.Tenant, month, e.Job.State)
		keys = append(keys, tablestore.Key{Table: o.Tables.Index, Partition: partition, Row: row})
	} else if o.ListsLive {
		keys = append(keys, e.liveKey(o))
	}
	if old := e.Job.Supersedes; old != "" {
		month, first := listPlace(old)
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("reruns", e.Job.Tenant, month), Row: first + ":" + row,
		})
	}
	return keys
}

// liveKey returns the key of the row that lists the job by its state while it is live.
func (e *Evidence) liveKey(o *Options) tablestore.Key {
	_, row := listPlace(e.JobID)
	return tablestore.Key{Table: o.Tables.Index, Partition: tablestore.Join(liveList, e.Job.Tenant, e.Job.State), Row: row}
}

// listPlace returns the month of a job's acceptance and its key in lists.
func listPlace(jobID string) (month, row string) {
	accepted, sequence := idTime(jobID)
	row = tablestore.Join(tablestore.Pad(9_999_999_999_999-accepted.UnixMilli(), 13), tablestore.Pad(4095-sequence, 4), jobID)
	return accepted.UTC().Format("200601"), row
}

// HintKey returns the key of the ready hint that a queued item names. It uses only the
// queue's table and the shards of the options.
func (e *Evidence) HintKey(i *ItemRow, o *Options) tablestore.Key {
	s := e.step(i.Step)
	part := shard(e.JobID, o.Shards) % o.ReadyShards
	partition := []string{"ready", s.Service, s.Type, tablestore.Pad(part, 3)}
	if i.ReadyClass != "" {
		partition = append(partition, i.ReadyClass)
	}
	return tablestore.Key{
		Table: o.Tables.Queue, Partition: tablestore.Join(partition...),
		Row: tablestore.Join(e.Job.Tenant, tablestore.Pad(i.ReadySince.UnixMilli(), 13), i.WorkID,
			tablestore.Pad(i.Attempt, 6), tablestore.Pad(i.ReadyRev, 12)),
	}
}

// slotKeys returns the keys of the run slots that the item names, the zero key for one that cannot be read.
func (i *ItemRow) slotKeys(o *Options) []tablestore.Key {
	keys := make([]tablestore.Key, len(i.Slots))
	for k, slot := range i.Slots {
		scope, err := statemachine.ParseStartScope(slot.Limit)
		if err != nil {
			continue
		}
		keys[k] = tablestore.Key{
			Table: o.Tables.Queue, Partition: tablestore.Join("limit", scope.Service, scope.StepType, scope.TenantID),
			Row: tablestore.Join("run", tablestore.Pad(slot.No, 7)),
		}
	}
	return keys
}

// attempt returns the part of a key that names an attempt.
func attempt(step, no int) string {
	return tablestore.Pad(int64(step), 4) + ":" + tablestore.Pad(int64(no), 6)
}

// shard returns the shard of a job's entries: FNV-1a of its id.
func shard(jobID string, shards int) int {
	var h uint32 = 2166136261
	for i := range len(jobID) {
		h = (h ^ uint32(jobID[i])) * 16777619
	}
	return int(h % uint32(shards))
}

// idTime returns the time in a job id and the id's number among those of that
// millisecond, or zeros. A UUID of version 7 begins with both, one of version 8 ends
// with them.
func idTime(jobID string) (at time.Time, sequence int) {
	digits := strings.ReplaceAll(jobID, "-", "")
	if len(digits) < 16 {
		return time.Time{}, 0
	}
	if digits[12] == '8' && len(digits) == 32 {
		digits = digits[17:29] + "7" + digits[29:]
	}
	high, err := strconv.ParseUint(digits[:16], 16, 64)
	if err != nil {
		return time.Time{}, 0
	}
	return time.UnixMilli(int64(high >> 16)).UTC(), int(high & 0xfff)
}

// standing is a row of the table in docs/run/audit.md: an open item that may accompany
// a step whose attempt is for the pull queue.
type standing struct {
	step, outbox string
	deadline     bool // The step has one.
	earlier      bool // The item carries an earlier attempt than the step's.
	owned        bool
	status       statemachine.ItemStatus
}

// standings is that table. A step that fits none of its rows has no open item.
var standings = []standing{
	{step: "DISPATCHING", outbox: "PENDING", deadline: true, earlier: true, status: statemachine.StatusStalled},
	{step: "AWAITING_ACK", outbox: "SENT", status: statemachine.StatusQueued},
	{step: "AWAITING_ACK", outbox: "SENT", deadline: true, owned: true, status: statemachine.StatusClaimed},
	{step: "IN_PROGRESS", outbox: "SENT", deadline: true, owned: true, status: statemachine.StatusRunning},
	{step: "FAILED_RETRY", outbox: "SENT", status: statemachine.StatusStalled},
}

// status returns the status of an item, empty if no row of the table fits.
func (e *Evidence) status(i *ItemRow, s *StepRow) statemachine.ItemStatus {
	if !i.Open {
		return statemachine.ItemStatus(i.Ended)
	}
	row := e.outboxRow(s.OutboxID)
	if row == nil || row.Bus != busQueue || i.Attempt > s.Attempt {
		return statemachine.StatusNone
	}
	found := standing{
		step: s.State, outbox: row.State, deadline: !s.Expires.IsZero(), earlier: i.Attempt < s.Attempt, owned: i.Owner != "",
	}
	for _, legal := range standings {
		if found.status = legal.status; found == legal {
			return legal.status
		}
	}
	return statemachine.StatusNone
}

// Item returns the work item that the row and its step make together. It has no
// status if they do not fit each other, or the step is missing.
func (e *Evidence) Item(i *ItemRow) statemachine.Item {
	s := e.step(i.Step)
	if s == nil {
		return statemachine.Item{WorkID: i.WorkID}
	}
	item := statemachine.Item{
		WorkID: i.WorkID, Status: e.status(i, s), Attempt: i.Claims, Rev: i.Rev, Owner: i.Owner,
		DedupeKey: i.DedupeKey, MessageID: i.Message, AttemptNo: i.Attempt, LeaseID: "forgotten", JobID: e.JobID,
		StepID: s.ID, TenantID: e.Job.Tenant, Service: s.Service, StepType: s.Type, CreatedAt: i.Created,
		UpdatedAt: i.Updated, Requests: i.Requests,
	}
	if m := s.Remembers(i.Attempt); m.No != 0 {
		item.LeaseID = m.Digest
	}
	if i.Attempt == s.Attempt && s.Lease != "" {
		item.LeaseID = s.Lease
	}
	if item.Status.Held() {
		item.LeaseExpiresAt = s.Expires
	}
	if i.ErrorCode != "" {
		item.Error = &statemachine.ItemFailure{Code: i.ErrorCode}
	}
	if item.Status == statemachine.StatusSucceeded {
		var refs []string
		if s.GaveOutput {
			refs = append(refs, `"output_ref":`+s.Output)
		}
		if s.GaveResult {
			refs = append(refs, `"result_ref":`+s.Result)
		}
		item.Result = []byte("{" + strings.Join(refs, ",") + "}")
	}
	return item
}

// Queued returns the open item if it waits for a worker, else nil.
func (e *Evidence) Queued() *ItemRow {
	for i := range e.Items {
		item := &e.Items[i]
		if s := e.step(item.Step); item.Open && s != nil && e.status(item, s) == statemachine.StatusQueued {
			return item
		}
	}
	return nil
}

// step returns the step with that index, nil if it is missing.
func (e *Evidence) step(index int) *StepRow {
	for i := range e.Steps {
		if e.Steps[i].Index == index {
			return &e.Steps[i]
		}
	}
	return nil
}

// outboxRow returns the outbox row with that id, nil if it is missing.
func (e *Evidence) outboxRow(id string) *OutboxRow {
	for i := range e.Outbox {
		if e.Outbox[i].ID == id {
			return &e.Outbox[i]
		}
	}
	return nil
}
