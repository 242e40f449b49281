package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Projector shows the jobs in rows of other tables, for those who read them by
// another layout. The ledger's own rows stay the truth; these follow them.
//
// What a change asks for comes after its commit. Until it is known done an entry
// of the schedule remembers it, due within seconds, so that a crash in between
// leaves the rows late and never wrong.
//
// Source: Ledger and state model, Data model.
type Projector interface {
	// Project brings a job's rows from revision r.After up to r.Job.Rev, never
	// back, and returns the revision that they are at then. Below r.Job.Rev it was
	// not enough to know what changed since r.After: the ledger comes again with
	// all that changed since that revision. It may be called with the same
	// revision again, and for one job by many processes at once.
	Project(ctx context.Context, r *Revision) (int64, error)
	// Forget removes the rows of a job that is purged. Of the job its id and its
	// tenant are known.
	Forget(ctx context.Context, job *statemachine.Job) error
}

// Revision is a job as it is at a revision, with what changed since an earlier
// one. The receiver must not write to it.
type Revision struct {
	// Job is the job at that revision.
	Job statemachine.Job
	// After is the revision before the changes, 0 for all of them.
	After int64
	// Outbox are the outbox rows that changed, as they are now.
	Outbox []OutboxRow
	// History are the entries of the changes, oldest first.
	History []HistoryEntry
}

// OutboxRow is an outbox row that changed.
type OutboxRow struct {
	statemachine.Outbox
	// Directive is the directive of the row's attempt. It is nil where these
	// changes did not make it.
	Directive []byte
	// New says that the row came with these changes.
	New bool
}

// layout is how jobs lie in tables, by its name in the store.
type layout string

// The layouts. The store of the first says nothing of it.
const (
	layoutLedger layout = ""
	layoutTable  layout = "table"
)

// String returns the layout's name in the configuration.
func (l layout) String() string {
	if l == layoutLedger {
		return "ledger"
	}
	return string(l)
}

// layout is that of this ledger.
func (l *Ledger) layout() layout {
	if l.projector == nil {
		return layoutLedger
	}
	return layoutTable
}

// revision is what the change did, for the projector.
func (p *planner) revision(message *Message) *Revision {
	r := &Revision{Job: p.d.After.Job, After: p.d.After.Job.Rev - 1, History: p.history()}
	for _, row := range []*statemachine.Outbox{p.d.Replaced, p.d.Added} {
		if row == nil {
			continue
		}
		changed := OutboxRow{Outbox: *row, New: row == p.d.Added}
		if message != nil && message.OutboxID == row.ID {
			changed.Directive = message.Directive
		}
		r.Outbox = append(r.Outbox, changed)
	}
	return r
}

// history is the change's history as it can be read from its journal row.
func (p *planner) history() []HistoryEntry {
	entries := make([]HistoryEntry, len(p.d.History))
	for i, transition := range p.d.History {
		entries[i] = HistoryEntry{
			Rev: p.d.After.Job.Rev, Index: i, At: p.now, Event: p.eventName, Actor: p.options.actor,
			RequestID: p.options.requestID, Transition: transition,
		}
	}
	return entries
}

// finish does what follows the post stages of a change: the projections, and
// once all is known done the removal of the entries that remember it. postErr
// is that of the post stages; the projections do not wait for those.
func (l *Ledger) finish(ctx context.Context, plan *plan, postErr error) error {
	if plan.revision == nil {
		return postErr
	}
	if err := l.project(ctx, plan.revision); err != nil || postErr != nil {
		return errors.Join(postErr, err)
	}
	return l.commitEach(ctx, plan.forget)
}

// projectAgain brings the projections up to the job as it was loaded, or finds
// them there.
func (l *Ledger) projectAgain(ctx context.Context, s *snapshot) error {
	return l.project(ctx, &Revision{Job: s.agg.Job, After: s.agg.Job.Rev})
}

// project brings the projections of a job up to a revision. Where they are
// further behind than it knows of, it reads what they lack.
func (l *Ledger) project(ctx context.Context, r *Revision) error {
	if l.projector == nil {
		return nil
	}
	jobID := r.Job.ID
	err := tablestore.Retry(ctx, l.random, func() error {
		at, err := l.projector.Project(ctx, r)
		if err != nil {
			return err
		}
		if at >= r.Job.Rev {
			return l.recant(ctx, &r.Job)
		}
		known := &r.Job
		r, err = l.since(ctx, jobID, at)
		if errors.Is(err, ErrJobNotFound) {
			return l.takeBack(ctx, known)
		}
		if err != nil {
			return err
		}
		return tablestore.ErrConflict
	})
	if err != nil {
		return fmt.Errorf("project job %s: %w", jobID, err)
	}
	return nil
}

// recant takes back what was shown late of a job that is purged: the purge may have
// been there before. Where the job is still there, what was shown is there for its
// purge to find.
func (l *Ledger) recant(ctx context.Context, job *statemachine.Job) error {
	if time.Since(job.UpdatedAt) < postDelay {
		return nil // No job is purged so soon.
	}
	s, err := l.load(ctx, job.ID)
	switch {
	case err == nil && !s.head.tombstone:
		return nil
	case err != nil && !errors.Is(err, ErrJobNotFound):
		return err
	}
	return l.takeBack(ctx, job)
}

// takeBack removes what is shown of a job that is purged.
func (l *Ledger) takeBack(ctx context.Context, job *statemachine.Job) error {
	if err := l.projector.Forget(ctx, job); err != nil {
		return fmt.Errorf("take back what was shown of job %s: %w", job.ID, err)
	}
	return nil
}

// historyPage is how many changes are read at once.
const historyPage = 100

// since reads the job as it is now, and what changed after that revision. It
// returns [ErrJobNotFound], also for a job that is being purged.
func (l *Ledger) since(ctx context.Context, jobID string, after int64) (*Revision, error) {
	s, err := l.load(ctx, jobID)
	if err != nil {
		return nil, err
	}
	if s.head.tombstone {
		return nil, ErrJobNotFound
	}
	r := &Revision{Job: s.agg.Job, After: after}
	for from, more := after, true; more; more = from > 0 {
		var page []HistoryEntry
		if page, from, err = l.History(ctx, jobID, from, historyPage); err != nil {
			return nil, err
		}
		for i := range page {
			if page[i].Rev <= r.Job.Rev { // What came after the load is not this revision's.
				r.History = append(r.History, page[i])
			}
		}
	}
	return r, l.changedOutbox(ctx, r, s.outboxes)
}

// changedOutbox adds those of the rows that the revision's history names.
func (l *Ledger) changedOutbox(ctx context.Context, r *Revision, rows []tablestore.Row) error {
	changed := map[string]bool{}
	for i := range r.History {
		if r.History[i].Object == statemachine.ObjectOutbox {
			changed[r.History[i].ID] = true
		}
	}
	for i := range rows {
		var row statemachine.Outbox
		if err := outboxCodec.decode(&rows[i], &row); err != nil {
			return err
		}
		if !changed[row.ID] {
			continue
		}
		directive, err := l.Directive(ctx, r.Job.ID, row.StepIndex, row.AttemptNo)
		if err != nil {
			return err
		}
		r.Outbox = append(r.Outbox, OutboxRow{Outbox: row, Directive: directive})
	}
	return nil
}
