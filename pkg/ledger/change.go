package ledger

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxTries bounds the load, decide, commit loop. Each lost race means that
// somebody else's change of the job came through.
const maxTries = 50

// Result is what became of an event.
type Result struct {
	Outcome statemachine.Outcome
	Code    statemachine.Code // set when refused
	Reason  string
	// Job is the job as it is now.
	Job statemachine.Aggregate
	// Message is the directive of the pair that the change made, else nil.
	Message *Message
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
	post      Companion
	again     Companion

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

// Companion makes another component's writes that go with a change.
type Companion func(ctx context.Context, before, after *statemachine.Aggregate) ([]tablestore.Batch, error)

// With adds another component's writes to the change, in place of the
// Follower's. An atomic store applies both or neither; any other applies them
// after the commit. post is called for each try, and an error of it ends the
// change with nothing written. again is called where the commit came through
// and the writes of post then lost a race: the ledger has decided, and what it
// returns has to follow.
func With(post, again Companion) Option {
	return func(o *options) { o.post, o.again = post, again }
}

// Change brings an event to a job: load, decide, commit with compare-and-swap,
// and on a lost race all over again. It is the only such loop.
//
// It returns [ErrJobNotFound], [tablestore.ErrUnavailable] where nothing was
// written, and [tablestore.ErrUnknown] where the change may have been applied;
// to bring the same event again is safe in either case.
func (l *Ledger) Change(ctx context.Context, jobID string, event statemachine.Event, opts ...Option) (Result, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return l.change(ctx, jobID, event, &o)
}

func (l *Ledger) change(ctx context.Context, jobID string, event statemachine.Event, o *options) (Result, error) {
	pause := newPause(l.random)
	for range maxTries {
		result, done, err := l.try(ctx, jobID, event, o)
		if done || err != nil {
			return result, err
		}
		if err := pause.wait(ctx); err != nil {
			return Result{}, fmt.Errorf("change job %s: %w", jobID, errors.Join(tablestore.ErrUnavailable, err))
		}
	}
	return Result{}, fmt.Errorf("change job %s: lost %d races: %w", jobID, maxTries, tablestore.ErrUnavailable)
}

// try is one round of the loop; done is false after a lost race.
func (l *Ledger) try(ctx context.Context, jobID string, event statemachine.Event, o *options) (Result, bool, error) {
	s, err := l.load(ctx, jobID)
	if err != nil {
		return Result{}, false, err
	}
	if s.head.tombstone || o.tenantID != "" && s.agg.Job.TenantID != o.tenantID {
		return Result{}, false, ErrJobNotFound
	}
	if o.entry != nil && s.head.entry != o.entry.ref() {
		return Result{Outcome: statemachine.Duplicate, Reason: "the entry stands for nothing", Job: s.agg}, true, nil
	}
	f, err := l.fresh()
	if err != nil {
		return Result{}, false, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	d, err := statemachine.Decide(s.agg, event, l.env(f, now))
	if err != nil {
		return Result{}, false, fmt.Errorf("job %s: %w", jobID, err)
	}
	result := Result{Outcome: d.Outcome, Code: d.Code, Reason: d.Reason, Job: d.After}
	if d.Outcome != statemachine.Applied {
		return result, true, l.recordFenced(ctx, jobID, d.Fenced, now)
	}
	p := &planner{l: l, s: s, d: &d, fresh: f, options: o, eventName: eventName(event), now: now}
	applied, err := l.carryOut(ctx, p)
	if err != nil || !applied.done {
		return Result{}, false, err
	}
	result.Message = applied.plan.message
	l.committed(applied.plan)
	if d.Ended {
		l.ended(jobID)
	}
	result.PostErr = l.finish(ctx, applied.plan, applied.postErr)
	return result, true, nil
}

// committed tells of a change that is committed, and gives the directive of a new
// row to this process's relay, if it is meant for that.
func (l *Ledger) committed(plan *plan) {
	l.observe(&plan.after, plan.history)
	if plan.hot && plan.message != nil {
		l.handoff.Offer(*plan.message)
	}
}

// carried is what became of one plan.
type carried struct {
	done    bool // false: the race was lost
	plan    *plan
	postErr error
}

// carryOut builds the decision's writes and submits them.
func (l *Ledger) carryOut(ctx context.Context, p *planner) (carried, error) {
	var payload []byte
	var err error
	if p.d.Dispatch != nil {
		if payload, err = l.Payload(ctx, p.d.After.Job.ID); err != nil {
			return carried{}, err
		}
	}
	if p.d.Ended {
		if p.options.release, err = l.releaseSlot(ctx, p.s.head.slot, p.d.After.Job.ID); err != nil {
			return carried{}, err
		}
	}
	post, err := l.follow(ctx, p)
	if err != nil {
		return carried{}, err
	}
	plan, err := p.build(payload, post)
	if err != nil {
		return carried{}, err
	}
	p.bind(plan, post)
	out, err := l.submit(ctx, plan, p.d.Light)
	if err != nil || !out.done {
		return out, err
	}
	out.postErr = l.catchUp(ctx, p, out.postErr)
	return out, nil
}

// follow asks for the writes of the component that follows this change.
func (l *Ledger) follow(ctx context.Context, p *planner) ([]tablestore.Batch, error) {
	switch {
	case p.options.post != nil:
		return p.options.post(ctx, &p.s.agg, &p.d.After)
	case l.follower != nil:
		return l.follower.Follow(ctx, &p.s.agg, &p.d.After)
	}
	return nil, nil
}

// catchUp lets the follower try again where it lost a race after the commit:
// the ledger has decided, and the other rows have to follow.
func (l *Ledger) catchUp(ctx context.Context, p *planner, postErr error) error {
	if _, conflict := tablestore.IsConflict(postErr); !conflict {
		return postErr
	}
	again := p.options.again
	switch {
	case again != nil:
	case l.follower != nil:
		again = l.follower.Follow
	default:
		return postErr
	}
	batches, err := again(ctx, &p.s.agg, &p.d.After)
	if err != nil {
		return err
	}
	return l.commitEach(ctx, batches)
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

// submit applies the plan. An unknown outcome is cleared up by the journal row
// of the change's rev, and the identical batch is submitted again where that
// row is absent: absence proves nothing while the first may still arrive.
func (l *Ledger) submit(ctx context.Context, plan *plan, light bool) (carried, error) {
	for range maxTries {
		applied, err := tablestore.Apply(ctx, l.store, plan.change)
		if err == nil {
			return carried{done: true, plan: plan, postErr: applied.PostErr}, nil
		}
		_, conflict := tablestore.IsConflict(err)
		unknown := errors.Is(err, tablestore.ErrUnknown)
		if !conflict && !unknown {
			return carried{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
		if light {
			return l.submitLight(ctx, conflict, err)
		}
		switch owner, lookErr := l.whose(ctx, plan); {
		case lookErr != nil:
			return carried{}, fmt.Errorf("%w: %w", err, lookErr)
		case owner == plan.operation:
			return carried{done: true, plan: plan, postErr: l.applyPost(ctx, plan)}, nil
		case conflict || owner != "":
			return carried{}, nil
		case ctx.Err() != nil:
			return carried{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
	}
	return carried{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, tablestore.ErrUnknown)
}

// submitLight ends a try without a journal row: to decide again is harmless,
// since what was applied is then a repeat.
func (l *Ledger) submitLight(ctx context.Context, conflict bool, err error) (carried, error) {
	if conflict || ctx.Err() == nil {
		return carried{}, nil
	}
	return carried{}, err
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
	return row.Properties.Get("operation").String(), nil
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

// recordFenced keeps a trace of a stale callback, outside of the revisions.
func (l *Ledger) recordFenced(ctx context.Context, jobID string, f *statemachine.Fenced, now time.Time) error {
	if f == nil {
		return nil
	}
	c := newColumns(3)
	c.time("at", now)
	op := tablestore.Op{
		Verb: tablestore.Insert, Key: l.fencedKey(jobID, f.StepIndex, f.AttemptNo, f.Kind), Properties: c.list,
	}
	_, err := l.store.Commit(ctx, tablestore.Batch{op})
	if _, conflict := tablestore.IsConflict(err); conflict || errors.Is(err, tablestore.ErrUnknown) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("record a stale callback of job %s: %w", jobID, err)
	}
	return nil
}

// eventName is the event's type in the journal.
func eventName(event statemachine.Event) string {
	return strings.ToLower(reflect.TypeOf(event).Name())
}

// pause spaces the rounds of the loop.
type pause struct {
	random  func() float64
	backoff *backoff.ExponentialBackOff
}

func newPause(random func() float64) *pause {
	return &pause{random: random}
}

// wait sleeps before the next round. The delays are drawn from the ledger's
// own source, so that a simulation can repeat them.
func (p *pause) wait(ctx context.Context) error {
	if p.backoff == nil {
		p.backoff = backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(time.Millisecond), backoff.WithMaxInterval(50*time.Millisecond),
			backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
	}
	delay := time.Duration(float64(p.backoff.NextBackOff()) * (0.5 + p.random()))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
