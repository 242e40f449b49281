package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// finishEnd repeats the work after the end of a job: it announces the end, frees the
// slot, schedules the purge, and updates the projections.
func (l *Ledger) finishEnd(ctx context.Context, s *snapshot) error {
	job := &s.agg.Job
	stage, err := l.releaseSlot(ctx, s.head.Slot, job.ID)
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
	if job.Place.Line != "" {
		if err := l.follow(ctx, job, nil); err != nil {
			return err
		}
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
	return tablestore.Stage{{l.purgeEntry(job, due)}}
}

// purgeEntry writes an entry that purges a job.
func (l *Ledger) purgeEntry(job *statemachine.Job, due time.Time) tablestore.Op {
	ref := entryRef{Kind: Retention, Due: due.Truncate(time.Millisecond), Nonce: "0"}
	return l.putEntry(&statemachine.Aggregate{Job: *job}, ref, reservation{})
}

// putOff writes an entry that purges a job of a line later; none if the job may be purged. It is put off while
// a place names the job, which blocks the line or whose rerun has the place. The retention of a job that was
// released counts from the release, so that it can still be rerun. Replicas that put off one entry at the
// same time write the same row. It is never the old entry's, not even if the clock has gone back.
func (l *Ledger) putOff(ctx context.Context, job *statemachine.Job, old time.Time) (tablestore.Batch, error) {
	if job.Place.Line == "" {
		return nil, nil
	}
	if err := l.follow(ctx, job, nil); err != nil {
		return nil, err
	}
	now := tablestore.Now()
	if now.Before(old) {
		now = old
	}
	p, err := l.readPlace(ctx, job.Place)
	switch {
	case err != nil:
		return nil, err
	case p != nil && (p.JobID == job.ID || p.Took == job.ID):
		return tablestore.Batch{l.purgeEntry(job, now.Add(purgeAgain).Truncate(purgeAgain))}, nil
	case job.Standing() != statemachine.PlaceBlocks:
		return nil, nil
	}
	rejected, err := l.Rejected(ctx, job.ID)
	released := *job
	for i := range rejected {
		if rejected[i].Kind == kindRelease {
			released.CompletedAt = rejected[i].At
		}
	}
	if due := l.purgeAt(&released); due.After(now) {
		return tablestore.Batch{l.purgeEntry(job, due)}, err
	}
	return nil, err
}

// retainTombstone deletes the index rows of an abandoned accept, and writes the entry that
// deletes its tombstone. The tombstone is kept as long as a job, and longer than a commit
// can be delayed: a late commit must find it.
func (l *Ledger) retainTombstone(job *statemachine.Job) tablestore.Stage {
	stage := discards(l.indexKeys(job))
	if l.cfg.Retention == 0 {
		return stage
	}
	due := tablestore.Now().Add(max(l.cfg.Retention, l.cfg.KeyTTL, orphanGrace))
	return append(stage, tablestore.Batch{l.purgeEntry(job, due)})
}

// keyExpired reports whether the job's idempotency key may name another command. The record
// of a rerun names no other: it is kept as long as the rerun, and so at least as long as the
// job that it repeats.
func (l *Ledger) keyExpired(s *snapshot, now time.Time) bool {
	return !s.head.Tombstone && l.cfg.KeyTTL > 0 && s.agg.Job.RerunOf == "" &&
		s.agg.Job.Occurrence.ScheduleID == "" && s.agg.Job.State.Terminal() &&
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
	// PurgeLater: the retention is longer than when the job ended, the work after its end is not
	// done, or the job blocks its line or was released from it within the retention.
	PurgeLater
	// PurgeNever: the job may not be purged.
	PurgeNever
	// PurgeElsewhere: another process has purged the job, or is purging it, or a later entry of the job decides.
	PurgeElsewhere
)

// String returns the outcome's name in metrics.
func (p Purged) String() string { return [...]string{"", "purged", "later", "never", "elsewhere"}[p] }

// PurgeResult is the result of purging the job of one entry. After an error the entry stays.
type PurgeResult struct {
	Outcome Purged
	Err     error
}

const (
	// purgedAtOnce is how many jobs are purged concurrently if each takes several writes.
	purgedAtOnce = 16
	// purgeHold is how long the job of a tombstone is left to the process that began to purge
	// it. After that, the process is taken to have crashed.
	purgeHold = 30 * time.Second
	// purgeAgain is how long the purge of a job is put off, at most, that a place of its line names. A line may
	// be blocked for months.
	purgeAgain = time.Minute
)

// Purge deletes the ended jobs of these entries, of which no two may be equal, if they are due
// and the work that follows their ends is done, so that nothing of them is written later. It
// returns a result for each entry, in their order. Several processes may purge one job.
//
// On an atomic store all jobs are purged in one write: the record of each idempotency key that
// is still the job's own, the index rows, the whole partition and the entry. A conflict on one
// job repeats the write without it.
//
// On any other store, and with projections, a purge takes several writes. It deletes the record
// first, under its version, so that a purged job can never be executed again through its own
// record, while a key that has come to name another command stays. Then the Job row becomes a
// tombstone, so that no reader sees half a job. The entry is deleted last, so that another pass
// continues after a crash.
//
// Source: Ledger and state model, Idempotency strategy.
func (l *Ledger) Purge(ctx context.Context, entries []Entry) []PurgeResult {
	results := make([]PurgeResult, len(entries))
	if l.atomic != nil && l.cfg.Projector == nil {
		err := tablestore.Retry(ctx, l.cfg.Random, func() error { return l.purgeTogether(ctx, entries, results) })
		for i := range results {
			if err != nil && results[i].Err == nil {
				results[i] = PurgeResult{Err: fmt.Errorf("purge job %s: %w", entries[i].JobID, err)}
			}
		}
		return results
	}
	var group errgroup.Group
	group.SetLimit(purgedAtOnce)
	for i := range entries {
		group.Go(func() error {
			results[i].Outcome, results[i].Err = l.purgeStepwise(ctx, entries[i])
			return nil
		})
	}
	_ = group.Wait() // The results hold the errors.
	return results
}

// purgeTogether purges the jobs in one write. It returns [tablestore.ErrConflict] if another
// process has changed one of them since it was read.
func (l *Ledger) purgeTogether(ctx context.Context, entries []Entry, results []PurgeResult) error {
	jobs, err := l.getAll(ctx, entries, func(i int) tablestore.Key { return l.jobKey(entries[i].JobID, rowJob) })
	if err != nil {
		return err
	}
	last := make(map[string]int, len(entries)) // The job's other entries are deleted before this one may be put off.
	for i := range entries {
		last[entries[i].JobID] = i
	}
	snapshots, later := make([]snapshot, len(entries)), make(tablestore.Stage, len(entries))
	for i := range entries {
		s := &snapshots[i]
		s.job, results[i] = jobs[0][i], PurgeResult{Outcome: PurgeElsewhere}
		if s.job.ETag != "" && last[entries[i].JobID] == i {
			results[i].Err = decodeJob(&s.job, &s.agg.Job, &s.head)
			results[i].Outcome = l.purgeable(s)
		}
		if results[i] == (PurgeResult{Outcome: PurgeDone}) && !s.head.Tombstone {
			if later[i], results[i].Err = l.putOff(ctx, &s.agg.Job, entries[i].Due); later[i] != nil {
				results[i].Outcome = PurgeLater
			}
		}
	}
	found, err := l.getAll(ctx, entries,
		func(i int) tablestore.Key {
			return l.recordKey(snapshots[i].agg.Job.TenantID, snapshots[i].agg.Job.Occurrence.ScheduleID, snapshots[i].head.Record)
		},
		func(i int) tablestore.Key { return l.entryKeyOf(&snapshots[i]) },
	)
	if err != nil {
		return err
	}
	records, named := found[0], found[1]
	var archiving errgroup.Group
	archiving.SetLimit(purgedAtOnce)
	for i := range entries {
		if results[i] == (PurgeResult{Outcome: PurgeDone}) && named[i].ETag == "" {
			archiving.Go(func() error {
				results[i].Err = l.archive(ctx, &snapshots[i])
				return nil
			})
		}
	}
	_ = archiving.Wait() // The results hold the errors.
	var batches []tablestore.Batch
	for i := range entries {
		s, result := &snapshots[i], &results[i]
		switch {
		case result.Err != nil:
			continue
		case result.Outcome == PurgeDone && named[i].ETag != "":
			result.Outcome = PurgeLater // The work after the end is not done; it would continue after the purge.
			continue
		case later[i] != nil:
			batches = append(batches, later[i])
		case result.Outcome == PurgeLater && l.purgeAt(&s.agg.Job).Equal(entries[i].Due):
			continue // The clock has gone back since the entry was due: it stays.
		case result.Outcome == PurgeDone:
			batches = append(batches, l.purgeBatches(s, &records[i])...)
		case result.Outcome == PurgeLater:
			batches = append(batches, l.retain(&s.agg.Job)...)
		}
		batches = append(batches, tablestore.Batch{l.discardEntry(entries[i].JobID, entries[i].ref())})
	}
	if len(batches) == 0 {
		return nil
	}
	_, err = l.atomic.CommitAll(ctx, batches, nil)
	return err
}

// getAll reads, in one request, the row of each entry by each of the functions; the zero row for
// a key without a row.
func (l *Ledger) getAll(ctx context.Context, entries []Entry, of ...func(i int) tablestore.Key) ([][]tablestore.Row, error) {
	rows := make([][]tablestore.Row, len(of))
	keys := make([]tablestore.Key, 0, len(of)*len(entries))
	places := make([]*tablestore.Row, 0, len(of)*len(entries))
	for n, key := range of {
		rows[n] = make([]tablestore.Row, len(entries))
		for i := range entries {
			if k := key(i); k.Row != "" {
				keys, places = append(keys, k), append(places, &rows[n][i])
			}
		}
	}
	found, err := l.atomic.GetAll(ctx, keys)
	for i := range found {
		*places[i] = found[i]
	}
	return rows, err
}

// purgeBatches returns the writes that purge a job on an atomic store. No hint of the job is
// left: each change that ends an item deletes its hint in the same write.
//
// Clear may leave a row that another process inserts at the same time. None does:
// [Ledger.Reject] ends a [purgeMargin] before.
func (l *Ledger) purgeBatches(s *snapshot, record *tablestore.Row) []tablestore.Batch {
	batches := []tablestore.Batch{{{Verb: tablestore.Delete, Key: s.job.Key, ETag: s.job.ETag}}}
	batches = append(batches, tablestore.Batch{
		{Verb: tablestore.Clear, Key: tablestore.Key{Table: s.job.Key.Table, Partition: s.job.Key.Partition}},
	})
	if ofJob(record, s.agg.Job.ID) {
		batches = append(batches, tablestore.Batch{forgetRecord(&s.agg.Job, record)})
	}
	return append(batches, discards(l.listedKeys(&s.agg.Job))...)
}

// purgeable returns PurgeDone for a job that is due, and for a tombstone.
func (l *Ledger) purgeable(s *snapshot) Purged {
	due := l.purgeAt(&s.agg.Job)
	switch {
	case s.head.Tombstone:
		return PurgeDone
	case !s.agg.Job.State.Terminal() || due.IsZero():
		return PurgeNever
	case due.After(time.Now()):
		return PurgeLater
	}
	return PurgeDone
}

// entryKeyOf addresses the entry that an ended job's head names; without a row if it names none.
func (l *Ledger) entryKeyOf(s *snapshot) tablestore.Key {
	if s.head.Entry.Kind == "" {
		return tablestore.Key{}
	}
	return l.entryKey(s.agg.Job.ID, s.head.Entry)
}

// purgeStepwise purges a job by several writes.
func (l *Ledger) purgeStepwise(ctx context.Context, entry Entry) (Purged, error) {
	s, err := l.load(ctx, entry.JobID)
	if errors.Is(err, ErrJobNotFound) {
		return PurgeElsewhere, l.drop(ctx, entry)
	}
	if err != nil {
		return 0, err
	}
	switch outcome := l.purgeable(s); {
	case outcome == PurgeNever:
		return outcome, l.drop(ctx, entry)
	case outcome == PurgeLater && l.purgeAt(&s.agg.Job).Equal(entry.Due):
		return outcome, nil // The clock has gone back since the entry was due: it stays.
	case outcome == PurgeLater:
		if err := l.commitEach(ctx, l.retain(&s.agg.Job)); err != nil {
			return 0, fmt.Errorf("put off the purge of job %s: %w", entry.JobID, err)
		}
		return outcome, l.drop(ctx, entry)
	case s.head.Tombstone && time.Since(s.agg.Job.UpdatedAt) < purgeHold:
		return PurgeElsewhere, nil
	case !s.head.Tombstone:
		switch _, err := l.store.Get(ctx, l.entryKeyOf(s)); {
		case err == nil:
			return PurgeLater, nil // The work after the end is not done; it would continue after the purge.
		case !errors.Is(err, tablestore.ErrNotFound):
			return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
		}
		switch later, err := l.putOff(ctx, &s.agg.Job, entry.Due); {
		case err != nil:
			return 0, err
		case later != nil:
			if _, err := l.store.Commit(ctx, later); err != nil {
				return 0, fmt.Errorf("put off the purge of job %s: %w", entry.JobID, err)
			}
			return PurgeLater, l.drop(ctx, entry)
		}
		err = l.beginPurge(ctx, s)
		if errors.Is(err, tablestore.ErrConflict) {
			return PurgeElsewhere, nil
		}
	}
	if err == nil {
		err = l.finishPurge(ctx, s)
	}
	if err != nil {
		return 0, fmt.Errorf("purge job %s: %w", entry.JobID, err)
	}
	return PurgeDone, l.drop(ctx, entry)
}

// archive passes a job to the archive, if there is one.
func (l *Ledger) archive(ctx context.Context, s *snapshot) error {
	if l.cfg.Archive == nil || s.head.Tombstone {
		return nil
	}
	s, err := l.load(ctx, s.agg.Job.ID)
	if err != nil {
		return err
	}
	job := &s.agg.Job
	archived := &Archived{Aggregate: s.agg}
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
	archived.History = rejected.Merge(archived.History, 0, 0)
	if err := l.cfg.Archive(ctx, archived); err != nil {
		return fmt.Errorf("archive job %s: %w", job.ID, err)
	}
	return nil
}

// beginPurge archives the job, deletes its hints and its idempotency record, and replaces the Job
// row by a tombstone.
func (l *Ledger) beginPurge(ctx context.Context, s *snapshot) error {
	if err := l.archive(ctx, s); err != nil {
		return err
	}
	job := &s.agg.Job
	// A claim may have crashed before it deleted its hint. Without the job the hint
	// would no longer be known to be void.
	items, err := tablestore.ScanAll(ctx, l.store, rowsOf(l.jobKey(job.ID, rowItem)))
	if err != nil {
		return fmt.Errorf("read the work items: %w", err)
	}
	for i := range items {
		var record statemachine.ItemRecord
		if err := itemCodec.Decode(&items[i], &record); err != nil {
			return err
		}
		hint := l.hintOf(&s.agg, &record)
		if err := l.dropHint(ctx, &hint); err != nil {
			return err
		}
	}

	key := l.recordKey(job.TenantID, job.Occurrence.ScheduleID, s.head.Record)
	record, err := l.ownRow(ctx, key, job.ID)
	if err != nil {
		return err
	}
	if record.ETag != "" {
		if _, err := l.store.Commit(ctx, tablestore.Batch{forgetRecord(job, &record)}); err != nil {
			return fmt.Errorf("delete the idempotency record: %w", err)
		}
	}
	// The tombstone keeps what names the job's other rows, and since when it is purged.
	rest := statemachine.Job{
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID, Supersedes: job.Supersedes, State: job.State,
		DocID: job.DocID, Tags: job.Tags, CallbackURLs: job.CallbackURLs, UpdatedAt: tablestore.Now(),
	}
	_, err = l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.job.Key, ETag: s.job.ETag,
		Properties: encodeJob(&rest, &head{Tombstone: true, Record: s.head.Record}, nil),
	}})
	return err
}

// finishPurge deletes all rows of a job, its tombstone last.
func (l *Ledger) finishPurge(ctx context.Context, s *snapshot) error {
	var group errgroup.Group
	for _, batch := range discards(l.listedKeys(&s.agg.Job)) {
		group.Go(func() error {
			_, err := l.store.Commit(ctx, batch)
			return err
		})
	}
	group.Go(func() error { return l.deleteProjections(ctx, &s.agg.Job) })
	group.Go(func() error {
		partition := tablestore.Query{Table: l.tables.Ledger, Partition: s.job.Key.Partition}
		return tablestore.DiscardAll(ctx, l.store, partition, s.job.Key.Row)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: s.job.Key}})
	return err
}

// discards deletes rows; neighbours of one partition in one batch.
func discards(keys []tablestore.Key) tablestore.Stage {
	var stage tablestore.Stage
	for _, key := range keys {
		stage = append(stage, tablestore.Batch{{Verb: tablestore.Discard, Key: key}})
	}
	return merged(stage)
}

// listedKeys returns the keys of all rows that list a job or its webhooks.
func (l *Ledger) listedKeys(job *statemachine.Job) []tablestore.Key {
	keys := l.indexKeys(job)
	for i := range job.CallbackURLs {
		keys = append(keys, l.undeliveredKeys(job.TenantID, job.ID, i)...)
	}
	return keys
}
