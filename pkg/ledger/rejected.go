package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxRejected is how many refused callbacks of a job are kept: the newest.
	maxRejected = 64
	// purgeMargin is how long before its purge an ended job records no more refused
	// callbacks, so that none outlives it: longer than a write can be late.
	purgeMargin = time.Minute
)

// errPurgeNear is the cause of an error of [Ledger.Reject].
var errPurgeNear = errors.New("the job is about to be purged")

// Rejection is a callback that was refused: late, stale or contradictory.
//
// Source: Option B spec, 15.2.
type Rejection struct {
	StepID    string `json:"s"`
	Kind      string `json:"k"` // ACK, HEARTBEAT or RESULT
	AttemptNo int    `json:"n"`
	// LeaseDigest is the digest of the callback's lease id.
	LeaseDigest string                    `json:"l"`
	Status      statemachine.ResultStatus `json:"r,omitempty"`
	Cause       statemachine.Code         `json:"c"`
	Caller      string                    `json:"w,omitempty"`
	Report      statemachine.Report       `json:"t,omitzero"`
	RequestID   string                    `json:"i,omitempty"`
	// Actor and Reason are those of a request to release a job that blocks its line. It is no callback.
	Actor  string `json:"b,omitempty"`
	Reason string `json:"m,omitempty"`

	// Reject sets these: when it recorded the callback, and the job's revision then.
	At  time.Time `json:"a"`
	Rev int64     `json:"v"`
	// No is its number among those of the job, from 1. The row's key holds it.
	No int64 `json:"-"`
}

// Rejections are the refused callbacks of a job, oldest first.
//
// invariant: at most maxRejected
type Rejections []Rejection

// FirstRejected is the least index of a rejection among the history's entries of its revision. As text it
// comes after the indexes of the changes, which have three digits.
const FirstRejected = 900_000_000

// lastRejected is the greatest number of a rejection. At 16 a minute it is reached after ten years.
const lastRejected = 99_999_999

// Merge adds the rejections with after < rev <= upTo to entries of the history, each after the change to its rev.
func (r Rejections) Merge(entries []HistoryEntry, after, upTo int64) []HistoryEntry {
	if more := r.History(after, upTo); len(more) > 0 {
		entries = append(entries, more...)
		slices.SortStableFunc(entries, func(a, b HistoryEntry) int {
			return cmp.Or(cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.Index, b.Index))
		})
	}
	return entries
}

// History returns the rejections with after < rev <= upTo as entries of the job's
// history; their indexes come after those of the changes, and never change. upTo 0 stands for no limit.
func (r Rejections) History(after, upTo int64) []HistoryEntry {
	var entries []HistoryEntry
	for i := range r {
		one := &r[i]
		if one.Rev <= after || upTo > 0 && one.Rev > upTo {
			continue
		}
		if one.Kind == kindRelease {
			cause := "release of its line requested"
			if one.Reason != "" {
				cause += ": " + one.Reason
			}
			entries = append(entries, HistoryEntry{
				Rev: one.Rev, Index: FirstRejected + int(one.No), At: one.At, Actor: one.Actor, Caller: one.Caller,
				RequestID:  one.RequestID,
				Transition: statemachine.Transition{Object: statemachine.ObjectJob, Type: statemachine.EventJobRescheduled, Cause: cause},
			})
			continue
		}
		said := one.Kind
		if one.Status != "" {
			said += " " + string(one.Status)
		}
		entries = append(entries, HistoryEntry{
			Rev: one.Rev, Index: FirstRejected + int(one.No), At: one.At, Actor: ActorPlatform, Caller: one.Caller,
			RequestID: one.RequestID, Report: one.Report,
			Transition: statemachine.Transition{
				Object: statemachine.ObjectStep, ID: one.StepID, Type: statemachine.EventCallbackRejected, AttemptNo: one.AttemptNo,
				Cause: string(one.Cause), Detail: said,
			},
		})
	}
	return entries
}

// Reject inserts a row for a refused callback of the job, which was loaded before, and
// deletes the oldest rows beyond the number that is kept. It creates no revision. It refuses
// a job that is about to be purged. Its other errors are the store's: after one, the callback
// may have been recorded or not.
func (l *Ledger) Reject(ctx context.Context, job *statemachine.Job, one Rejection) error {
	if due := l.purgeAt(job); job.State.Terminal() && !due.IsZero() && time.Until(due) < purgeMargin {
		return fmt.Errorf("record a refused callback of job %s: %w", job.ID, errPurgeNear)
	}
	return l.record(ctx, job, one)
}

// kindRelease is the kind of the record of a request for a release.
const kindRelease = "RELEASE"

// noteRelease records the request for a release in the history of the job, which is not purged while it
// blocks its line.
func (l *Ledger) noteRelease(ctx context.Context, job *statemachine.Job, r *Release) error {
	return l.record(ctx, job, Rejection{
		Kind: kindRelease, Actor: r.Actor, Reason: r.Reason, Caller: CallerOf(ctx), RequestID: r.RequestID,
	})
}

// record inserts the row of [Ledger.Reject]. The insert fails if another process has given out the number.
func (l *Ledger) record(ctx context.Context, job *statemachine.Job, one Rejection) error {
	one.At, one.Rev = tablestore.Now(), job.Rev
	data, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("encode a refused callback of job %s: %w", job.ID, err)
	}
	return tablestore.Retry(ctx, l.cfg.Random, func() error {
		rows, err := l.rejectedRows(ctx, job.ID)
		if err != nil {
			return err
		}
		no := int64(1)
		if len(rows) > 0 { // The newest is always kept.
			last, err := rejectedNo(&rows[0])
			if err != nil {
				return err
			}
			no = last + 1
		}
		key := l.jobKey(job.ID, rowCallback, tablestore.Pad(lastRejected-no, 9))
		batch := tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: largeRow(columnRejected, data)}}
		for i := maxRejected - 1; i < len(rows) && len(batch) < tablestore.MaxBatchOps; i++ {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: rows[i].Key})
		}
		if _, err := l.store.Commit(ctx, batch); err != nil {
			return fmt.Errorf("record a refused callback of job %s: %w", job.ID, err)
		}
		return nil
	})
}

// rejectedNo returns the number of the rejection in the row. The key counts down, so that the newest row
// comes first.
func rejectedNo(row *tablestore.Row) (int64, error) {
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) < 2 {
		return 0, fmt.Errorf("bad key %q of a refused callback", row.Key.Row)
	}
	left, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bad key %q of a refused callback", row.Key.Row)
	}
	return lastRejected - left, nil
}

// Rejected returns the refused callbacks of a job, none for an unknown one.
func (l *Ledger) Rejected(ctx context.Context, jobID string) (Rejections, error) {
	rows, err := l.rejectedRows(ctx, jobID)
	if err != nil {
		return nil, err
	}
	rejected := make(Rejections, min(len(rows), maxRejected))
	for i := range rejected {
		if err := json.Unmarshal(tablestore.Large(rows[i].Properties, columnRejected), &rejected[i]); err != nil {
			return nil, fmt.Errorf("row %s of job %s: %w", rows[i].Key.Row, jobID, err)
		}
		if rejected[i].No, err = rejectedNo(&rows[i]); err != nil {
			return nil, err
		}
	}
	slices.Reverse(rejected)
	return rejected, nil
}

const columnRejected = "rejected"

// rejectedRows reads the rows of a job's refused callbacks, newest first.
func (l *Ledger) rejectedRows(ctx context.Context, jobID string) ([]tablestore.Row, error) {
	rows, err := tablestore.ScanAll(ctx, l.store, rowsOf(l.jobKey(jobID, rowCallback)))
	if err != nil {
		return nil, fmt.Errorf("read the refused callbacks of job %s: %w", jobID, err)
	}
	return rows, nil
}
