package audit

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Evidence is everything that is stored of one job.
type Evidence struct {
	JobID  string
	Job    *JobRow // nil where there is none
	Steps  []StepRow
	Outbox []OutboxRow
	Items  []ItemRow
	// Beside says of rows in other partitions, those that [Evidence.Wants] names,
	// which are there.
	Beside map[tablestore.Key]tablestore.Properties

	changes    []change
	beats      []lifecycle.Event // heartbeats of work items, which are outside of the changes
	directives map[string][]byte // by step and attempt, such as 0000:000001
	webhooks   int
	unreadable []string
}

// Gather sorts the rows of a job's partition, whatever their order.
func Gather(jobID string, rows []tablestore.Row) *Evidence {
	e := &Evidence{
		JobID: jobID, directives: map[string][]byte{}, Beside: map[tablestore.Key]tablestore.Properties{},
	}
	for i := range rows {
		if err := e.take(&rows[i]); err != nil {
			e.unreadable = append(e.unreadable, fmt.Sprintf("row %s: %v", rows[i].Key.Row, err))
		}
	}
	return e
}

// take takes one row of the job's partition.
func (e *Evidence) take(row *tablestore.Row) error {
	p := row.Properties
	switch kind, rest, _ := strings.Cut(row.Key.Row, ":"); kind {
	case "JOB":
		job := ReadJob(p)
		e.Job = &job
	case "STEP":
		e.Steps = append(e.Steps, ReadStep(p))
	case "OUTBOX":
		e.Outbox = append(e.Outbox, ReadOutbox(p))
	case "DIRECTIVE":
		e.directives[rest] = tablestore.Large(p, "directive")
	case "WEBHOOK":
		e.webhooks++
	case "EVENT":
		c, err := readChange(p)
		e.changes = append(e.changes, c)
		return err
	case "OPENITEM", "ITEM":
		item, err := ReadItem(row.Key.Row, p)
		e.Items = append(e.Items, item)
		return err
	case "BEAT":
		beats, err := ReadMoves(p)
		e.beats = append(e.beats, beats...)
		return err
	}
	return nil
}

// attempt names an attempt as the rows of its bytes do.
func attempt(step, no int) string {
	return tablestore.Pad(int64(step), 4) + ":" + tablestore.Pad(int64(no), 6)
}

// Tables are the names of the tables.
type Tables struct {
	Ledger, Schedule, Inflight, Idempotency, Index, Queue string
}

// Options are what the judgement goes by.
type Options struct {
	Tables Tables // Required.
	// Shards and ReadyShards are the numbers of shards of the schedule and of the
	// ready index. Required.
	Shards, ReadyShards int
	// Split says that the store writes the batches of a change one after the other.
	Split bool
	// Now is the time of the audit. Required.
	Now time.Time
	// KeyTTL is how long an idempotency key outlives its job; 0 is as long as the
	// job is kept.
	KeyTTL time.Duration
	// Retention is how long a job is kept after its end; 0 is for ever.
	Retention time.Duration
	// Slack is how long past its time work may be undone. Optional. Defaults to 10
	// minutes, which is beyond the grace that the system itself gives.
	Slack time.Duration
	// Quiescent says that nothing is to be left to do: every job has ended and
	// what follows is done.
	Quiescent bool
}

// defaultSlack is twice the grace after which an accept is given up.
const defaultSlack = 10 * time.Minute

// WithDefaults fills in what is not set.
func (o Options) WithDefaults() Options {
	if o.Slack == 0 {
		o.Slack = defaultSlack
	}
	return o
}

// Wants names the rows beside the job that the judgement needs to know of.
func (e *Evidence) Wants(o *Options) []tablestore.Key {
	if e.Job == nil || e.Job.Tombstone {
		return nil
	}
	keys := []tablestore.Key{e.slotKey(o), e.claimKey(o)}
	if e.Job.EntryKind != "" {
		keys = append(keys, e.EntryKey(o))
	}
	if item := e.Queued(); item != nil {
		keys = append(keys, e.HintKey(item, o))
	}
	return append(keys, e.listKeys(o)...)
}

// EntryKey is where the schedule entry lies that the job names. Only the schedule's
// table and the shards of the options count.
func (e *Evidence) EntryKey(o *Options) tablestore.Key {
	return tablestore.Key{
		Table: o.Tables.Schedule, Partition: e.Job.EntryKind + ":" + tablestore.Pad(int64(shard(e.JobID, o.Shards)), 3),
		Row: tablestore.Join(tablestore.Pad(e.Job.EntryDue.UnixMilli(), 13), e.JobID, e.Job.EntryNonce),
	}
}

func (e *Evidence) slotKey(o *Options) tablestore.Key {
	return tablestore.Key{Table: o.Tables.Inflight, Partition: e.Job.SlotPartition, Row: e.Job.SlotRow}
}

func (e *Evidence) claimKey(o *Options) tablestore.Key {
	return tablestore.Key{Table: o.Tables.Idempotency, Partition: tablestore.Escape(e.Job.Tenant), Row: e.Job.Claim}
}

// listKeys are the index rows that show the job: by its acceptance, and once it
// has ended by its end.
func (e *Evidence) listKeys(o *Options) []tablestore.Key {
	made := idTime(e.JobID)
	row := tablestore.Join(tablestore.Pad(9_999_999_999_999-made.UnixMilli(), 13), e.JobID)
	month := made.UTC().Format("200601")
	keys := []tablestore.Key{{Table: o.Tables.Index, Partition: tablestore.Join("jobs", e.Job.Tenant, month), Row: row}}
	if e.Job.Correlation != "" {
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("correlation", e.Job.Tenant, e.Job.Correlation), Row: row,
		})
	}
	if e.Job.Terminal() {
		keys = append(keys, tablestore.Key{
			Table: o.Tables.Index, Partition: tablestore.Join("ended", e.Job.Tenant, month, e.Job.State), Row: row,
		})
	}
	return keys
}

// shard is where a job's entries lie: FNV-1a over the shards.
func shard(jobID string, shards int) int {
	var h uint32 = 2166136261
	for i := range len(jobID) {
		h = (h ^ uint32(jobID[i])) * 16777619
	}
	return int(h % uint32(shards))
}

// idTime is the time in a job id, which is a UUID of version 7.
func idTime(jobID string) time.Time {
	digits := strings.ReplaceAll(jobID, "-", "")
	if len(digits) < 12 {
		return time.Time{}
	}
	ms, err := strconv.ParseInt(digits[:12], 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
