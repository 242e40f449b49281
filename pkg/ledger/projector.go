package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Projector copies the jobs to other tables, for readers of another layout. The
// ledger's rows stay the source of truth.
//
// The ledger projects a change after its commit. A timer, due within seconds, stays
// in the schedule until that is done, so a crash in between delays the projections
// but never makes them wrong.
//
// Source: Ledger and state model, Data model.
type Projector interface {
	// Project updates a job's rows from revision r.After to r.Job.Rev, never back, and
	// returns the revision that they now show. If that is below r.Job.Rev, the rows
	// lacked more than the changes since r.After: the ledger calls again with all
	// changes since the returned revision. Several processes may project one job, and
	// one revision twice.
	Project(ctx context.Context, r *Revision) (int64, error)
	// Forget deletes the rows of a purged job, of which only id and tenant are set.
	Forget(ctx context.Context, job *statemachine.Job) error
}

// Revision is a job at a revision, with what changed since an earlier one. The
// receiver must not write to it.
type Revision struct {
	Job statemachine.Job
	// After is the revision before the changes, 0 for all of them.
	After int64
	// Outbox holds the outbox rows that changed, as they are now.
	Outbox []OutboxRow
	// History holds the entries of the changes, oldest first.
	History []HistoryEntry
}

// OutboxRow is an outbox row that changed.
type OutboxRow struct {
	statemachine.Outbox
	// Directive is the directive of the row's attempt, or nil if these changes did not
	// make it.
	Directive []byte
	// New says that these changes made the row.
	New bool
}

// revision returns what the change did, for the projector.
func (p *planner) revision(message *Message) *Revision {
	r := &Revision{Job: p.d.After.Job, After: p.d.After.Job.Rev - 1, History: p.journalRow().history()}
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

// finish updates the projections and looks at the job's line after a commit. Once that and the post stages
// are done, it deletes the obsolete entries. postErr is the error of the post stages, which the
// projections and the look do not wait for.
func (l *Ledger) finish(ctx context.Context, plan *plan, postErr error) error {
	if plan.revision == nil && !plan.looks {
		return postErr
	}
	postErr = l.projectPlan(ctx, plan, postErr)
	if !plan.looks {
		if postErr != nil {
			return postErr
		}
		return l.commitEach(ctx, plan.forget)
	}
	forget := plan.forget
	if postErr != nil {
		forget = nil
	}
	if l.cfg.Later == nil {
		return errors.Join(postErr, l.follow(ctx, &plan.after.Job, forget))
	}
	ctx = context.WithoutCancel(ctx)
	l.cfg.Later(func() { _ = l.follow(ctx, &plan.after.Job, forget) }) // After an error the entry repeats it.
	return postErr
}

// projectPlan projects what the plan changed. It adds its error to that of the post stages.
func (l *Ledger) projectPlan(ctx context.Context, plan *plan, postErr error) error {
	if plan.revision == nil {
		return postErr
	}
	return errors.Join(postErr, l.project(ctx, plan.revision))
}

// projectAgain updates the projections to the loaded revision, if they are behind.
func (l *Ledger) projectAgain(ctx context.Context, s *snapshot) error {
	return l.project(ctx, &Revision{Job: s.agg.Job, After: s.agg.Job.Rev})
}

// project updates the projections of a job to a revision. If they lack earlier
// changes, it reads those. Projections written after the job was purged are deleted.
func (l *Ledger) project(ctx context.Context, r *Revision) error {
	if l.cfg.Projector == nil {
		return nil
	}
	job := r.Job
	err := tablestore.Retry(ctx, l.cfg.Random, func() error {
		at, err := l.cfg.Projector.Project(ctx, r)
		if err != nil {
			return err
		}
		if at >= r.Job.Rev {
			if time.Since(r.Job.UpdatedAt) < postDelay {
				return nil // No job is purged so soon.
			}
			// A purge that begins after this read finds the projections.
			if _, err = l.loadExisting(ctx, job.ID); errors.Is(err, ErrJobNotFound) {
				return l.deleteProjections(ctx, &r.Job)
			}
			return err
		}
		job = r.Job
		r, err = l.revisionSince(ctx, job.ID, at)
		if errors.Is(err, ErrJobNotFound) {
			return l.deleteProjections(ctx, &job)
		}
		if err != nil {
			return err
		}
		return tablestore.ErrConflict
	})
	if err != nil {
		return fmt.Errorf("project job %s: %w", job.ID, err)
	}
	return nil
}

// deleteProjections deletes projections written after the job was purged.
func (l *Ledger) deleteProjections(ctx context.Context, job *statemachine.Job) error {
	if l.cfg.Projector == nil {
		return nil
	}
	if err := l.cfg.Projector.Forget(ctx, job); err != nil {
		return fmt.Errorf("delete the projections of job %s: %w", job.ID, err)
	}
	return nil
}

// revisionSince reads the job as it is now, and what changed after that revision. It
// returns [ErrJobNotFound], also for a job that is being purged.
func (l *Ledger) revisionSince(ctx context.Context, jobID string, after int64) (*Revision, error) {
	s, err := l.loadExisting(ctx, jobID)
	if err != nil {
		return nil, err
	}
	r := &Revision{Job: s.agg.Job, After: after}
	history, err := l.historyAfter(ctx, jobID, after)
	if err != nil {
		return nil, err
	}
	changed := map[string]bool{}
	for i := range history {
		if history[i].Rev > r.Job.Rev {
			break // Committed after the load.
		}
		r.History = append(r.History, history[i])
		if history[i].Object == statemachine.ObjectOutbox {
			changed[history[i].ID] = true
		}
	}
	for i := range s.outboxes {
		var row statemachine.Outbox
		if err := outboxCodec.Decode(&s.outboxes[i], &row); err != nil {
			return nil, err
		}
		if !changed[row.ID] {
			continue
		}
		directive, err := l.Directive(ctx, jobID, row.StepIndex, row.AttemptNo)
		if err != nil {
			return nil, err
		}
		r.Outbox = append(r.Outbox, OutboxRow{Outbox: row, Directive: directive})
	}
	return r, nil
}
