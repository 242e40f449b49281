package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// ErrIdempotencyMismatch is returned for a command whose idempotency key
// stands for another command.
var ErrIdempotencyMismatch = errors.New("idempotency key was used for another command")

// Command is a validated command, as rows to be. Job and Steps hold what
// never changes; ids, states and times are filled in by the accept. Only a
// rerun's steps have a state: those that it takes over have SUCCEEDED.
type Command struct {
	Job     statemachine.Job
	Steps   []statemachine.Step
	Payload []byte
	// Limit is the most jobs that the tenant may have in flight; 0 is no limit.
	Limit int
	Actor string
	// RequestID is the request's, for the history.
	RequestID string
	// Claim names the command where neither its key nor its hash does, as for a
	// rerun. Optional.
	Claim string
	// Reason is for the history.
	Reason string
}

// Accepted is the answer to a command.
type Accepted struct {
	Job statemachine.Job
	// Replayed says that an earlier command with the same key made the job.
	Replayed bool
	PostErr  error
}

// acceptance is one accept in the making.
type acceptance struct {
	l       *Ledger
	cmd     *Command
	jobID   string
	claim   tablestore.Key
	claimed tablestore.ETag // our version of the claim, once it is written
	adopted bool            // the job id is another accept's, which may yet commit
	slot    slotRef
	slotTag tablestore.ETag // our version of a numbered slot, once it is taken
}

// Accept makes a job of a command: the claim of its idempotency key first,
// then its in-flight slot, then the entry that makes it findable, then the
// commit. It returns [ErrIdempotencyMismatch], [ErrTenantLimit], and the
// store's errors; a command whose outcome is unknown may be sent again.
//
// Source: Ledger and state model, Idempotency strategy; Option B spec, 15.1.
func (l *Ledger) Accept(ctx context.Context, cmd Command) (Accepted, error) {
	a := &acceptance{l: l, cmd: &cmd, claim: l.claimKey(&cmd)}
	if err := a.newJob(); err != nil {
		return Accepted{}, err
	}
	var accepted Accepted
	err := tablestore.Retry(ctx, l.random, func() error {
		var done bool
		var err error
		if accepted, done, err = a.try(ctx); err == nil && !done {
			return tablestore.ErrConflict
		}
		return err
	})
	return accepted, err
}

// claimKey addresses the claim of the command's idempotency key, or of its
// hash where it has none.
func (l *Ledger) claimKey(cmd *Command) tablestore.Key {
	job := &cmd.Job
	row := tablestore.Join("hash", job.IdempotencyHash)
	switch {
	case cmd.Claim != "":
		row = tablestore.Join("of", cmd.Claim)
	case job.IdempotencyKey != "":
		sum := sha256.Sum256([]byte(job.IdempotencyKey))
		row = tablestore.Join("key", hex.EncodeToString(sum[:]))
	}
	return tablestore.Key{Table: l.tables.Idempotency, Partition: tablestore.Escape(job.TenantID), Row: row}
}

// newJob gives the acceptance a job id that was never used, and a first guess
// of a slot.
func (a *acceptance) newJob() error {
	id, err := a.l.NewJobID()
	if err != nil {
		return err
	}
	a.jobID, a.adopted = id, false
	if a.cmd.Limit > 0 {
		a.slot = a.l.numberedSlot(a.cmd.Job.TenantID, int(a.l.random()*float64(a.cmd.Limit)))
		return nil
	}
	a.slot = a.l.ownSlot(a.cmd.Job.TenantID, a.jobID)
	return nil
}

// try submits the whole change once.
func (a *acceptance) try(ctx context.Context) (Accepted, bool, error) {
	plan, err := a.plan()
	if err != nil {
		return Accepted{}, false, err
	}
	if plan.queued != nil {
		if err := a.l.catalog(ctx, plan.queued.Kind); err != nil {
			return Accepted{}, false, fmt.Errorf("accept: %w", err)
		}
	}
	applied, err := tablestore.Apply(ctx, a.l.store, plan.change)
	a.keep(applied)
	if err == nil {
		return a.accepted(ctx, plan, applied.PostErr), true, nil
	}
	conflict, lost := errors.AsType[*tablestore.ConflictError](err)
	switch {
	case lost && conflict.Key == a.claim:
		return a.meetClaim(ctx)
	case lost && conflict.Key == a.l.slotKey(a.slot):
		return a.moveSlot(ctx)
	case lost || errors.Is(err, tablestore.ErrUnknown):
		return a.settle(ctx, plan, err)
	}
	return Accepted{}, false, fmt.Errorf("accept: %w", err)
}

// keep remembers which reservations are ours, so that the next try does not
// make them again. An atomic store writes none of them alone.
func (a *acceptance) keep(applied tablestore.Applied) {
	if tag, ok := applied.ETags[a.claim]; ok {
		a.claimed = tag
	}
	if tag, ok := applied.ETags[a.l.slotKey(a.slot)]; ok {
		a.slotTag = tag
	}
}

// plan makes the writes of the accept.
func (a *acceptance) plan() (*plan, error) {
	now := tablestore.Now()
	f, err := a.l.fresh()
	if err != nil {
		return nil, err
	}
	agg := a.aggregate()
	event := statemachine.Accept{Reason: a.cmd.Reason}
	d, err := statemachine.Decide(agg, event, a.l.env(f, now))
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	o := &options{
		actor: a.cmd.Actor, requestID: a.cmd.RequestID,
		head:     head{slot: a.slot, claim: a.claim.Row},
		reserved: reservation{claim: a.claim.Row, slot: a.slot},
	}
	p := &planner{l: a.l, d: &d, fresh: f, options: o, eventName: event.Name(), now: now}
	if p.moves, err = workitem.Follow(&agg, nil, &d, workitem.Ask{}, now); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	plan, err := p.build(a.cmd.Payload)
	if err != nil {
		return nil, err
	}
	a.reserve(plan, now)
	return plan, nil
}

// aggregate is the job before its first change.
func (a *acceptance) aggregate() statemachine.Aggregate {
	agg := statemachine.Aggregate{Job: a.cmd.Job, Steps: make([]statemachine.Step, len(a.cmd.Steps))}
	agg.Job.ID = a.jobID
	agg.Job.TenantBucket = TenantBucket(agg.Job.TenantID, IDTime(a.jobID))
	agg.Job.State = statemachine.JobQueued
	copy(agg.Steps, a.cmd.Steps)
	for i := range agg.Steps {
		agg.Steps[i].Index = i
		if agg.Steps[i].State == "" {
			agg.Steps[i].State = statemachine.StepPending
		}
	}
	return agg
}

// reserve puts the claim and the slot in front of the plan, the payload into
// its commit, and the claim's confirmation behind it.
func (a *acceptance) reserve(plan *plan, now time.Time) {
	pre := []tablestore.Stage(nil)
	confirm := tablestore.Op{
		Verb: tablestore.Replace, Key: a.claim, ETag: tablestore.Own, Properties: a.claimRow(claimCommitted, now),
	}
	if a.claimed == "" {
		pre = append(pre, tablestore.Stage{{{
			Verb: tablestore.Insert, Key: a.claim, Properties: a.claimRow(claimClaimed, now),
		}}})
	} else {
		confirm.ETag = a.claimed
	}
	if a.slotTag == "" || !a.slot.Numbered {
		pre = append(pre, tablestore.Stage{{a.l.takeSlot(a.slot, a.jobID, now)}})
	}
	plan.change.Pre = append(pre, plan.change.Pre...)
	plan.change.Commit = append(plan.change.Commit, tablestore.Op{
		Verb: tablestore.Insert, Key: a.l.jobKey(a.jobID, rowCommand),
		Properties: largeRow("payload", a.cmd.Payload),
	})
	plan.change.Post = append(plan.change.Post, tablestore.Stage{{confirm}})
}

// accepted is the answer after the commit, and hands the first directive over.
func (a *acceptance) accepted(ctx context.Context, plan *plan, postErr error) Accepted {
	a.l.seen.add(plan.after.Job.TenantID)
	a.l.committed(plan)
	return Accepted{Job: plan.after.Job, PostErr: a.l.finish(ctx, plan, postErr)}
}

// settle clears up a conflict on the job's rows, or an unknown outcome: the
// change may be ours, another's who rolled the same claim forward, or absent.
func (a *acceptance) settle(ctx context.Context, plan *plan, cause error) (Accepted, bool, error) {
	owner, err := a.l.whose(ctx, plan)
	if err != nil {
		return Accepted{}, false, fmt.Errorf("accept: %w: %w", tablestore.ErrUnknown, err)
	}
	if owner == plan.operation {
		return a.accepted(ctx, plan, nil), true, nil
	}
	if owner != "" {
		return a.lose(ctx)
	}
	if errors.Is(cause, tablestore.ErrConflict) {
		return Accepted{}, false, a.startOver(ctx)
	}
	return a.resubmit(ctx, plan, cause)
}

// resubmit sends the identical change again after an unknown outcome. The
// claim and a numbered slot may have been written by the first: then they are
// ours.
func (a *acceptance) resubmit(ctx context.Context, plan *plan, cause error) (Accepted, bool, error) {
	if ctx.Err() != nil {
		return Accepted{}, false, fmt.Errorf("accept: %w", cause)
	}
	if err := a.recover(ctx); err != nil {
		return Accepted{}, false, err
	}
	plan.change.Pre = plan.change.Pre[len(plan.change.Pre)-1:]
	if !a.slot.Numbered {
		// Nobody can tell whether it was taken, and to take it again is harmless.
		plan.change.Pre = append([]tablestore.Stage{{{a.l.takeSlot(a.slot, a.jobID, time.Now())}}}, plan.change.Pre...)
	}
	plan.change.Post = nil
	if a.claimed == "" || a.slot.Numbered && a.slotTag == "" {
		return Accepted{}, false, nil
	}
	postErr, err := a.l.submit(ctx, plan)
	if err != nil {
		return Accepted{}, false, err
	}
	return a.accepted(ctx, plan, postErr), true, nil
}

// recover reads whether the claim and the slot are ours after all.
func (a *acceptance) recover(ctx context.Context) error {
	row, err := a.l.ownRow(ctx, a.claim, a.jobID)
	if err != nil {
		return err
	}
	a.claimed = row.ETag
	if !a.slot.Numbered {
		return nil
	}
	row, err = a.l.ownRow(ctx, a.l.slotKey(a.slot), a.jobID)
	if err != nil {
		return err
	}
	a.slotTag = row.ETag
	return nil
}

// ownRow returns the row if it names the job, else the zero row.
func (l *Ledger) ownRow(ctx context.Context, key tablestore.Key, jobID string) (tablestore.Row, error) {
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("read a reservation of job %s: %w", jobID, err)
	}
	if row.Properties.Get(columnJob).String() != jobID {
		return tablestore.Row{}, nil
	}
	return row, nil
}
