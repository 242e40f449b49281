package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// finishEnd repeats the work after the end of a job: it announces the end, frees the
// slot, schedules the purge, and updates the projections.
func (l *Ledger) finishEnd(ctx context.Context, s *snapshot) error {
	job := &s.agg.Job
	stage, err := l.releaseSlot(ctx, s.head.slot, job.ID)
	if err != nil {
		return err
	}
	rows, entries := l.announce(job)
	for i, row := range rows {
		// Write the entry before the row: an entry without its row is void. An existing row
		// stays.
		for _, batch := range []tablestore.Batch{entries[i], row} {
			if _, err := l.store.Commit(ctx, batch); err != nil && !errors.Is(err, tablestore.ErrConflict) {
				return fmt.Errorf("announce the end of job %s: %w", job.ID, err)
			}
		}
	}
	stage = append(stage, l.retain(job)...)
	if err := l.commitEach(ctx, stage); err != nil {
		return fmt.Errorf("finish the end of job %s: %w", job.ID, err)
	}
	return l.projectAgain(ctx, s)
}

// purgeAt returns when an ended job may be purged: after its retention, its key's TTL,
// and the time within which projections rely on the job. It is the zero time if jobs are
// kept forever.
func (l *Ledger) purgeAt(job *statemachine.Job) time.Time {
	if l.cfg.Retention == 0 {
		return time.Time{}
	}
	return job.CompletedAt.Add(max(l.cfg.Retention, l.cfg.KeyTTL, postDelay)).Truncate(time.Millisecond)
}

// retain writes the entry that purges an ended job; none if jobs are kept forever.
// The nonce is constant, so that a repeat writes the same row.
func (l *Ledger) retain(job *statemachine.Job) tablestore.Stage {
	due := l.purgeAt(job)
	if due.IsZero() {
		return nil
	}
	ref := entryRef{Kind: Retention, Due: due, Nonce: "0"}
	return tablestore.Stage{{l.putEntry(&statemachine.Aggregate{Job: *job}, ref, reservation{})}}
}

// retainTombstone deletes the index rows of an abandoned accept, and writes the entry that
// deletes its tombstone. The tombstone is kept as long as a job, and longer than a commit
// can be delayed: a late commit must find it.
func (l *Ledger) retainTombstone(job *statemachine.Job) tablestore.Stage {
	var stage tablestore.Stage
	for _, key := range l.indexKeys(job) {
		stage = append(stage, tablestore.Batch{{Verb: tablestore.Discard, Key: key}})
	}
	if l.cfg.Retention == 0 {
		return stage
	}
	due := tablestore.Now().Add(max(l.cfg.Retention, l.cfg.KeyTTL, orphanGrace)).Truncate(time.Millisecond)
	ref := entryRef{Kind: Retention, Due: due, Nonce: "0"}
	return append(stage, tablestore.Batch{l.putEntry(&statemachine.Aggregate{Job: *job}, ref, reservation{})})
}

// keyExpired reports whether the job's idempotency key may name another command. The claim
// of a rerun names no other: it is kept as long as the rerun, and so at least as long as the
// job that it repeats.
func (l *Ledger) keyExpired(s *snapshot, now time.Time) bool {
	return !s.head.tombstone && l.cfg.KeyTTL > 0 && s.agg.Job.RerunOf == "" && s.agg.Job.State.Terminal() &&
		now.After(s.agg.Job.CompletedAt.Add(l.cfg.KeyTTL))
}

// Archived is a job as it is archived before its purge.
type Archived struct {
	statemachine.Aggregate
	Payload []byte
	History []HistoryEntry // with its refused callbacks at the end
}

// Purged is the outcome of a retention entry.
type Purged uint8

// The outcomes.
const (
	// PurgeDone: the job and all its rows are deleted.
	PurgeDone Purged = iota + 1
	// PurgeLater: the retention is longer than when the job ended, or the work after its
	// end is not done.
	PurgeLater
	// PurgeNever: there is no such job, or it may not be purged.
	PurgeNever
)

// String returns the outcome's name in metrics.
func (p Purged) String() string { return [...]string{"", "purged", "later", "never"}[p] }

// Purge deletes an ended job that is due, once the work that follows its end is done, so
// that nothing of it is written later. It deletes the claim of the idempotency key first,
// under its version, so that a purged job can never be executed again through its own
// claim, while a key that has come to name another command stays. Then the Job row becomes
// a tombstone, so that no reader sees half a job. The entry is deleted last, so that the
// next pass continues after a crash.
//
// Source: Ledger and state model, Idempotency strategy.
func (l *Ledger) Purge(ctx context.Context, entry Entry) (Purged, error) {
	s, err := l.load(ctx, entry.JobID)
	if errors.Is(err, ErrJobNotFound) {
		return PurgeNever, l.drop(ctx, entry)
	}
	if err != nil {
		return 0, err
	}
	if !s.head.tombstone {
		due := l.purgeAt(&s.agg.Job)
		switch {
		case !s.agg.Job.State.Terminal() || due.IsZero():
			return PurgeNever, l.drop(ctx, entry)
		case due.After(time.Now()):
			if err := l.commitEach(ctx, l.retain(&s.agg.Job)); err != nil {
				return 0, fmt.Errorf("put off the purge of job %s: %w", entry.JobID, err)
			}
			return PurgeLater, l.drop(ctx, entry)
		}
		switch _, err := l.store.Get(ctx, l.entryKey(entry.JobID, s.head.entry)); {
		case err == nil:
			return PurgeLater, nil // The work after the end is not done; it would continue after the purge.
		case !errors.Is(err, tablestore.ErrNotFound):
			return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
		}
		if err := l.beginPurge(ctx, s); err != nil {
			return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
		}
	}
	if err := l.finishPurge(ctx, s); err != nil {
		return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
	}
	return PurgeDone, l.drop(ctx, entry)
}

// beginPurge archives the job, deletes its hints and its claim, and replaces the Job
// row by a tombstone.
func (l *Ledger) beginPurge(ctx context.Context, s *snapshot) error {
	job := &s.agg.Job
	if l.cfg.Archive != nil {
		archived := &Archived{Aggregate: s.agg}
		var err error
		if archived.Payload, err = l.Payload(ctx, job.ID); err != nil {
			return err
		}
		if archived.History, err = l.historyAfter(ctx, job.ID, 0); err != nil {
			return err
		}
		rejected, err := l.Rejected(ctx, job.ID)
		if err != nil {
			return err
		}
		archived.History = append(archived.History, rejected.History(0, 0)...)
		if err := l.cfg.Archive(ctx, archived); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
	}

	// A claim may have crashed before it deleted its hint. Without the job the hint
	// would no longer be known to be void.
	items, err := tablestore.ScanAll(ctx, l.store, rowsOf(l.jobKey(job.ID, rowItem)))
	if err != nil {
		return fmt.Errorf("read the work items: %w", err)
	}
	for i := range items {
		var record workitem.Record
		if err := itemCodec.decode(&items[i], &record); err != nil {
			return err
		}
		hint := l.hintOf(&s.agg, &record)
		if err := l.dropHint(ctx, &hint); err != nil {
			return err
		}
	}

	key := l.claimKey(job.TenantID, s.head.claim)
	claim, err := l.ownRow(ctx, key, job.ID)
	if err != nil {
		return err
	}
	if claim.ETag != "" {
		_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: claim.ETag}})
		if err != nil {
			return fmt.Errorf("delete the claim of the key: %w", err)
		}
	}
	// The tombstone keeps what names the job's other rows.
	rest := statemachine.Job{
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID, Supersedes: job.Supersedes, State: job.State,
		CallbackURLs: job.CallbackURLs,
	}
	_, err = l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.job.Key, ETag: s.job.ETag,
		Properties: encodeJob(&rest, &head{tombstone: true, claim: s.head.claim}, nil),
	}})
	return err
}

// finishPurge deletes all rows of a job, its tombstone last.
func (l *Ledger) finishPurge(ctx context.Context, s *snapshot) error {
	job := &s.agg.Job
	if err := l.deleteProjections(ctx, job); err != nil {
		return err
	}
	keys := l.indexKeys(job)
	for i := range job.CallbackURLs {
		keys = append(keys, l.undeliveredKeys(job.TenantID, job.ID, i)...)
	}
	for _, key := range keys {
		if _, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
			return err
		}
	}
	partition := tablestore.Query{Table: l.tables.Ledger, Partition: s.job.Key.Partition}
	if err := tablestore.DiscardAll(ctx, l.store, partition, s.job.Key.Row); err != nil {
		return err
	}
	_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: s.job.Key}})
	return err
}
