package ledger

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows of a job's partition. Loading a job scans from JOB to the end of
// STEP: rows that it does not need have names outside of that range.
const (
	rowBeat      = "BEAT"     // a heartbeat of a work item, for its history
	rowCallback  = "CALLBACK" // a callback that was refused, newest first
	rowCommand   = "COMMAND"  // the command's payload, once
	rowDirective = "DIRECTIVE"
	rowEvent     = "EVENT"
	rowItem      = "ITEM" // a work item that has ended or was removed
	rowJob       = "JOB"
	rowOpenItem  = "OPENITEM" // the open work item; at most one
	rowOutbox    = "OUTBOX"
	rowStep      = "STEP"
	rowWebhook   = "WEBHOOK"
)

// jobKey addresses a row of a job's partition.
func (l *Ledger) jobKey(jobID string, parts ...string) tablestore.Key {
	return tablestore.Key{
		Table: l.tables.Ledger, Partition: tablestore.Escape(jobID), Row: tablestore.Join(parts...),
	}
}

// attemptKey addresses a row of one attempt of a step. The rows of an outbox row
// and of its work item are named by the row's first attempt.
func (l *Ledger) attemptKey(kind, jobID string, stepIndex, attemptNo int, more ...string) tablestore.Key {
	parts := append([]string{kind, tablestore.Pad(stepIndex, 4), tablestore.Pad(attemptNo, 6)}, more...)
	return l.jobKey(jobID, parts...)
}

// itemKey addresses a row of that kind of an outbox row or its work item.
func (l *Ledger) itemKey(kind string, id OutboxID) tablestore.Key {
	return l.attemptKey(kind, id.JobID, id.StepIndex, id.FirstAttempt)
}

func (l *Ledger) eventKey(jobID string, rev int64) tablestore.Key {
	return l.jobKey(jobID, rowEvent, tablestore.Pad(rev, 12))
}

// rowsOf selects the rows of a job whose keys begin with that key's parts.
func rowsOf(prefix tablestore.Key) tablestore.Query {
	return tablestore.Query{
		Table: prefix.Table, Partition: prefix.Partition, From: prefix.Row + ":", To: tablestore.PrefixEnd(prefix.Row + ":"),
	}
}

// recordKey addresses the idempotency record of a tenant's key. The record of a job of a schedule is that of its
// occurrence.
func (l *Ledger) recordKey(tenantID, scheduleID, row string) tablestore.Key {
	if scheduleID != "" {
		return tablestore.Key{Table: l.tables.Cron, Partition: scheduleID, Row: row}
	}
	return tablestore.Key{Table: l.tables.Idempotency, Partition: tablestore.Escape(tenantID), Row: row}
}

// OutboxID is the id of an outbox row, and of its work item. It names the job, so
// that the id is enough to find the row.
type OutboxID struct {
	JobID        string
	StepIndex    int
	FirstAttempt int // the attempt for which the row was made
}

// ParseOutboxID parses an id such as "<job id>.0.1".
func ParseOutboxID(id string) (OutboxID, error) {
	rest, attempt, ok := cutLast(id)
	jobID, step, ok2 := cutLast(rest)
	attemptNo, err := strconv.Atoi(attempt)
	stepIndex, err2 := strconv.Atoi(step)
	if !ok || !ok2 || err != nil || err2 != nil || jobID == "" || stepIndex < 0 || attemptNo < 1 {
		return OutboxID{}, fmt.Errorf("%q is not an outbox id", id)
	}
	return OutboxID{JobID: jobID, StepIndex: stepIndex, FirstAttempt: attemptNo}, nil
}

// cutLast cuts s at its last dot.
func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}

// idClock gives each job id of a ledger a time and a sequence number that are greater
// than those of the ids before it.
//
// Source: RFC 9562, 6.2, method 1.
type idClock struct {
	mu       sync.Mutex // (ms, sequence) only grows.
	ms       int64      // Unix time in milliseconds; ahead of the clock if a sequence overflowed.
	sequence int
}

// maxSequence is the greatest sequence number within a millisecond.
const maxSequence = 1<<12 - 1

// next returns the time and the sequence number of the next id. The sequence of a new
// millisecond begins at first, at most half of maxSequence, so that there is room.
func (c *idClock) next(now int64, first int) (ms int64, sequence int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sequence++; now > c.ms || c.sequence > maxSequence {
		c.ms, c.sequence = max(now, c.ms+1), first
	}
	return c.ms, c.sequence
}

// NewJobID returns a fresh job id. Its time gives the month of acceptance, and lists sort
// it after all earlier ids of this ledger. It is a UUIDv7, which begins with the time. With
// SpreadIDs it is a UUIDv8, which begins with random bits and ends with the time and the
// sequence number. Package uuid remembers the last id of the process, so a simulated run
// could not be repeated; therefore the id is composed here. [idTimeAndSequence] reads it.
//
// Source: RFC 9562, 5.7 and 5.8.
func (l *Ledger) NewJobID() (string, error) {
	var random [10]byte
	if _, err := io.ReadFull(l.cfg.Entropy, random[:]); err != nil {
		return "", fmt.Errorf("make a job id: %w", err)
	}
	ms, sequence := l.ids.next(time.Now().UnixMilli(), int(binary.BigEndian.Uint16(random[:]))&(maxSequence>>1))
	var id uuid.UUID
	if l.cfg.SpreadIDs {
		copy(id[:], random[2:])
		id[6] = id[6]&0x0f | 8<<4 // version
		binary.BigEndian.PutUint64(id[8:], 0b10<<62|uint64(ms)<<12|uint64(sequence))
		return id.String(), nil
	}
	binary.BigEndian.PutUint64(id[:], uint64(ms)<<16|7<<12|uint64(sequence)) // with the version
	copy(id[8:], random[2:])
	id[8] = id[8]&0x3f | 0b10<<6 // variant
	return id.String(), nil
}

// idTimeAndSequence returns when a job id was made, in Unix milliseconds, and its
// sequence number among the ids of that time; ok is false for any other text. It reads
// ids of both kinds, whatever SpreadIDs is now.
func idTimeAndSequence(jobID string) (ms int64, sequence int, ok bool) {
	id, err := uuid.Parse(jobID)
	switch high, low := binary.BigEndian.Uint64(id[:]), binary.BigEndian.Uint64(id[8:]); {
	case err == nil && id.Version() == 7:
		return int64(high >> 16), int(high & maxSequence), true
	case err == nil && id.Version() == 8 && low>>60 == 0b1000:
		return int64(low << 4 >> 16), int(low & maxSequence), true
	}
	return 0, 0, false
}

// IDTime returns the time at which a job id was made, in milliseconds, or the zero
// time for any other text.
func IDTime(jobID string) time.Time {
	ms, _, ok := idTimeAndSequence(jobID)
	if !ok {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ListOrder returns a sort key that orders job ids as in lists, newest first.
func ListOrder(jobID string) string {
	ms, sequence, _ := idTimeAndSequence(jobID)
	return tablestore.Join(tablestore.Pad(newestFirst-ms, 13), tablestore.Pad(maxSequence-sequence, 4), jobID)
}

// ParseJobID returns an error for text that cannot be a job's id.
func ParseJobID(text string) error {
	if IDTime(text).IsZero() || strings.ToLower(text) != text {
		return fmt.Errorf("%q is not a job id", text)
	}
	return nil
}

// shardKey addresses a row of a shard: a schedule entry or a slot. They share a partition,
// so that one batch writes both.
func (l *Ledger) shardKey(shard int, row string) tablestore.Key {
	return tablestore.Key{Table: l.tables.Schedule, Partition: l.shards[shard], Row: row}
}

// shard spreads jobs over the partitions of the schedule and of the live set.
func (l *Ledger) shard(jobID string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(jobID))
	return int(h.Sum32() % uint32(l.cfg.Shards))
}

// TenantBucket joins the tenant and the month of t: the partition of the Jobs and
// the Outbox table in the seeds.
//
// Source: Ledger and state model, Jobs table.
func TenantBucket(tenantID string, t time.Time) string {
	return tenantID + ":" + t.UTC().Format("200601")
}
