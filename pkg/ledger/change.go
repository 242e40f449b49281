package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// Result is what became of an event.
type Result struct {
	Outcome statemachine.Outcome
	Code    statemachine.Code // set when refused
	Reason  string
	// Job is the job as it is now.
	Job statemachine.Aggregate
	// Message is the directive of the pair that the change made, else nil.
	Message *Message
	// Item is the work item that a verb of the queue was for, as it is now.
	Item lifecycle.Item
	// PostErr is the first error of what follows the commit. The change holds;
	// what is left over is found through the schedule.
	PostErr error
}

// options are what a change carries beside its event.
type options struct {
	actor     string
	requestID string
	tenantID  string
	entry     *Entry
	verb      *verb

	// Of an accept only.
	reserved reservation
	head     head
	// Of a change that ends the job: frees what it holds.
	release tablestore.Stage
}

// Option is a detail of a [Ledger.Change].
type Option func(*options)

// By names who caused the change, for the history.
func By(actor, requestID string) Option {
	return func(o *options) { o.actor, o.requestID = actor, requestID }
}

// InTenant refuses, as not found, a job of another tenant.
func InTenant(tenantID string) Option { return func(o *options) { o.tenantID = tenantID } }

// Change brings an event to a job: load, decide, commit with compare-and-swap,
// and on a lost race all over again ([tablestore.Retry]). Every change of a job but
// its accept goes this way.
//
// It returns [ErrJobNotFound], [tablestore.ErrUnavailable] where nothing was
// written, and [tablestore.ErrUnknown] where the change may have been applied;
// to bring the same event again is safe in either case.
func (l *Ledger) Change(ctx context.Context, jobID string, event statemachine.Event, opts ...Option) (Result, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return l.change(ctx, jobID, nil, event, &o)
}

// change is Change. The first try decides by loaded, unless that is nil.
func (l *Ledger) change(ctx context.Context, jobID string, loaded *snapshot, event statemachine.Event, o *options) (Result, error) {
	var result Result
	err := tablestore.Retry(ctx, l.random, func() (err error) {
		s := loaded
		if loaded = nil; s == nil {
			if s, err = l.load(ctx, jobID); err != nil {
				return err
			}
		}
		result, err = l.try(ctx, s, event, o)
		return err
	})
	switch {
	case err == nil:
		return result, nil
	case o.verb != nil:
		return Result{}, err // A refusal names the work item, and the worker reads it.
	}
	return Result{}, fmt.Errorf("change job %s: %w", jobID, err)
}

// try is one round of the loop. It returns [tablestore.ErrConflict] after a lost race.
func (l *Ledger) try(ctx context.Context, s *snapshot, event statemachine.Event, o *options) (Result, error) {
	result, plan, err := l.prepare(ctx, s, event, o)
	if err != nil || plan == nil {
		return result, err
	}
	postErr, err := l.submit(ctx, plan)
	if err != nil {
		return Result{}, err
	}
	l.committed(plan)
	if plan.ended {
		l.ended(s.jobID())
	}
	result.PostErr = l.finish(ctx, plan, postErr)
	return result, nil
}

// prepare decides about the event on the job as it was loaded, and makes the
// writes of the decision. plan is nil if nothing is to be written.
func (l *Ledger) prepare(ctx context.Context, s *snapshot, event statemachine.Event, o *options) (Result, *plan, error) {
	jobID := s.jobID()
	if s.head.tombstone || o.tenantID != "" && s.agg.Job.TenantID != o.tenantID {
		return Result{}, nil, ErrJobNotFound
	}
	if o.entry != nil && s.head.entry != o.entry.ref() {
		return Result{Outcome: statemachine.Duplicate, Reason: "the entry stands for nothing", Job: s.agg}, nil, nil
	}
	f, err := l.fresh()
	if err != nil {
		return Result{}, nil, err
	}
	now := tablestore.Now()
	ask := askOf(event)
	if o.verb != nil {
		item, repeat, err := l.admit(ctx, s, o.verb)
		if err != nil || repeat {
			return Result{Outcome: statemachine.Duplicate, Job: s.agg, Item: item}, nil, err
		}
		event = o.verb.Event(&item, now)
		ask = askOf(event)
		ask.Operation, ask.Request = o.verb.Operation, o.verb.request(&item)
	}
	d, err := statemachine.Decide(s.agg, event, l.env(f, now))
	if err != nil {
		return Result{}, nil, err
	}
	result := Result{Outcome: d.Outcome, Code: d.Code, Reason: d.Reason, Job: d.After}
	if d.Outcome != statemachine.Applied {
		return result, nil, l.recordFenced(ctx, jobID, d.Fenced, now)
	}
	p := &planner{l: l, s: s, d: &d, fresh: f, options: o, eventName: event.Name(), now: now}
	if p.moves, err = workitem.Follow(&s.agg, s.open, &d, ask, now); err != nil {
		return Result{}, nil, err
	}
	plan, err := l.plan(ctx, p)
	if err != nil {
		return Result{}, nil, err
	}
	result.Message = plan.message
	if o.verb != nil {
		result.Item = p.itemAfter(o.verb.workID)
	}
	return result, plan, nil
}

// plan makes the writes of a decision, with what they need from the store.
func (l *Ledger) plan(ctx context.Context, p *planner) (*plan, error) {
	var payload []byte
	var err error
	if p.d.Dispatch != nil {
		if payload, err = l.Payload(ctx, p.d.After.Job.ID); err != nil {
			return nil, err
		}
	}
	if p.d.Ended {
		if p.options.release, err = l.releaseSlot(ctx, p.s.head.slot, p.d.After.Job.ID); err != nil {
			return nil, err
		}
	}
	plan, err := p.build(payload)
	if err != nil {
		return nil, err
	}
	if plan.queued != nil {
		if err := l.catalog(ctx, plan.queued.Kind); err != nil {
			return nil, err
		}
	}
	return plan, nil
}

// committed tells of a change that is committed, and gives the directive of a new
// row to this process's relay, if it is meant for that.
func (l *Ledger) committed(plan *plan) {
	l.observe(&plan.after, plan.history)
	if plan.taken != nil {
		l.ready(*plan.taken, false)
	}
	if plan.queued != nil {
		l.ready(*plan.queued, true)
	}
	if plan.hot && plan.message != nil {
		l.handoff.Offer(*plan.message)
	}
}

// commitEach applies batches that are right in any order, one after the other.
func (l *Ledger) commitEach(ctx context.Context, batches []tablestore.Batch) error {
	for _, batch := range batches {
		if _, err := l.store.Commit(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// maxSubmits bounds how often a batch is submitted whose outcome stays unknown.
const maxSubmits = 50

// submit applies the plan. postErr is the first error of what follows the commit.
// submit returns [tablestore.ErrConflict] after a lost race, and
// [tablestore.ErrUnknown] if the plan may have been committed. The journal row of the
// change's rev resolves an unknown outcome; while that row is absent, the identical
// batch is submitted again: absence proves nothing while the first may still arrive.
func (l *Ledger) submit(ctx context.Context, plan *plan) (postErr, err error) {
	for range maxSubmits {
		applied, err := tablestore.Apply(ctx, l.store, plan.change)
		if err == nil {
			return applied.PostErr, nil
		}
		conflict := errors.Is(err, tablestore.ErrConflict)
		unknown := errors.Is(err, tablestore.ErrUnknown)
		if !conflict && !unknown {
			return nil, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
		if plan.light && ctx.Err() == nil {
			err = tablestore.ErrConflict // To decide again is harmless: what was applied is then a repeat.
		}
		if plan.light {
			return nil, err
		}
		switch owner, lookErr := l.whose(ctx, plan); {
		case lookErr != nil:
			return nil, fmt.Errorf("%w: %w", tablestore.ErrUnknown, lookErr)
		case owner == plan.operation:
			return l.applyPost(ctx, plan), nil
		case conflict || owner != "":
			return nil, tablestore.ErrConflict
		case ctx.Err() != nil:
			return nil, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
	}
	return nil, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, tablestore.ErrUnknown)
}

// whose reads the operation id of the journal row that the plan inserts, empty
// where there is none.
func (l *Ledger) whose(ctx context.Context, plan *plan) (string, error) {
	row, err := l.store.Get(ctx, l.eventKey(plan.after.Job.ID, plan.after.Job.Rev))
	if errors.Is(err, tablestore.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the own change: %w", err)
	}
	return row.Properties.Get(columnOperation).String(), nil
}

// applyPost carries out the post stages of a change whose commit was found to
// be through. What needs versions from the earlier stages is left out: whoever
// reads those rows can tell.
func (l *Ledger) applyPost(ctx context.Context, plan *plan) error {
	for _, stage := range plan.change.Post {
		kept := slices.DeleteFunc(slices.Clone(stage), func(batch tablestore.Batch) bool {
			return slices.ContainsFunc(batch, func(op tablestore.Op) bool { return op.ETag == tablestore.Own })
		})
		if err := l.commitEach(ctx, kept); err != nil {
			return err
		}
	}
	return nil
}

// fencedCodec holds the columns of a FENCED row: when the first stale callback came.
var fencedCodec = newCodec(instant("at", func(at *time.Time) *time.Time { return at }))

// recordFenced keeps a trace of a stale callback, outside of the revisions.
func (l *Ledger) recordFenced(ctx context.Context, jobID string, f *statemachine.Fenced, now time.Time) error {
	if f == nil {
		return nil
	}
	op := tablestore.Op{
		Verb: tablestore.Insert, Key: l.fencedKey(jobID, f.StepIndex, f.AttemptNo, f.Kind),
		Properties: fencedCodec.encode(&now, nil),
	}
	_, err := l.store.Commit(ctx, tablestore.Batch{op})
	if errors.Is(err, tablestore.ErrConflict) || errors.Is(err, tablestore.ErrUnknown) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("record a stale callback of job %s: %w", jobID, err)
	}
	return nil
}
