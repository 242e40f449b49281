package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// endGrace is how long the work after the end of a job may take before a slot that
// is still held counts as a defect.
const endGrace = time.Minute

// MaxRefused is how often in a row the store may not be available for one job while it can be read, before a walk
// over the live jobs or the ready index goes on after that job: one bad row must not end the walk.
const MaxRefused = 3

// Finding is the result of inspecting one in-flight slot.
type Finding struct {
	JobID    string
	TenantID string // empty if the slot does not say
	// Job is the job, nil if it is missing or has ended.
	Job *statemachine.Aggregate
	// Repaired names a defect that was repaired; empty if there was none.
	Repaired string
	// Stuck names a defect that could not be repaired.
	Stuck string
}

// Fields returns the log fields that identify the finding's job.
func (f *Finding) Fields() statemachine.LogFields {
	if f.Job == nil {
		return statemachine.LogFields{JobID: f.JobID, TenantID: f.TenantID}
	}
	return statemachine.FieldsOf(&f.Job.Job, nil, 0)
}

// Inspect checks one page of the slots of a shard: each slot must have a live job, and each
// live job must have an entry or a ready hint that will continue it, or be paused. It
// repairs what it can, and returns the start of the next page. Jobs that cannot be read are
// skipped and returned as an error; an outage of the store, or the context's end, ends the page. If it ended the
// page at a job, next is the place after that job.
func (l *Ledger) Inspect(ctx context.Context, shard, limit int, from string) (findings []Finding, next string, bad error) {
	page, err := l.slotPage(ctx, "", shard, limit, from)
	if err != nil {
		return nil, "", err
	}
	findings = make([]Finding, 0, len(page.Rows))
	for _, row := range page.Rows {
		finding, err := l.inspect(ctx, row)
		if err == nil {
			findings = append(findings, finding)
			continue
		}
		err = fmt.Errorf("inspect job %s: %w", finding.JobID, err)
		if tablestore.IsOutage(err) || ctx.Err() != nil {
			return findings, row.Key.Row + "\x00", err
		}
		bad = errors.Join(bad, err)
	}
	return findings, page.Next, bad
}

// inspect checks one slot and its job.
func (l *Ledger) inspect(ctx context.Context, slot tablestore.Row) (Finding, error) {
	found := Finding{JobID: slot.Properties.Get(columnJob).String()}
	if parts, err := tablestore.Split(slot.Key.Row); err == nil && len(parts) == 3 { // See [Ledger.slotOf].
		found.TenantID = parts[1]
	}
	s, err := l.load(ctx, found.JobID)
	switch {
	case errors.Is(err, ErrJobNotFound):
		var taken slotRow
		if err := slotCodec.Decode(&slot, &taken); err != nil || time.Since(taken.CreatedAt) < orphanGrace {
			return found, err // The accept may still commit.
		}
		if inserted, err := l.insertTombstone(ctx, &statemachine.Job{ID: found.JobID}); err != nil || !inserted {
			return found, err
		}
		found.Repaired = "slot of a command that never came"
		_, err = l.reclaimSlot(ctx, slot)
		return found, err
	case err != nil:
		return found, err
	case s.head.Tombstone || s.head.Slot.Row != slot.Key.Row:
		gone, err := l.reclaimSlot(ctx, slot)
		if gone {
			found.Repaired = "slot of a job that does not hold it"
		}
		return found, err
	case s.agg.Job.State.Terminal():
		if time.Since(s.agg.Job.CompletedAt) < endGrace {
			return found, nil
		}
		found.Repaired = "end of a job not followed up"
		return found, l.finishEnd(ctx, s)
	}
	found.Job = &s.agg
	if s.agg.Job.AwaitsTurn() {
		if err := l.inspectLine(ctx, &s.agg.Job, &found); err != nil {
			return found, err
		}
	}
	return found, l.inspectLive(ctx, s, &found)
}

// inspectLine looks at the line of a job that waits for its turn, at most once a minute for each line.
func (l *Ledger) inspectLine(ctx context.Context, job *statemachine.Job, found *Finding) error {
	now := time.Now()
	if last, known := l.inspected.Get(job.Place.Line); known && now.Sub(last) < endGrace {
		return nil
	}
	l.inspected.Add(job.Place.Line, now)
	f, err := l.readFront(ctx, job.Place.Line)
	if err != nil {
		return err
	}
	if f.job != nil && f.job.AwaitsTurn() && now.Sub(f.job.UpdatedAt) > endGrace && now.Sub(f.since) > endGrace {
		found.Repaired = "first in its line, and had not begun"
	}
	return l.look(ctx, job.Place.Line, nil)
}

// inspectLive checks that something will continue a live job: an entry in the schedule or a
// hint in the ready index.
func (l *Ledger) inspectLive(ctx context.Context, s *snapshot, found *Finding) error {
	ref := s.head.Entry
	switch {
	case s.queued() && l.cfg.Bus != statemachine.BusQueue:
		// This process publishes to another bus: the attempt leaves the queue.
		_, err := l.change(ctx, found.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
		found.Repaired = "directive waited in the pull queue, and the bus was changed"
		if err != nil || ref.Kind == "" {
			return err
		}
	case s.queued():
		missing, err := l.restoreHint(ctx, s)
		if missing {
			found.Repaired = "ready hint missing"
		}
		if ref.Kind == "" && statemachine.NextWake(&s.agg).Kind != statemachine.WakeNone {
			found.Stuck = "has no schedule entry"
		}
		if err != nil || ref.Kind == "" {
			return err
		}
	case ref.Kind == "":
		switch {
		case statemachine.NextWake(&s.agg).Kind != statemachine.WakeNone:
			found.Stuck = "has no schedule entry"
		case s.agg.Job.State != statemachine.JobPaused && !s.agg.Job.AwaitsTurn():
			found.Stuck = "it is neither paused nor queued, and nothing is due"
		}
		return nil
	}
	_, err := l.store.Get(ctx, l.entryKey(found.JobID, ref))
	if err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return err
	}
	// A change since the load may have replaced the entry.
	now, err := l.load(ctx, found.JobID)
	if errors.Is(err, ErrJobNotFound) || err == nil && now.head.Entry != ref {
		return nil
	}
	if err != nil {
		return err
	}
	found.Repaired = "schedule entry missing"
	_, err = l.store.Commit(ctx, tablestore.Batch{l.putEntry(&now.agg, ref, reservation{})})
	return err
}

// restoreHint writes the hint of a queued item if it is missing, which is a defect,
// and reports whether it was.
func (l *Ledger) restoreHint(ctx context.Context, s *snapshot) (missing bool, err error) {
	if !s.queued() || s.open == nil {
		return false, nil
	}
	hint := l.hintOf(&s.agg, s.open)
	put := l.putHint(&hint)
	if _, err = l.store.Get(ctx, put.Key); err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return false, err
	}
	// A claim since the load may have deleted the hint.
	now, err := l.load(ctx, s.agg.Job.ID)
	if errors.Is(err, ErrJobNotFound) || err == nil && judgeHint(&hint, now) != HintNamed {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, err := l.store.Commit(ctx, tablestore.Batch{put}); err != nil {
		return false, fmt.Errorf("restore the ready hint of work item %s: %w", hint.WorkID, err)
	}
	l.cfg.Ready(hint, true)
	return true, nil
}

// InspectHint checks one hint for the reconciler, and deletes a void one. After the grace
// period it makes the commit of an early hint impossible, and returns repaired. The next
// inspection decides about the hint, because that commit may have landed first.
func (l *Ledger) InspectHint(ctx context.Context, h Hint) (repaired bool, err error) {
	id, err := ParseOutboxID(h.WorkID)
	if err != nil {
		return false, err
	}
	s, err := l.load(ctx, id.JobID) // nil if the job is missing
	if err != nil && !errors.Is(err, ErrJobNotFound) {
		return false, err
	}
	switch judgeHint(&h, s) {
	case HintVoid:
		return false, l.dropHint(ctx, &h)
	case HintNamed:
		return false, nil
	case HintEarly:
	}
	if time.Since(h.Since) < orphanGrace {
		return false, nil
	}
	if s == nil {
		return l.insertTombstone(ctx, &statemachine.Job{ID: id.JobID})
	}
	_, err = l.change(ctx, id.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
	return err == nil, err
}

// ReadyWalk is a position in a walk over the whole ready index; the zero value is
// its beginning.
type ReadyWalk struct {
	work  []WorkClass
	shard int
	from  string
	// refused is how often in a row the hint at from met an outage.
	refused int
}

// InspectReady checks one page of the ready index by [Ledger.InspectHint] and moves the
// walk forward. It returns how many hints it saw, how many it repaired, and whether the
// walk reached its end and will start over. Rows and jobs that cannot be read are skipped
// and returned as an error; an outage of the store ends the page, at one hint at most [MaxRefused] - 1 times in a row.
func (l *Ledger) InspectReady(ctx context.Context, w *ReadyWalk, limit int,
) (seen, repaired int, ended bool, err error) {
	var unknown error
	if len(w.work) == 0 {
		if w.work, unknown, err = l.WorkClasses(ctx); err != nil || len(w.work) == 0 {
			return 0, 0, !tablestore.IsOutage(err), errors.Join(err, unknown)
		}
	}
	hints, more, bad, err := l.ReadyHints(ctx, w.work[0], w.shard, w.from, "", limit)
	if tablestore.IsOutage(err) {
		return 0, 0, false, err
	}
	bad = errors.Join(unknown, bad, err) // A row that the store cannot decode hides the rest of its shard.
	for i := range hints {
		fixed, err := l.InspectHint(ctx, hints[i])
		if err != nil {
			err = fmt.Errorf("inspect the hint of work item %s: %w", hints[i].WorkID, err)
		}
		if tablestore.IsOutage(err) {
			if w.refused++; w.refused < MaxRefused {
				return seen, repaired, false, err
			}
		}
		w.refused = 0
		bad = errors.Join(bad, err)
		if fixed {
			repaired++
		}
		seen++
		w.from = hints[i].Row() + "\x00"
	}
	if more {
		return seen, repaired, false, bad
	}
	if w.from, w.shard = "", w.shard+1; w.shard == l.cfg.ReadyShards {
		w.shard, w.work = 0, w.work[1:]
	}
	return seen, repaired, len(w.work) == 0, bad
}
