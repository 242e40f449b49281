package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The maximum number of rejections that are kept individually, per step and per job.
// Further ones are only counted, so that no worker can make a job's row grow.
const (
	maxRejectedOfStep = 16
	maxRejectedOfJob  = 64
)

// Rejection is a callback that was refused: late, stale or contradictory. Repeats of it
// are one Rejection with a count.
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

	// Rev is the job's when the first of them was recorded.
	Rev int64 `json:"v"`
	// Report and RequestID are those of the newest.
	Report    statemachine.Report `json:"t,omitzero"`
	RequestID string              `json:"i,omitempty"`
	First     time.Time           `json:"f"`
	Last      time.Time           `json:"u"`
	Count     int64               `json:"q"`
}

// same reports whether the other is a repeat.
func (r *Rejection) same(other *Rejection) bool {
	return r.StepID == other.StepID && r.Kind == other.Kind && r.AttemptNo == other.AttemptNo &&
		r.LeaseDigest == other.LeaseDigest && r.Status == other.Status && r.Cause == other.Cause && r.Caller == other.Caller
}

// Rejections are the refused callbacks of a job. The zero value holds none.
type Rejections struct {
	// Kept are the first of each kind, in the order in which they were recorded.
	//
	// invariant: at most 64, and at most 16 of one step
	Kept []Rejection `json:"k"`
	// More counts the callbacks beyond those bounds.
	More int64 `json:"m,omitempty"`
}

// Add counts a rejection: as a repeat, as a new one, or beyond the bounds.
func (r *Rejections) Add(rejection Rejection) {
	ofStep := 0
	for i := range r.Kept {
		kept := &r.Kept[i]
		if kept.same(&rejection) {
			kept.Count += rejection.Count
			if !rejection.Last.Before(kept.Last) { // Another replica may record an older one later.
				kept.Last, kept.Report, kept.RequestID = rejection.Last, rejection.Report, rejection.RequestID
			}
			return
		}
		if kept.StepID == rejection.StepID {
			ofStep++
		}
	}
	if ofStep >= maxRejectedOfStep || len(r.Kept) >= maxRejectedOfJob {
		r.More += rejection.Count
		return
	}
	r.Kept = append(r.Kept, rejection)
}

// Total is how many callbacks were refused.
func (r *Rejections) Total() int64 {
	total := r.More
	for i := range r.Kept {
		total += r.Kept[i].Count
	}
	return total
}

// FirstRejected is the least index of a rejection among the history's entries of its
// revision. An id shows at most three digits.
const FirstRejected = 900

// History returns the rejections with after < rev <= upTo as entries of the job's
// history; their indexes come after those of the changes. upTo 0 stands for no limit.
func (r *Rejections) History(after, upTo int64) []HistoryEntry {
	var entries []HistoryEntry
	for i := range r.Kept {
		kept := &r.Kept[i]
		if kept.Rev <= after || upTo > 0 && kept.Rev > upTo {
			continue
		}
		said := kept.Kind
		if kept.Status != "" {
			said += " " + string(kept.Status)
		}
		entries = append(entries, HistoryEntry{
			Rev: kept.Rev, Index: FirstRejected + i, At: kept.First, Actor: ActorPlatform, Caller: kept.Caller,
			RequestID: kept.RequestID, Report: kept.Report,
			Transition: statemachine.Transition{
				Object: statemachine.ObjectStep, ID: kept.StepID, Type: statemachine.EventCallbackRejected, AttemptNo: kept.AttemptNo,
				Cause: string(kept.Cause), Detail: said,
			},
		})
	}
	return entries
}

// Reject records refused callbacks of a job. It creates no revision, and does nothing if
// the job no longer exists. The errors are the store's: after one, the rejections may have
// been recorded or not.
//
// A reader of the history that has passed a revision does not read it again. So Reject
// reads the revision again after its write, and moves its records there, until the revision
// did not change during a write.
func (l *Ledger) Reject(ctx context.Context, jobID string, batch *Rejections) error {
	key := l.jobKey(jobID, rowCallbacks)
	var recorded int64 // the rev at which the new ones are recorded; 0 before the write
	var first, end int // their place in Kept
	for {
		rev, err := l.revision(ctx, jobID)
		switch {
		case err != nil:
			return err
		case rev == 0 && recorded != 0: // A purge between the two reads may have missed the row.
			_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: key}})
			return err
		case rev == recorded:
			return nil
		}
		decide := func(stored *tablestore.Row) (tablestore.Properties, error) {
			rejected, err := decodeRejected(stored)
			switch {
			case err != nil:
				return nil, err
			case recorded != 0 && len(rejected.Kept) < end: // Purged.
				return nil, nil
			case recorded == 0:
				first = len(rejected.Kept)
				for _, one := range batch.Kept {
					rejected.Add(one)
				}
				rejected.More += batch.More
				end = len(rejected.Kept)
			}
			for i := range rejected.Kept[first:end] {
				rejected.Kept[first+i].Rev = rev
			}
			data, err := json.Marshal(rejected)
			if err != nil {
				return nil, fmt.Errorf("encode the rejected callbacks of job %s: %w", jobID, err)
			}
			return largeRow(columnRejected, data), nil
		}
		if recorded == 0 || first < end {
			if err := tablestore.Update(ctx, l.store, key, l.cfg.Random, decide); err != nil {
				return fmt.Errorf("record rejected callbacks of job %s: %w", jobID, err)
			}
		}
		recorded = rev
	}
}

// revision returns the revision of a job, 0 if there is none or it was purged.
func (l *Ledger) revision(ctx context.Context, jobID string) (int64, error) {
	row, err := l.store.Get(ctx, l.jobKey(jobID, rowJob))
	if errors.Is(err, tablestore.ErrNotFound) {
		return 0, nil
	}
	var job statemachine.Job
	var head head
	if err == nil {
		err = decodeJob(&row, &job, &head)
	}
	if err != nil {
		return 0, fmt.Errorf("read job %s: %w", jobID, err)
	}
	if head.tombstone {
		return 0, nil
	}
	return job.Rev, nil
}

// Rejected returns the refused callbacks of a job, none for an unknown one.
func (l *Ledger) Rejected(ctx context.Context, jobID string) (Rejections, error) {
	row, err := l.store.Get(ctx, l.jobKey(jobID, rowCallbacks))
	if err != nil && !errors.Is(err, tablestore.ErrNotFound) {
		return Rejections{}, fmt.Errorf("read the rejected callbacks of job %s: %w", jobID, err)
	}
	return decodeRejected(&row)
}

const columnRejected = "rejected"

// decodeRejected reads a CALLBACKS row; the zero row holds no rejections.
func decodeRejected(row *tablestore.Row) (Rejections, error) {
	var rejected Rejections
	if data := tablestore.Large(row.Properties, columnRejected); len(data) > 0 {
		if err := json.Unmarshal(data, &rejected); err != nil {
			return Rejections{}, fmt.Errorf("row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
		}
	}
	return rejected, nil
}
