package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// lookStarts is how often a look starts again after a lost race.
	lookStarts = 5
	// maxRemoved is how many places one batch removes.
	maxRemoved = 90
	// pendingGrace is how long the job of a place may be missing. The accept's own entry ends the wait
	// sooner; this is for a place that arrives after that.
	pendingGrace = time.Minute
)

// LookOutcome is what a look did, for metrics.
type LookOutcome string

// The outcomes.
const (
	LookTurn   LookOutcome = "turn"   // it began a job
	LookIdle   LookOutcome = "idle"   // no job could begin
	LookFailed LookOutcome = "failed" // it is repeated by the schedule
)

// judged is what a place means.
type judged struct {
	standing statemachine.Standing
	s        *snapshot // of the job that the place names, nil if it is missing
	// job is the one that the standing is of: that of the place, or the one whose place a lost rerun took.
	job *statemachine.Job
}

// judge says what a place means. With settle it makes the accept of a job impossible that has been
// missing for long. Its answer "gone" holds for ever.
func (l *Ledger) judge(ctx context.Context, ln *line, p *place, settle bool) (judged, error) {
	if !p.ReleasedAt.IsZero() {
		return judged{}, nil
	}
	s, err := l.load(ctx, p.JobID)
	if errors.Is(err, ErrJobNotFound) {
		if !settle || time.Since(p.CreatedAt) < pendingGrace {
			return judged{standing: statemachine.PlaceHeld}, nil // Its accept will look again.
		}
		abandoned := &statemachine.Job{ID: p.JobID, TenantID: ln.TenantID}
		var inserted bool // It is not if the accept came after all.
		if inserted, err = l.insertTombstone(ctx, abandoned); inserted {
			err = l.commitEach(ctx, l.retainTombstone(abandoned))
		}
		if err != nil {
			return judged{}, err
		}
		s, err = l.load(ctx, p.JobID)
	}
	switch {
	case err != nil:
		return judged{}, err
	case s.head.Tombstone && p.Took == "":
		return judged{}, nil
	case s.head.Tombstone:
		took, err := l.load(ctx, p.Took)
		if errors.Is(err, ErrJobNotFound) || err == nil && took.head.Tombstone {
			return judged{}, nil
		}
		if err != nil {
			return judged{}, err
		}
		return judged{took.agg.Job.Standing(), took, &took.agg.Job}, nil
	case s.agg.Job.Place.Epoch != p.Epoch || s.agg.Job.Place.Seq != p.seq:
		return judged{}, nil
	}
	return judged{s.agg.Job.Standing(), s, &s.agg.Job}, nil
}

// look removes the places at the front of a line that are gone, and begins the job whose turn it is. It
// may be done at any time and by any process. forget deletes the entries of the change that the look
// follows, once it is done. Requests that come while a look waits for its turn share that look.
func (l *Ledger) look(ctx context.Context, id string, forget tablestore.Stage) error {
	open := l.lines.enter(id)
	defer l.lines.leave(id)
	l.lines.mu.Lock()
	if call := open.next; call != nil {
		l.lines.mu.Unlock()
		select {
		case <-call.done:
			switch {
			case call.left && ctx.Err() == nil:
				return l.look(ctx, id, forget)
			case call.err != nil:
				return call.err
			}
			return l.commitEach(ctx, forget)
		case <-ctx.Done():
			return fmt.Errorf("look at line %s: %w: %w", id, tablestore.ErrUnavailable, ctx.Err())
		}
	}
	call := &lookCall{done: make(chan struct{})}
	open.next = call
	l.lines.mu.Unlock()
	defer func() {
		call.left = call.err != nil && ctx.Err() != nil
		close(call.done)
	}()
	turn, err := l.lines.take(ctx, id)
	l.lines.mu.Lock()
	open.next = nil // The look begins: a request that comes now needs another one.
	l.lines.mu.Unlock()
	if err != nil {
		call.err = err
		return err
	}
	defer turn.end()
	outcome, err := l.lookInTurn(ctx, id, forget)
	l.cfg.Looked(outcome, err)
	if err != nil {
		call.err = fmt.Errorf("look at line %s: %w", id, err)
	}
	return call.err
}

// lookInTurn is look of the one who has the turn.
func (l *Ledger) lookInTurn(ctx context.Context, id string, forget tablestore.Stage) (LookOutcome, error) {
	outcome, handed := LookIdle, false
	for starts := 0; starts < lookStarts; {
		found, err := l.readFront(ctx, id)
		switch {
		case err != nil:
			return LookFailed, err
		case !found.whole:
			starts++
			continue
		}
		done, err := l.moveFront(ctx, found, &outcome, &forget, &handed)
		switch {
		case errors.Is(err, tablestore.ErrConflict):
			starts++
		case err != nil:
			return LookFailed, err
		case done:
			return outcome, nil
		}
	}
	return LookFailed, fmt.Errorf("lost %d races: %w", lookStarts, tablestore.ErrUnavailable)
}

// front is the beginning of a line: the places that are gone, and the first that is not.
type front struct {
	*line

	whole bool // the line was not removed while it was read
	gone  []*place
	more  bool // more places may be gone
	first *place
	judged
	since time.Time // when the job of the last place in gone ended or was released
}

// readFront reads the beginning of a line.
func (l *Ledger) readFront(ctx context.Context, id string) (f *front, err error) {
	f = &front{}
	f.line, f.whole, err = l.walkLine(ctx, id, func(ln *line, p *place) (bool, error) {
		if len(f.gone) == maxRemoved {
			f.more = true
			return false, nil
		}
		j, err := l.judge(ctx, ln, p, true)
		if err != nil || j.standing != statemachine.PlaceGone {
			f.first, f.judged = p, j
			return false, err
		}
		f.gone, f.since = append(f.gone, p), p.ReleasedAt
		if j.job != nil && j.job.CompletedAt.After(f.since) {
			f.since = j.job.CompletedAt
		}
		return true, nil
	})
	return f, err
}

// moveFront begins the job whose turn it is, and removes the places that are gone. On an atomic store
// both are one write, with the deletion of the entries in forget. It reports whether the look is done.
func (l *Ledger) moveFront(
	ctx context.Context, f *front, outcome *LookOutcome, forget *tablestore.Stage, handed *bool,
) (done bool, err error) {
	var writes []tablestore.Stage
	next := *f.line
	next.Count -= int64(len(f.gone))
	if f.first != nil && !f.Listed && (f.standing == statemachine.PlaceBlocks || next.Count > 1) {
		next.Listed = true
		writes = append(writes, tablestore.Stage{l.list(f.line)}) // Before LINE says so.
	}
	if next.Count != f.Count || next.Listed != f.Listed {
		writes = append(writes, tablestore.Stage{l.removal(&next, f.gone)})
	}
	if next.Count == 0 && f.Listed {
		writes = append(writes, tablestore.Stage{l.unlist(f.line)})
	}
	if l.atomic != nil && !f.more {
		writes = append(writes, *forget)
	}
	if f.standing == statemachine.PlaceTurn && f.first != nil {
		o := &options{actor: ActorSystem}
		if l.atomic != nil {
			o.also = writes
		}
		event := statemachine.Turn{Epoch: f.Epoch, Seq: f.first.seq, Cause: f.cause()}
		plan, err := l.turn(ctx, f.s, event, o, handed)
		switch {
		case err != nil:
			return false, err
		case plan == nil: // Another process began it, or it waits for something else now.
			return false, tablestore.ErrConflict
		case l.atomic != nil:
			writes, *forget = nil, nil
		}
		*outcome = LookTurn
		if plan.ended { // It had expired: the next place is looked at.
			*outcome = LookIdle
			*forget = append(*forget, plan.forget...)
			f.more = true
		}
	}
	if err := l.applyStages(ctx, writes); err != nil {
		return false, err
	}
	switch {
	case f.more:
		return false, nil
	case l.atomic == nil:
		return true, l.commitEach(ctx, *forget)
	}
	return true, nil
}

// cause says why it is the turn of the first place.
func (f *front) cause() string {
	if n := len(f.gone); n > 0 && !f.gone[n-1].ReleasedAt.IsZero() {
		p := f.gone[n-1]
		cause := fmt.Sprintf("job %s before it in its line was released by %s", p.JobID, p.ReleasedBy)
		if p.ReleaseReason != "" {
			cause += ": " + p.ReleaseReason
		}
		return cause
	}
	return "first in its line"
}

// applyStages commits stages one after the other, on an atomic store in one write.
func (l *Ledger) applyStages(ctx context.Context, stages []tablestore.Stage) error {
	if l.atomic != nil {
		var batches []tablestore.Batch
		for _, stage := range stages {
			batches = append(batches, stage...)
		}
		if len(batches) == 0 {
			return nil
		}
		_, err := l.atomic.CommitAll(ctx, batches, nil)
		return err
	}
	for _, stage := range stages {
		if err := l.commitEach(ctx, stage); err != nil {
			return err
		}
	}
	return nil
}

// turn applies the turn to a loaded job, once. It returns nil if the job does not wait for its turn.
func (l *Ledger) turn(ctx context.Context, s *snapshot, event statemachine.Turn, o *options, handed *bool) (*plan, error) {
	_, plan, err := l.prepare(ctx, s, event, o)
	if err != nil || plan == nil {
		return nil, err
	}
	postErr, err := l.commitPlan(ctx, plan, o, handed)
	if err != nil {
		return nil, err
	}
	if plan.ended { // The look goes on, and then deletes the entries.
		return plan, l.projectPlan(ctx, plan, postErr)
	}
	return plan, l.finish(ctx, plan, postErr)
}

// follow does the post-commit work of a job with a place: a job of mode newest supersedes those that wait
// before it, and then it looks at the line. A job that ended before it began may be in the middle of the line,
// where a look does not come: its place is removed.
func (l *Ledger) follow(ctx context.Context, job *statemachine.Job, forget tablestore.Stage) error {
	if job.Order.Mode == statemachine.OrderNewest && job.Waits() {
		if err := l.supersede(ctx, job); err != nil {
			return err
		}
	}
	if !job.State.Terminal() || job.AttemptsTotal > 0 || job.Standing() != statemachine.PlaceGone {
		return l.look(ctx, job.Place.Line, forget)
	}
	if err := l.look(ctx, job.Place.Line, nil); err != nil {
		return err
	}
	p, err := l.readPlace(ctx, job.Place)
	if err != nil {
		return err
	}
	var left []*place
	if p != nil && p.JobID == job.ID {
		left = append(left, p)
	}
	return l.removePlaces(ctx, job.Place.Line, left, forget)
}

// supersede cancels the jobs before this one in its line that wait and whose mode is newest, too, and
// removes their places, so that a line of many versions stays short while one of them runs.
func (l *Ledger) supersede(ctx context.Context, job *statemachine.Job) error {
	var before []*place
	_, _, err := l.walkLine(ctx, job.Place.Line, func(_ *line, p *place) (bool, error) {
		if p.Epoch != job.Place.Epoch || p.seq >= job.Place.Seq {
			return false, nil
		}
		if p.Mode == statemachine.OrderNewest && p.ReleasedAt.IsZero() {
			before = append(before, p)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	cancel := statemachine.Cancel{
		Reason: "superseded by job " + job.ID, Code: statemachine.ErrorSuperseded, IfWaits: !job.Order.CancelsRunning,
	}
	var gone []*place
	var forget tablestore.Stage
	for _, p := range before {
		// The end of a superseded job looks at nothing: the look of this one follows.
		o := &options{actor: ActorSystem, quiet: true, at: statemachine.Place{Line: job.Place.Line, Epoch: p.Epoch, Seq: p.seq}}
		result, err := l.change(ctx, p.JobID, nil, cancel, o)
		if errors.Is(err, ErrJobNotFound) {
			continue // Its accept is under way: that job comes later, and is not superseded.
		}
		if err != nil {
			return fmt.Errorf("supersede job %s: %w", p.JobID, err)
		}
		if result.Job.Job.State.Terminal() && result.Job.Job.Standing() == statemachine.PlaceGone {
			gone = append(gone, p)
		}
		forget = append(forget, o.forget...)
	}
	return l.removePlaces(ctx, job.Place.Line, gone, forget)
}

// removePlaces removes places that are gone, wherever they are in their line, and then deletes the entries in
// forget, which lead to them.
func (l *Ledger) removePlaces(ctx context.Context, id string, gone []*place, forget tablestore.Stage) error {
	for len(gone) > maxRemoved {
		if err := l.removeSome(ctx, id, gone[:maxRemoved], nil); err != nil {
			return err
		}
		gone = gone[maxRemoved:]
	}
	return l.removeSome(ctx, id, gone, forget)
}

// placesLeft reads places again, without those that were removed.
func (l *Ledger) placesLeft(ctx context.Context, id string, places []*place) (left []*place, err error) {
	for _, p := range places {
		now, err := l.readPlace(ctx, statemachine.Place{Line: id, Epoch: p.Epoch, Seq: p.seq})
		if err != nil {
			return nil, err
		}
		if now != nil && now.JobID == p.JobID {
			left = append(left, now)
		}
	}
	return left, nil
}

// removeSome is removePlaces of as many places as one batch removes. After a lost race it reads them again: a look
// may have removed them. What is left of them is still gone.
func (l *Ledger) removeSome(ctx context.Context, id string, gone []*place, forget tablestore.Stage) error {
	tries := 0
	err := tablestore.Retry(ctx, l.cfg.Random, func() (err error) {
		if tries++; tries > 1 {
			if gone, err = l.placesLeft(ctx, id, gone); err != nil {
				return err
			}
		}
		if len(gone) == 0 {
			return l.applyStages(ctx, []tablestore.Stage{forget})
		}
		turn, err := l.lines.take(ctx, id)
		if err != nil {
			return err
		}
		defer turn.end()
		ln, err := l.readLine(ctx, id)
		if err != nil {
			return err
		}
		var writes []tablestore.Stage
		if ln.tag != "" && ln.Epoch == gone[0].Epoch {
			next := *ln
			next.Count -= int64(len(gone))
			writes = append(writes, tablestore.Stage{l.removal(&next, gone)})
			if next.Count == 0 && ln.Listed {
				writes = append(writes, tablestore.Stage{l.unlist(ln)})
			}
		}
		return l.applyStages(ctx, append(writes, forget))
	})
	if err != nil {
		return fmt.Errorf("remove places of line %s: %w", id, err)
	}
	return nil
}
