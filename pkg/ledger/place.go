package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// placement is the place of an accept in its line, over its tries.
type placement struct {
	statemachine.Place

	behind bool // jobs may be before it
	// taken says that the place is known to be written. Later tries keep it.
	taken bool
	// batch writes LINE and the place, unless the place is taken; line is LINE as the batch leaves it.
	batch  tablestore.Batch
	line   *line
	lists  bool      // the line is to be listed with the batch
	turn   *lineTurn // of the current try
	looked bool      // the line was looked at before a refusal
}

// writes reports whether the placement's batch writes the row.
func (p *placement) writes(key tablestore.Key) bool {
	for i := range p.batch {
		if p.batch[i].Key == key {
			return true
		}
	}
	return false
}

// findPlace plans the place of the command in its line: at the end, or for the rerun of a job that blocks
// the line, the place of that job. It holds the process's turn on the line until the batch is applied.
// retry says that the line was looked at, and that the accept is to try again.
func (a *acceptance) findPlace(ctx context.Context) (retry bool, err error) {
	p := &a.place
	if a.cmd.Job.Order.Key == "" || p.taken {
		return false, nil
	}
	id := lineOf(&a.cmd.Job)
	if p.turn, err = a.l.lines.take(ctx, id); err != nil {
		return false, err
	}
	ln := p.turn.line.known
	if ln == nil {
		if ln, err = a.l.readLine(ctx, id); err != nil {
			return false, err
		}
	}
	f, err := a.l.fresh()
	if err != nil {
		return false, err
	}
	next := *ln
	took, of, err := a.takes(ctx, ln)
	switch {
	case err != nil:
		return false, err
	case took != nil:
		p.Place = statemachine.Place{Line: id, Epoch: ln.Epoch, Seq: took.seq, Took: of}
		if took.JobID == a.jobID { // An earlier try took it.
			p.behind, p.taken, p.batch = true, true, nil
			p.turn.end()
			return false, nil
		}
	case ln.tag == "":
		// Each sending has its own epoch. A late copy of the first sending could otherwise bring back the
		// place of a job whose rerun is done.
		next.lineRow = lineRow{TenantID: a.cmd.Job.TenantID, Key: a.cmd.Job.Order.Key, Epoch: f.lease[:16], Next: 2, Count: 1}
		p.Place = statemachine.Place{Line: id, Epoch: next.Epoch, Seq: 1}
	default:
		if retry, err = a.admitInLine(ctx, ln); retry || err != nil {
			return retry, err
		}
		p.Place = statemachine.Place{Line: id, Epoch: ln.Epoch, Seq: ln.Next}
		next.Next, next.Count = ln.Next+1, ln.Count+1
	}
	p.behind = ln.tag != ""
	if p.lists = a.l.atomic != nil && p.behind && !ln.Listed; p.lists { // No look follows the accept.
		next.Listed = true
	}
	p.line = &next
	row := placeRow{JobID: a.jobID, Epoch: p.Epoch, Took: p.Took, Mode: a.cmd.Job.Order.Mode, CreatedAt: tablestore.Now()}
	op := tablestore.Op{Verb: tablestore.Insert, Key: a.l.placeKey(id, p.Seq), Properties: placeCodec.Encode(&row, nil)}
	if took != nil {
		op.Verb, op.ETag = tablestore.Replace, took.row.ETag
	}
	p.batch = tablestore.Batch{a.l.writeLine(&next), op}
	return false, nil
}

// takes returns the place that the command, a rerun, takes, and the job that blocks the line there: the
// rerun's old job, or another rerun that took its place and was cancelled. It returns nil if the rerun
// gets a place at the end.
func (a *acceptance) takes(ctx context.Context, ln *line) (p *place, of string, err error) {
	old := a.cmd.Blocker
	if old == nil || ln.tag == "" || old.Place.Epoch != ln.Epoch {
		return nil, "", nil
	}
	if p, err = a.l.readPlace(ctx, old.Place); err != nil || p == nil {
		return nil, "", err
	}
	if p.JobID == a.jobID {
		return p, p.Took, nil
	}
	by, err := a.l.blockerAt(ctx, ln, p)
	if err != nil || by == nil || by.ID != old.ID && by.State != statemachine.JobCancelled {
		return nil, "", err
	}
	return p, by.ID, nil
}

// blockerAt returns the job because of which the place blocks its line, nil if it does not block. It
// abandons a rerun that has been missing for long, as a look does.
func (l *Ledger) blockerAt(ctx context.Context, ln *line, p *place) (*statemachine.Job, error) {
	j, err := l.judge(ctx, ln, p, true)
	if err != nil || j.standing != statemachine.PlaceBlocks {
		return nil, err
	}
	return j.job, nil
}

// admitInLine refuses a command for what is in its line. Before a refusal it looks at the line, and reads
// it again. It returns a [*LineBusyError] or [ErrLineFull].
func (a *acceptance) admitInLine(ctx context.Context, ln *line) (retry bool, err error) {
	most := a.cmd.MaxWaiting
	if most == 0 {
		most = DefaultMaxWaiting
	}
	busy := a.cmd.Job.Order.Mode == statemachine.OrderReject
	if !busy && ln.Count <= int64(most) {
		return false, nil
	}
	a.place.turn.end()
	if !a.place.looked {
		a.place.looked = true
		return true, a.l.look(ctx, ln.id, nil)
	}
	if !busy {
		return false, ErrLineFull
	}
	first, err := a.l.FirstInLine(ctx, ln.id)
	switch {
	case err != nil:
		return false, err
	case first == nil: // The last job ended after the look.
		a.place.looked = false
		return true, nil
	case first.Job.ID == a.jobID: // A batch of this accept, or of the one whose id it adopted, arrived late.
		a.place.Place = statemachine.Place{Line: ln.id, Epoch: first.Epoch, Seq: first.Seq}
		a.place.behind, a.place.taken, a.place.batch = true, true, nil
		return true, nil
	}
	return false, &LineBusyError{JobID: first.Job.ID}
}

// FirstInLine returns the first place of a line that is not gone, nil if there is none. Of a job whose accept
// is under way only the id is known.
func (l *Ledger) FirstInLine(ctx context.Context, id string) (*statemachine.FirstPlace, error) {
	_, first, err := l.firstInLine(ctx, id)
	return first, err
}

// firstInLine is FirstInLine with the line, which it reads together with its places.
func (l *Ledger) firstInLine(ctx context.Context, id string) (ln *line, first *statemachine.FirstPlace, err error) {
	ln, _, err = l.walkLine(ctx, id, func(ln *line, p *place) (bool, error) {
		j, err := l.judge(ctx, ln, p, false)
		if err != nil || j.standing == statemachine.PlaceGone {
			return err == nil, err
		}
		if j.job == nil {
			j.job = &statemachine.Job{ID: p.JobID, State: statemachine.JobQueued}
		}
		first = &statemachine.FirstPlace{Epoch: p.Epoch, Seq: p.seq, Job: j.job}
		return false, nil
	})
	return ln, first, err
}

// placed notes what a try wrote of its place. It passes the turn on the line on.
func (a *acceptance) placed(applied tablestore.Applied) {
	p := &a.place
	if p.turn == nil {
		return
	}
	if tag, ok := applied.ETags[a.l.lineKey(p.Line, rowLine)]; ok && len(p.batch) > 0 {
		p.taken = true
		p.turn.give(p.line.after(tag))
	}
	p.turn.end()
	p.turn = nil
}

// recoverPlace finds out whether a batch with an unknown outcome wrote the place.
func (a *acceptance) recoverPlace(ctx context.Context) error {
	p := &a.place
	if p.Line == "" || p.taken {
		return nil
	}
	row, err := a.l.readPlace(ctx, p.Place)
	if err == nil && row != nil && row.JobID == a.jobID {
		p.taken = true
	}
	return err
}

// leavePlace forgets the place of a job id that is given up. That job never comes, so its place is gone.
func (a *acceptance) leavePlace() {
	if a.place.turn != nil {
		a.place.turn.end()
	}
	a.place = placement{looked: a.place.looked}
}

// refuse ends an accept whose command is refused: it releases what the accept holds, and deletes its
// record. It never refuses a replay: if the command has not taken its key yet, it first looks for an
// existing record.
func (a *acceptance) refuse(ctx context.Context, refusal error) (*Accepted, error) {
	if a.recordTag == "" {
		if accepted, err := a.replay(ctx); accepted != nil || err != nil {
			return accepted, err
		}
		if id := busyWith(refusal); id != "" {
			c, _, err := a.readRecord(ctx)
			switch {
			case err == nil && c.JobID == id: // The place is that of an earlier accept of the same command.
				return a.resolveRecordConflict(ctx)
			case err != nil && !errors.Is(err, tablestore.ErrNotFound):
				return nil, err
			}
		}
		return nil, errors.Join(a.freeOwnSlot(ctx), refusal)
	}
	if a.cmd.Claim != nil { // Its outcome replaces the claim: see Settle.
		return nil, errors.Join(a.freeOwnSlot(ctx), refusal)
	}
	if a.adopted {
		// If the accept that wrote the record committed after its deletion, its job would
		// have no record, and the same command would be executed twice.
		abandoned, err := a.l.insertTombstone(ctx, &statemachine.Job{ID: a.jobID})
		if err != nil {
			return nil, err
		}
		if !abandoned {
			return a.adoptWinner(ctx)
		}
	}
	if err := a.freeOwnSlot(ctx); err != nil {
		return nil, err
	}
	if _, err := a.l.deleteVersion(ctx, a.record, a.recordTag); err != nil {
		return nil, fmt.Errorf("accept: delete the idempotency record: %w", err)
	}
	return nil, refusal
}

// Release is a request to let a line go on past a job that blocks it.
type Release struct {
	LineID, JobID    string
	Actor, RequestID string
	Reason           string
}

// Release marks the place of a failed job as gone. The release is a column of the place, since a rerun may
// take the place at the same time: the version of the place decides between them. It may be repeated: the
// release of a job that was released succeeds, and changes nothing. It returns [ErrJobNotFound] and
// [ErrNotBlocking].
func (l *Ledger) Release(ctx context.Context, r Release) error {
	ctx = l.operation(ctx)
	s, err := l.loadExisting(ctx, r.JobID)
	if err != nil {
		return err
	}
	job := &s.agg.Job
	if job.Place.Line == "" || job.Place.Line != r.LineID {
		return ErrNotBlocking
	}
	f, err := l.fresh()
	if err != nil {
		return err
	}
	// The entry looks at the line if this process crashes after the release.
	ref := entryRef{Kind: Timer, Due: tablestore.Now().Add(acceptDelay).Truncate(time.Millisecond), Nonce: f.nonce() + "r"}
	entry := l.putEntry(&statemachine.Aggregate{Job: *job}, ref, reservation{})
	entry.Properties = entryCodec.Encode(&Entry{Rev: job.Rev, Target: statemachine.Target{TenantID: job.TenantID}, Release: true}, nil)
	noted := false
	err = tablestore.Retry(ctx, l.cfg.Random, func() error {
		turn, err := l.lines.take(ctx, r.LineID)
		if err != nil {
			return err
		}
		defer turn.end()
		ln, p, err := l.blocking(ctx, job)
		switch {
		case err != nil:
			return err
		case p == nil:
			return l.checkReleased(ctx, job)
		}
		if !noted {
			if _, err := l.store.Commit(ctx, tablestore.Batch{entry}); err != nil {
				return fmt.Errorf("write the entry of a release: %w", err)
			}
			if err := l.noteRelease(ctx, job, &r); err != nil {
				return err
			}
			noted = true
		}
		row := p.placeRow
		row.ReleasedAt, row.ReleasedBy = tablestore.Now(), cmp.Or(CallerOf(ctx), r.Actor)
		row.ReleaseReason, row.ReleaseID = r.Reason, r.RequestID
		_, err = l.store.Commit(ctx, tablestore.Batch{l.writeLine(ln), {
			Verb: tablestore.Replace, Key: p.row.Key, ETag: p.row.ETag, Properties: placeCodec.Encode(&row, nil),
		}})
		if errors.Is(err, tablestore.ErrUnknown) {
			l.cfg.Unsure()
			if now, readErr := l.readPlace(ctx, job.Place); readErr == nil && now != nil && now.ReleaseID == r.RequestID {
				return nil
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("release job %s: %w", r.JobID, err)
	}
	_ = l.look(ctx, r.LineID, l.discardEntries(job.ID, []entryRef{ref})) // The release is made; after an error the entry looks.
	return nil
}

// blocking returns the line, and the place that blocks it because of the job, nil if there is none.
func (l *Ledger) blocking(ctx context.Context, job *statemachine.Job) (ln *line, p *place, err error) {
	if ln, err = l.readLine(ctx, job.Place.Line); err != nil {
		return nil, nil, err
	}
	p, err = l.readPlace(ctx, job.Place)
	if err != nil || p == nil {
		return ln, nil, err
	}
	by, err := l.blockerAt(ctx, ln, p)
	if err != nil || by == nil || by.ID != job.ID {
		return ln, nil, err
	}
	return ln, p, nil
}

// checkReleased returns nil if a job that does not block its line was released, else [ErrNotBlocking]. The
// place of a job that ended as one that blocks goes by a release, or with the rerun that took it.
func (l *Ledger) checkReleased(ctx context.Context, job *statemachine.Job) error {
	if job.Standing() != statemachine.PlaceBlocks {
		return ErrNotBlocking
	}
	p, err := l.readPlace(ctx, job.Place)
	if err != nil {
		return err
	}
	if p != nil && p.ReleasedAt.IsZero() {
		return ErrNotBlocking
	}
	rows, err := rerunCodec.ScanAll(ctx, l.store, l.rerunsOf(job.TenantID, supersedable(job)))
	if err != nil {
		return fmt.Errorf("read the reruns of job %s: %w", job.ID, err)
	}
	for _, row := range rows {
		rerun, err := l.Job(ctx, row.JobID)
		switch {
		case errors.Is(err, ErrJobNotFound): // Its accept was lost.
		case err != nil:
			return err
		case rerun.Job.Place.Took == job.ID:
			return ErrNotBlocking
		}
	}
	return nil
}

// fireRelease acts on the entry of a release. While the place blocks, the release may still be under way:
// the entry stays. After the grace that release is made impossible first.
func (l *Ledger) fireRelease(ctx context.Context, entry Entry, s *snapshot) (FireOutcome, Result, error) {
	job := &s.agg.Job
	ln, p, err := l.blocking(ctx, job)
	if err == nil {
		err = l.look(ctx, job.Place.Line, nil)
	}
	switch {
	case err != nil:
		return 0, Result{}, err
	case p != nil && time.Since(entry.Due) < orphanGrace:
		return Early, Result{}, nil
	case p != nil:
		if _, err := l.store.Commit(ctx, tablestore.Batch{l.writeLine(ln)}); err != nil {
			return 0, Result{}, fmt.Errorf("end the release of job %s: %w", job.ID, err)
		}
	}
	return Stale, Result{}, l.drop(ctx, entry)
}
