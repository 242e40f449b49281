package ledger

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows of a job's partition. Loading a job scans from JOB to the end of
// STEP: rows that it does not need have names outside of that range.
const (
	rowBeat      = "BEAT"    // a heartbeat of a work item, for its history
	rowCommand   = "COMMAND" // the command's payload, once
	rowDirective = "DIRECTIVE"
	rowEvent     = "EVENT"
	rowFenced    = "FENCED"
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

// claimKey addresses the claim of a tenant's idempotency key.
func (l *Ledger) claimKey(tenantID, row string) tablestore.Key {
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

// NewJobID returns a fresh job id: a UUIDv7, whose time tells the month of the
// acceptance. Package uuid remembers the last id of the process, which would make a
// simulated run impossible to repeat, so the id is composed here.
func (l *Ledger) NewJobID() (string, error) {
	var id uuid.UUID
	if _, err := io.ReadFull(l.cfg.Entropy, id[6:]); err != nil {
		return "", fmt.Errorf("make a job id: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id.String(), nil
}

// IDTime returns the time at which a job id was made, in milliseconds, or the zero
// time for any other text.
func IDTime(jobID string) time.Time {
	id, err := uuid.Parse(jobID)
	if err != nil || id.Version() != 7 {
		return time.Time{}
	}
	return time.Unix(id.Time().UnixTime()).UTC().Truncate(time.Millisecond)
}

// ParseJobID returns an error for text that cannot be a job's id.
func ParseJobID(text string) error {
	if IDTime(text).IsZero() || strings.ToLower(text) != text {
		return fmt.Errorf("%q is not a job id", text)
	}
	return nil
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
