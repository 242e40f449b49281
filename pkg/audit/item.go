package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// ItemRow is an OPENITEM or an ITEM row: what a step lacks to be a work item of the
// pull queue.
type ItemRow struct {
	Raw, Key                     string
	WorkID, DedupeKey, Message   string
	Owner, Ended, ErrorCode      string
	Step, First, Attempt, Claims int // First is the attempt for which the item was made
	Rev, ReadyRev                int64
	ReadySince, Created, Updated time.Time
	ClaimLease                   time.Duration
	Open, Removed                bool // Open is said by the key alone
	GaveOutput, GaveResult       bool
	Requests                     []lifecycle.Remembered
}

// ReadItem reads an OPENITEM or an ITEM row by the names of its columns.
func ReadItem(key string, p tablestore.Properties) (ItemRow, error) {
	text := func(name string) string { return p.Get(name).String() }
	number := func(name string) int { return int(p.Get(name).Int()) }
	i := ItemRow{
		Raw: Raw(p), Key: key, WorkID: text("work_id"), DedupeKey: text("dedupe_key"), Message: text("message_id"),
		Owner: text("owner"), Ended: text("ended"), ErrorCode: text("error_code"), Step: number("step_index"),
		Attempt: number("attempt_no"), Claims: number("claims"), Rev: p.Get("rev").Int(), ReadyRev: p.Get("ready_rev").Int(),
		ReadySince: p.Get("ready_since").Time(), Created: p.Get("created_at").Time(), Updated: p.Get("updated_at").Time(),
		ClaimLease: time.Duration(p.Get("claim_lease_ms").Int()) * time.Millisecond,
		Open:       strings.HasPrefix(key, "OPENITEM:"), Removed: p.Get("removed").Bool(),
		GaveOutput: p.Get("gave_output").Bool(), GaveResult: p.Get("gave_result").Bool(),
	}
	parts := strings.Split(key, ":")
	var err error
	if i.First, err = strconv.Atoi(parts[len(parts)-1]); err != nil {
		return i, fmt.Errorf("its key names no attempt: %w", err)
	}
	var requests []struct {
		Actor     string              `json:"a"`
		ID        string              `json:"i"`
		Operation lifecycle.Operation `json:"o"`
		Rev       int64               `json:"r"`
		Attempt   int                 `json:"n"`
		Expires   int64               `json:"e"`
	}
	if stored := text("requests"); stored != "" {
		if err := json.Unmarshal([]byte(stored), &requests); err != nil {
			return i, fmt.Errorf("its requests are not readable: %w", err)
		}
	}
	for _, r := range requests {
		i.Requests = append(i.Requests, lifecycle.Remembered{
			Actor: r.Actor, RequestID: r.ID, Operation: r.Operation, Rev: r.Rev, Attempt: r.Attempt,
			ExpiresAt: time.UnixMilli(r.Expires).UTC(),
		})
	}
	return i, nil
}

// ReadMoves reads the moves of work items in an EVENT or a BEAT row.
func ReadMoves(p tablestore.Properties) ([]lifecycle.Event, error) {
	text := tablestore.Large(p, "moves")
	if len(text) == 0 {
		return nil, nil
	}
	var stored []struct {
		WorkID  string              `json:"w"`
		Rev     int64               `json:"v"`
		Type    lifecycle.EventType `json:"t"`
		From    lifecycle.Status    `json:"f"`
		To      lifecycle.Status    `json:"to"`
		At      int64               `json:"at"`
		Actor   string              `json:"a"`
		Request string              `json:"r"`
		Attempt int                 `json:"n"`
	}
	if err := json.Unmarshal(text, &stored); err != nil {
		return nil, fmt.Errorf("its moves of work items are not readable: %w", err)
	}
	events := make([]lifecycle.Event, len(stored))
	for i, m := range stored {
		events[i] = lifecycle.Event{
			WorkID: m.WorkID, Rev: m.Rev, Type: m.Type, From: m.From, To: m.To, At: time.UnixMilli(m.At).UTC(),
			Actor: m.Actor, RequestID: m.Request, Attempt: m.Attempt,
		}
	}
	return events, nil
}

// standing is a row of the table "what a step is to a worker": the open item that
// may stand beside a step whose attempt is for the pull queue.
type standing struct {
	step, outbox string
	deadline     bool // the step has one
	earlier      bool // the item carries an earlier attempt than the step's
	owned        bool
	status       lifecycle.Status
}

// standings is that table. A step that none of its rows has has no open item.
var standings = []standing{
	{step: "DISPATCHING", outbox: "PENDING", deadline: true, earlier: true, status: lifecycle.StatusStalled},
	{step: "AWAITING_ACK", outbox: "SENT", status: lifecycle.StatusQueued},
	{step: "AWAITING_ACK", outbox: "SENT", deadline: true, owned: true, status: lifecycle.StatusClaimed},
	{step: "IN_PROGRESS", outbox: "SENT", deadline: true, owned: true, status: lifecycle.StatusRunning},
	{step: "FAILED_RETRY", outbox: "SENT", status: lifecycle.StatusStalled},
}

// status is where an item stands, empty if the table has nothing that fits.
func (e *Evidence) status(i *ItemRow, s *StepRow) lifecycle.Status {
	if !i.Open {
		return lifecycle.Status(i.Ended)
	}
	row := e.outboxRow(s.OutboxID)
	if row == nil || row.Bus != busQueue || i.Attempt > s.Attempt {
		return lifecycle.StatusNone
	}
	for _, fits := range standings {
		if fits == (standing{
			step: s.State, outbox: row.State, deadline: !s.Expires.IsZero(), earlier: i.Attempt < s.Attempt,
			owned: i.Owner != "", status: fits.status,
		}) {
			return fits.status
		}
	}
	return lifecycle.StatusNone
}

// Item is the work item that the row and its step make together. It has no status
// if they do not fit each other, or the step is not there.
func (e *Evidence) Item(i *ItemRow) lifecycle.Item {
	s := e.step(i.Step)
	if s == nil {
		return lifecycle.Item{WorkID: i.WorkID}
	}
	item := lifecycle.Item{
		WorkID: i.WorkID, Status: e.status(i, s), Attempt: i.Claims, Rev: i.Rev, Owner: i.Owner, ClaimLease: i.ClaimLease,
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
		item.Error = &lifecycle.Failure{Code: i.ErrorCode}
	}
	if item.Status == lifecycle.StatusSucceeded {
		var refs []string
		if i.GaveOutput {
			refs = append(refs, `"output_ref":`+s.Output)
		}
		if i.GaveResult {
			refs = append(refs, `"result_ref":`+s.Result)
		}
		item.Result = []byte("{" + strings.Join(refs, ",") + "}")
	}
	return item
}

// step finds a step by its index, nil if it is not there.
func (e *Evidence) step(index int) *StepRow {
	for i := range e.Steps {
		if e.Steps[i].Index == index {
			return &e.Steps[i]
		}
	}
	return nil
}

// outboxRow finds an outbox row by its id, nil if it is not there.
func (e *Evidence) outboxRow(id string) *OutboxRow {
	for i := range e.Outbox {
		if e.Outbox[i].ID == id {
			return &e.Outbox[i]
		}
	}
	return nil
}

// Queued is the open item if it waits for a worker, else nil.
func (e *Evidence) Queued() *ItemRow {
	for i := range e.Items {
		item := &e.Items[i]
		if s := e.step(item.Step); item.Open && s != nil && e.status(item, s) == lifecycle.StatusQueued {
			return item
		}
	}
	return nil
}

// HintKey is where the ready hint lies that a queued item names. Only the queue's
// table and the shards of the options count.
func (e *Evidence) HintKey(i *ItemRow, o *Options) tablestore.Key {
	s := e.step(i.Step)
	part := shard(e.JobID, o.Shards) % o.ReadyShards
	return tablestore.Key{
		Table:     o.Tables.Queue,
		Partition: tablestore.Join("ready", s.Service, s.Type, tablestore.Pad(part, 3)),
		Row: tablestore.Join(e.Job.Tenant, tablestore.Pad(i.ReadySince.UnixMilli(), 13), i.WorkID,
			tablestore.Pad(i.Attempt, 6), tablestore.Pad(i.ReadyRev, 12)),
	}
}
