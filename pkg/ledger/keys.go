package ledger

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows of a job's partition. Loading a job scans from JOB to the end of
// STEP: what it does not need lies outside of that range by name.
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
)

// jobKey addresses a row of a job's partition.
func (l *Ledger) jobKey(jobID string, parts ...string) tablestore.Key {
	return tablestore.Key{
		Table: l.tables.Ledger, Partition: tablestore.Escape(jobID), Row: tablestore.Join(parts...),
	}
}

func (l *Ledger) stepKey(jobID string, index int, stepID string) tablestore.Key {
	return l.jobKey(jobID, rowStep, tablestore.Pad(int64(index), 4), stepID)
}

// outboxKey addresses the row by the attempt that it was made for, which is
// part of its id.
func (l *Ledger) outboxKey(jobID string, id OutboxID) tablestore.Key {
	return l.jobKey(jobID, rowOutbox, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(id.FirstAttempt), 6))
}

func (l *Ledger) directiveKey(jobID string, stepIndex, attemptNo int) tablestore.Key {
	return l.jobKey(jobID, rowDirective, tablestore.Pad(int64(stepIndex), 4), tablestore.Pad(int64(attemptNo), 6))
}

// itemKey addresses a work item's row of that kind by the item's id.
func (l *Ledger) itemKey(kind string, id OutboxID) tablestore.Key {
	return l.jobKey(id.JobID, kind, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(id.FirstAttempt), 6))
}

// beatKey addresses a heartbeat of a work item by the item's rev.
func (l *Ledger) beatKey(id OutboxID, rev int64) tablestore.Key {
	key := l.itemKey(rowBeat, id)
	key.Row += ":" + tablestore.Pad(rev, 8)
	return key
}

func (l *Ledger) eventKey(jobID string, rev int64) tablestore.Key {
	return l.jobKey(jobID, rowEvent, tablestore.Pad(rev, 12))
}

func (l *Ledger) fencedKey(jobID string, stepIndex, attemptNo int, kind string) tablestore.Key {
	return l.jobKey(jobID, rowFenced, tablestore.Pad(int64(stepIndex), 4), tablestore.Pad(int64(attemptNo), 6), kind)
}

// OutboxID is an outbox row's id in its parts. An id names its job, so that a
// row is found by its id alone.
type OutboxID struct {
	JobID        string
	StepIndex    int
	FirstAttempt int // the attempt for which the row was made
}

// ParseOutboxID takes an id such as "<job id>.0.1" apart.
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

// shard spreads keys over the schedule's and the live set's partitions.
func (l *Ledger) shard(key string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % uint32(l.shards))
}

// TenantBucket is the tenant and the month of t: the partition of the seeds'
// Jobs and Outbox tables.
//
// Source: Ledger and state model, Jobs table.
func TenantBucket(tenantID string, t time.Time) string {
	return tenantID + ":" + t.UTC().Format("200601")
}
