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

// Archived is all that is known of a job, as it is handed over before the job is
// purged.
type Archived struct {
	statemachine.Aggregate
	Payload []byte
	History []HistoryEntry
}

// Purged is what became of a retention entry.
type Purged uint8

// The outcomes.
const (
	// PurgeDone: the job and all that was kept of it are gone.
	PurgeDone Purged = iota + 1
	// PurgeLater: the job is to be kept longer than when it ended.
	PurgeLater
	// PurgeNever: the entry stood for nothing that may be purged.
	PurgeNever
)

// String returns the outcome's name in metrics.
func (p Purged) String() string { return [...]string{"", "purged", "later", "never"}[p] }

// purgeAt is when an ended job may be purged: when both its retention and its
// key's time have passed. It is the zero time where jobs are kept.
func (l *Ledger) purgeAt(job *statemachine.Job) time.Time {
	if l.keep == 0 {
		return time.Time{}
	}
	return job.CompletedAt.Add(max(l.keep, l.keyTTL)).Truncate(time.Millisecond)
}

// keyExpired reports whether the job's idempotency key may name another command.
func (l *Ledger) keyExpired(s *snapshot, now time.Time) bool {
	return !s.head.tombstone && l.keyTTL > 0 && s.agg.Job.State.Terminal() &&
		now.After(s.agg.Job.CompletedAt.Add(l.keyTTL))
}

// retentionRef is the entry that remembers to purge an ended job. Its nonce is
// fixed, so that writing it again changes nothing.
func retentionRef(due time.Time) entryRef { return entryRef{Kind: Retention, Due: due, Nonce: "0"} }

// retain is the write of that entry, none where jobs are kept.
func (l *Ledger) retain(job *statemachine.Job) tablestore.Stage {
	due := l.purgeAt(job)
	if due.IsZero() {
		return nil
	}
	put := l.putEntry(&statemachine.Aggregate{Job: *job}, retentionRef(due), reservation{})
	return tablestore.Stage{{put}}
}

// Purge forgets an ended job whose time has come. The claim of its idempotency
// key goes first, under its version, so that a forgotten job can never be
// executed again by its own claim, and a key that was given to another command
// meanwhile stays with that; then the Job row becomes a tombstone, so that
// nothing half-deleted is ever seen; and the entry last, so that a crash in
// between is made good by the next pass.
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
		outcome, err := l.beginPurge(ctx, entry, s)
		if err != nil || outcome != PurgeDone {
			return outcome, err
		}
	}
	if err := l.finishPurge(ctx, s); err != nil {
		return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
	}
	return PurgeDone, l.drop(ctx, entry)
}

// beginPurge does all up to the tombstone.
func (l *Ledger) beginPurge(ctx context.Context, entry Entry, s *snapshot) (Purged, error) {
	job := &s.agg.Job
	due := l.purgeAt(job)
	switch {
	case !job.State.Terminal() || due.IsZero():
		return PurgeNever, l.drop(ctx, entry)
	case due.After(time.Now()):
		if err := l.commitEach(ctx, l.retain(job)); err != nil {
			return 0, fmt.Errorf("put off the purge of job %s: %w", job.ID, err)
		}
		return PurgeLater, l.drop(ctx, entry)
	}
	if err := l.archiveJob(ctx, &s.agg); err != nil {
		return 0, err
	}
	if err := l.dropHintsOf(ctx, s); err != nil {
		return 0, err
	}
	if err := l.releaseClaim(ctx, job, s.head.claim); err != nil {
		return 0, err
	}
	// The tombstone keeps what names the job's other rows.
	rest := statemachine.Job{
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID, State: job.State,
		CallbackURLs: job.CallbackURLs,
	}
	_, err := l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.job.Key, ETag: s.job.ETag,
		Properties: encodeJob(&rest, &head{tombstone: true, claim: s.head.claim}, nil),
	}})
	if err != nil {
		return 0, fmt.Errorf("purge job %s: %w", job.ID, err)
	}
	return PurgeDone, nil
}

// archiveJob hands the job over, where anybody wants it.
func (l *Ledger) archiveJob(ctx context.Context, agg *statemachine.Aggregate) error {
	if l.archive == nil {
		return nil
	}
	archived := &Archived{Aggregate: *agg}
	var err error
	if archived.Payload, err = l.Payload(ctx, agg.Job.ID); err != nil {
		return err
	}
	for after, more := int64(0), true; more; more = after > 0 {
		var page []HistoryEntry
		if page, after, err = l.History(ctx, agg.Job.ID, after, 1000); err != nil {
			return err
		}
		archived.History = append(archived.History, page...)
	}
	if err := l.archive(ctx, archived); err != nil {
		return fmt.Errorf("archive job %s: %w", agg.Job.ID, err)
	}
	return nil
}

// dropHintsOf deletes the last ready hint of each of the job's work items: a
// claimer may have died before it did, and a hint without a job is no longer known
// to be void.
func (l *Ledger) dropHintsOf(ctx context.Context, s *snapshot) error {
	prefix := l.jobKey(s.jobID(), rowItem)
	rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{
		Table: prefix.Table, Partition: prefix.Partition, From: prefix.Row + ":", To: tablestore.PrefixEnd(prefix.Row + ":"),
	})
	if err != nil {
		return fmt.Errorf("read the work items of job %s: %w", s.jobID(), err)
	}
	for i := range rows {
		var record workitem.Record
		if err := itemCodec.decode(&rows[i], &record); err != nil {
			return err
		}
		hint := l.hintOf(&s.agg, &record)
		if err := l.dropHint(ctx, &hint); err != nil {
			return err
		}
	}
	return nil
}

// releaseClaim deletes the claim of the job's key, unless it is another's now.
func (l *Ledger) releaseClaim(ctx context.Context, job *statemachine.Job, claim string) error {
	key := tablestore.Key{Table: l.tables.Idempotency, Partition: tablestore.Escape(job.TenantID), Row: claim}
	row, err := l.ownRow(ctx, key, job.ID)
	if err != nil || row.ETag == "" {
		return err
	}
	if _, err = l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}}); err != nil {
		return fmt.Errorf("forget the key of job %s: %w", job.ID, err)
	}
	return nil
}

// finishPurge deletes all rows of a job with a tombstone, that row last.
func (l *Ledger) finishPurge(ctx context.Context, s *snapshot) error {
	job := &s.agg.Job
	if l.projector != nil {
		if err := l.projector.Forget(ctx, job); err != nil {
			return err
		}
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
