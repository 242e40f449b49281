package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// orphanGrace is how long past its time an entry stays whose change has not
// landed: far beyond the bound on how late a commit can be sent after it.
const orphanGrace = 5 * time.Minute

// ActorSystem is the actor of changes that nobody asked for: deadlines, and
// rows that a relay takes up.
const ActorSystem = "system"

// FireOutcome is what [Ledger.Fire] did with a schedule entry.
type FireOutcome uint8

// The outcomes.
const (
	// Acted: the entry stood for the job, and the event was brought to it.
	Acted FireOutcome = iota + 1
	// Stale: the job does not name the entry; it was deleted.
	Stale
	// Early: the entry's change may still be under way; it was left alone.
	Early
	// Finished: the job has ended, and what follows its end was done again.
	Finished
	// Orphaned: the change was made impossible, unless it landed first. The next pass
	// judges the entry again.
	Orphaned
)

// String returns the name of the outcome in metrics.
func (s FireOutcome) String() string {
	return [...]string{"", "acted", "stale", "early", "finished", "orphaned"}[s]
}

// Fire handles a due entry: the job is loaded, and the event brought to it if
// the entry stands for the job. Two processes that fire one entry are harmless.
func (l *Ledger) Fire(ctx context.Context, entry Entry, event statemachine.Event) (FireOutcome, Result, error) {
	s, err := l.load(ctx, entry.JobID)
	missing := errors.Is(err, ErrJobNotFound)
	switch {
	case err != nil && !missing:
		return 0, Result{}, err
	case missing || !s.head.tombstone && s.agg.Job.Rev < entry.Rev:
		return l.fireEarly(ctx, entry, s)
	case s.head.tombstone:
		return l.firePurged(ctx, entry)
	case s.head.entry != entry.ref():
		// It may be the one that remembers what follows a change.
		if err := l.projectAgain(ctx, s); err != nil {
			return 0, Result{}, err
		}
		if s.agg.Job.State.Terminal() {
			if err := l.freeLost(ctx, entry); err != nil {
				return 0, Result{}, err
			}
		}
		return Stale, Result{}, l.drop(ctx, entry)
	case s.agg.Job.State.Terminal():
		if err := l.settleEnded(ctx, s); err != nil {
			return 0, Result{}, err
		}
		return Finished, Result{Job: s.agg}, l.drop(ctx, entry)
	}
	restored, err := l.restoreHint(ctx, s)
	if err != nil {
		return 0, Result{}, err
	}
	if restored {
		l.restored.Add(1)
	}
	result, err := l.change(ctx, entry.JobID, s, event, &options{actor: ActorSystem, entry: &entry})
	if err != nil {
		return 0, Result{}, err
	}
	return Acted, result, nil
}

// drop deletes an entry that stands for nothing.
func (l *Ledger) drop(ctx context.Context, entry Entry) error {
	if _, err := l.store.Commit(ctx, tablestore.Batch{l.discardEntry(entry.JobID, entry.ref())}); err != nil {
		return fmt.Errorf("delete a schedule entry of job %s: %w", entry.JobID, err)
	}
	return nil
}

// fireEarly leaves an entry whose change may be under way. Past the grace it
// makes that change impossible first, and only then deletes the entry. s is nil
// if there is no such job yet.
func (l *Ledger) fireEarly(ctx context.Context, entry Entry, s *snapshot) (FireOutcome, Result, error) {
	if time.Since(entry.Due) < orphanGrace {
		return Early, Result{}, nil
	}
	if s == nil && entry.reserved.claim == "" {
		// Only an accept's entry can be there before its job.
		return l.firePurged(ctx, entry)
	}
	var err error
	if s == nil {
		_, err = l.entomb(ctx, entry.JobID)
	} else {
		_, err = l.change(ctx, entry.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
	}
	return Orphaned, Result{}, err
}

// firePurged deletes an entry that is left of a job which is purged. Who was about to
// show the job may have died behind the purge.
func (l *Ledger) firePurged(ctx context.Context, entry Entry) (FireOutcome, Result, error) {
	if err := l.freeReservations(ctx, entry); err != nil {
		return 0, Result{}, err
	}
	if l.projector != nil {
		if err := l.takeBack(ctx, &statemachine.Job{ID: entry.JobID, TenantID: entry.TenantID}); err != nil {
			return 0, Result{}, err
		}
	}
	return Stale, Result{}, l.drop(ctx, entry)
}

// freeLost frees the slot that an accept reserved which lost the race for its job,
// where the job has ended: it may have taken the slot after the end had freed it.
func (l *Ledger) freeLost(ctx context.Context, entry Entry) error {
	return l.freeReserved(ctx, l.slotKey(entry.reserved.slot), entry.JobID)
}

// freeReservations frees the claim and the slot of an accept that can not come any
// more, if they still name its job.
func (l *Ledger) freeReservations(ctx context.Context, entry Entry) error {
	claim := tablestore.Key{
		Table: l.tables.Idempotency, Partition: tablestore.Escape(entry.TenantID), Row: entry.reserved.claim,
	}
	for _, key := range []tablestore.Key{claim, l.slotKey(entry.reserved.slot)} {
		if err := l.freeReserved(ctx, key, entry.JobID); err != nil {
			return err
		}
	}
	return nil
}

// entomb puts a tombstone in the place of a job that never came. It reports false
// where the job came after all.
func (l *Ledger) entomb(ctx context.Context, jobID string) (bool, error) {
	key := l.jobKey(jobID, rowJob)
	properties := encodeJob(&statemachine.Job{ID: jobID}, &head{tombstone: true}, nil)
	_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: properties}})
	if errors.Is(err, tablestore.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("give up on job %s: %w", jobID, err)
	}
	return true, nil
}

// freeReserved deletes a reservation if it names the job.
func (l *Ledger) freeReserved(ctx context.Context, key tablestore.Key, jobID string) error {
	if key.Row == "" {
		return nil
	}
	row, err := l.ownRow(ctx, key, jobID)
	if err != nil || row.ETag == "" {
		return err
	}
	_, err = l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}})
	if errors.Is(err, tablestore.ErrConflict) || err == nil {
		return nil
	}
	return fmt.Errorf("free a reservation of job %s: %w", jobID, err)
}
