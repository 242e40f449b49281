package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Result is the result of applying an event to a job.
type Result struct {
	Outcome statemachine.Outcome
	Code    statemachine.Code // set when refused
	Reason  string
	// Job is the job as it is now.
	Job statemachine.Aggregate
	// Message is the directive of the pair that the change made, else nil.
	Message *Message
	// Item is the current state of the work item that a verb of the queue addressed.
	Item statemachine.Item
	// PostErr is the first error of the post-commit work. The change is committed, and the
	// schedule finishes the rest.
	PostErr error

	remembered tablestore.Row     // the last directive
	revisedBy  statemachine.Event // the event that made a revision; nil if there is none
}

// options are the details of a change besides its event.
type options struct {
	actor     string
	requestID string
	tenantID  string
	entry     *Entry
	verb      *verb
	// lost are the entries that tries wrote which lost a race.
	//
	//	invariant: head.rev ≥ lostRev ⇒ they are void
	lost    []entryRef
	lostRev int64

	reserved reservation // of an accept
	// also is written before the change, on an atomic store with it.
	also []tablestore.Stage
	// quiet: if the change ends a job with a place, the caller removes the place, looks at the line, and then
	// deletes the entries in forget, which the change sets.
	quiet  bool
	forget tablestore.Stage
	// at is the place that the job must have, and rev its revision. Optional.
	at  statemachine.Place
	rev int64
}

// Option is a detail of a [Ledger.Change].
type Option func(*options)

// By names the cause of the change, for the history.
func By(actor, requestID string) Option {
	return func(o *options) { o.actor, o.requestID = actor, requestID }
}

// InTenant makes a job of another tenant not found.
func InTenant(tenantID string) Option { return func(o *options) { o.tenantID = tenantID } }

// AtRev makes the change one of the job at that revision: at another it is a [statemachine.Duplicate], and changes nothing.
func AtRev(rev int64) Option { return func(o *options) { o.rev = rev } }

// Change applies an event to a job: load, decide, commit with compare-and-swap, and
// start again after a lost race ([tablestore.Retry]). Every change of a job but its
// accept goes through this loop.
//
// It returns [ErrJobNotFound], [tablestore.ErrUnavailable] if nothing was written,
// and [tablestore.ErrUnknown] if the change may have been committed. In either case
// the same event can safely be applied again.
func (l *Ledger) Change(ctx context.Context, jobID string, event statemachine.Event, opts ...Option) (Result, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return l.change(ctx, jobID, nil, event, &o)
}

// change is Change. Its first try uses the loaded job, if that is not nil.
func (l *Ledger) change(ctx context.Context, jobID string, loaded *snapshot, event statemachine.Event, o *options) (Result, error) {
	l.changing.Add(1)
	defer l.changing.Add(-1)
	ctx = l.operation(ctx)
	var result Result
	handed := false
	err := tablestore.Retry(ctx, l.cfg.Random, func() (err error) {
		var plan *plan
		if s := l.recent.take(jobID); s != nil && loaded == nil {
			result, plan, _ = l.prepare(ctx, s, event, o)
		}
		if plan == nil { // Only a commit proves that a remembered job is the stored one.
			s := loaded
			if loaded = nil; s == nil {
				if s, err = l.load(ctx, jobID); err != nil {
					return err
				}
			}
			if result, plan, err = l.prepare(ctx, s, event, o); err != nil {
				return err
			}
		}
		if plan == nil {
			result.PostErr = l.forgetLost(ctx, &result.Job.Job, o)
			return l.confirmRepeat(ctx, result.Outcome, o)
		}
		postErr, err := l.commitPlan(ctx, plan, o, &handed)
		switch {
		case err != nil:
			return err
		case o.quiet && plan.ended:
			if result.PostErr = l.projectPlan(ctx, plan, postErr); result.PostErr == nil {
				o.forget = plan.forget // After an error the entry repeats the work.
			}
		default:
			result.PostErr = l.finish(ctx, plan, postErr)
		}
		return nil
	})
	switch {
	case err == nil:
		return result, nil
	case o.verb != nil:
		return Result{}, err // A refusal names the work item, and the worker reads it.
	}
	return Result{}, fmt.Errorf("change job %s: %w", jobID, err)
}

// commitPlan commits the plan of a change. [Ledger.finish] follows. It returns the first error of the post
// stages, and an error if the plan was not committed.
func (l *Ledger) commitPlan(ctx context.Context, plan *plan, o *options, handed *bool) (postErr, err error) {
	l.hand(plan, handed)
	defer plan.takeover.release()
	applied, err := l.submit(ctx, plan)
	if errors.Is(err, tablestore.ErrConflict) && l.atomic == nil {
		o.lost, o.lostRev = append(o.lost, plan.entries...), plan.after.Job.Rev
	}
	if err != nil {
		return nil, err
	}
	l.committed(ctx, plan)
	l.freeRuns(ctx, plan)
	if plan.ended {
		l.cfg.Ended(&plan.after.Job)
	}
	return applied.PostErr, nil
}

// confirm returns nil once a failover cannot lose what this process has read. A request that
// an earlier change has fulfilled is acknowledged only then.
func (l *Ledger) confirm(ctx context.Context) error {
	if confirmer, ok := tablestore.As[tablestore.Confirmer](l.store); ok {
		return confirmer.Confirm(ctx)
	}
	return nil
}

// confirmRepeat confirms the change that a repeated request is answered with.
func (l *Ledger) confirmRepeat(ctx context.Context, outcome statemachine.Outcome, o *options) error {
	if outcome != statemachine.Duplicate || o.entry != nil {
		return nil
	}
	return l.confirm(ctx)
}

// forgetLost deletes the entries of lost tries, for a change that has nothing to write.
// Otherwise they would stay until they are due, which may be long after the job is purged.
func (l *Ledger) forgetLost(ctx context.Context, job *statemachine.Job, o *options) error {
	if job.Rev < o.lostRev {
		return nil // A heartbeat won the race; it makes no revision.
	}
	return l.commitEach(ctx, l.discardEntries(job.ID, o.lost))
}

// prepare decides the event for the loaded job and plans the writes of the decision.
// plan is nil if there is nothing to write.
func (l *Ledger) prepare(ctx context.Context, s *snapshot, event statemachine.Event, o *options) (Result, *plan, error) {
	if s.head.Tombstone || o.tenantID != "" && s.agg.Job.TenantID != o.tenantID {
		return Result{}, nil, ErrJobNotFound
	}
	if o.entry != nil && s.head.Entry != o.entry.ref() {
		return Result{Outcome: statemachine.Duplicate, Reason: "the entry is obsolete", Job: s.agg}, nil, nil
	}
	if at := o.at; at.Line != "" && (s.agg.Job.Place.Epoch != at.Epoch || s.agg.Job.Place.Seq != at.Seq) {
		return Result{Outcome: statemachine.Duplicate, Reason: "the job has another place", Job: s.agg}, nil, nil
	}
	if o.rev != 0 && s.agg.Job.Rev != o.rev {
		return Result{Outcome: statemachine.Duplicate, Reason: "the job has changed", Job: s.agg}, nil, nil
	}
	f, err := l.fresh()
	if err != nil {
		return Result{}, nil, err
	}
	now := tablestore.Now()
	ask := statemachine.ItemAsk{}
	if o.verb != nil {
		item, repeat, err := l.admit(ctx, s, o.verb)
		if err != nil || repeat {
			return Result{Outcome: statemachine.Duplicate, Job: s.agg, Item: item}, nil, err
		}
		event = o.verb.Event(&item, now)
		ask.Operation, ask.Request = o.verb.Operation, o.verb.request(&item)
	}
	d, err := statemachine.Decide(s.agg, event, l.env(f, now))
	if err != nil {
		return Result{}, nil, err
	}
	result := Result{Outcome: d.Outcome, Code: d.Code, Reason: d.Reason, Job: d.After, remembered: s.directive}
	if d.Outcome != statemachine.Applied {
		return result, nil, nil
	}
	p := &planner{l: l, s: s, d: &d, fresh: f, options: o, eventName: event.Name(), caller: CallerOf(ctx), now: now}
	if p.moves, err = statemachine.FollowItem(&s.agg, s.open, &d, ask, now); err != nil {
		return Result{}, nil, err
	}
	plan, err := p.build(ctx, nil)
	if err != nil {
		return Result{}, nil, err
	}
	result.Message = plan.message
	if !d.Light {
		result.revisedBy = event
	}
	for _, record := range []*statemachine.ItemRecord{p.moves.Ended, p.moves.Open} {
		if o.verb != nil && record != nil && record.WorkID == o.verb.workID {
			result.Item = statemachine.ViewItem(&d.After, record)
		}
	}
	return result, plan, nil
}

// maxSubmits bounds the submissions of a batch with an unknown outcome: each may take as long
// as its deadline, and keeps a slow store busy. This loop is not [tablestore.Retry], whose
// error would say that nothing was written.
const maxSubmits = 4

// submit applies the plan. It returns [tablestore.ErrConflict] after a lost race, and
// [tablestore.ErrUnknown] if the plan may have been committed. After an unknown
// outcome the journal row of the change's rev tells which change was committed.
// While that row is absent, the first submission may still arrive, so the identical
// batch is submitted again.
func (l *Ledger) submit(ctx context.Context, plan *plan) (applied tablestore.Applied, err error) {
	defer func() {
		if errors.Is(err, tablestore.ErrUnknown) && !plan.light {
			l.cfg.Unsure()
		}
	}()
	for submits := range maxSubmits {
		if applied, err = l.apply(ctx, plan.change, plan); err == nil {
			return applied, nil
		}
		conflict := errors.Is(err, tablestore.ErrConflict)
		if !conflict && !errors.Is(err, tablestore.ErrUnknown) {
			if submits > 0 { // An earlier submission may still arrive.
				err = fmt.Errorf("%w: %w", tablestore.ErrUnknown, err)
			}
			return tablestore.Applied{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
		if plan.light && ctx.Err() == nil {
			return tablestore.Applied{}, tablestore.ErrConflict // If it was committed, the next decision is a repeat.
		}
		if plan.light {
			return tablestore.Applied{}, err
		}
		switch winner, lookErr := l.committedBy(ctx, plan); {
		case lookErr != nil:
			return tablestore.Applied{}, fmt.Errorf("%w: %w", tablestore.ErrUnknown, lookErr)
		case winner == plan.operation:
			return tablestore.Applied{Committed: true, PostErr: l.applyPost(ctx, plan)}, nil
		case conflict || winner != "":
			return tablestore.Applied{}, tablestore.ErrConflict
		case ctx.Err() != nil:
			return tablestore.Applied{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, err)
		}
	}
	return tablestore.Applied{}, fmt.Errorf("commit a change of job %s: %w", plan.after.Job.ID, tablestore.ErrUnknown)
}

// committedBy reads the operation id in the journal row that the plan inserts, empty
// if there is no row.
func (l *Ledger) committedBy(ctx context.Context, plan *plan) (string, error) {
	row, err := l.store.Get(ctx, l.eventKey(plan.after.Job.ID, plan.after.Job.Rev))
	if errors.Is(err, tablestore.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the journal after an unknown outcome: %w", err)
	}
	return row.Properties.Get(columnOperation).String(), nil
}

// applyPost applies the post stages after an unknown outcome: the commit is known to
// have succeeded.
func (l *Ledger) applyPost(ctx context.Context, plan *plan) error {
	for _, stage := range plan.change.Post {
		if err := l.commitEach(tablestore.WithGuard(ctx, nil), stage); err != nil {
			return err
		}
	}
	return nil
}

// commitEach commits the batches of a stage one by one.
func (l *Ledger) commitEach(ctx context.Context, stage tablestore.Stage) error {
	for _, batch := range stage {
		if _, err := l.store.Commit(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// apply commits these plans as one change, and offers each as soon as the store applied it.
func (l *Ledger) apply(ctx context.Context, change tablestore.Change, plans ...*plan) (tablestore.Applied, error) {
	return tablestore.Apply(ctx, l.store, change, func(etags map[tablestore.Key]tablestore.ETag) {
		for _, plan := range plans {
			l.offer(plan, etags)
		}
	})
}

// offer lets this process go on with the job as the plan left it: it remembers the job, and
// tells the mirror of the ready index what the plan queues or takes. The first call counts.
//
// On a store that keeps the order of its writes the change may not be durable yet. So the
// job's next change can overlap with this one: their writes share a sync, and a job waits
// for fewer syncs. No caller learns of either change before it is durable, since each
// answer waits for its commit, and each commit for those before it.
func (l *Ledger) offer(plan *plan, etags map[tablestore.Key]tablestore.ETag) {
	plan.offered.Do(func() {
		if plan.turn != nil && len(etags) > 0 {
			plan.turn.give(plan.leaves.after(etags[l.lineKey(plan.leaves.id, rowLine)]))
		}
		if t := plan.takeover; t != nil {
			t.follow(plan, etags)
			l.offer(t.plan, etags)
			return
		}
		l.recent.committed(plan, etags)
		if plan.taken != nil {
			l.cfg.Ready(*plan.taken, false)
		}
		if plan.queued != nil {
			l.cfg.Ready(*plan.queued, true)
		}
	})
}

// committed reports a durable change to the observers and to the worker that got the item,
// and passes a hot message to this process's relay.
func (l *Ledger) committed(ctx context.Context, plan *plan) {
	l.offer(plan, nil) // If the store did not say that it applied the change.
	l.cfg.Observe(ctx, &plan.base.agg, &plan.after, plan.history)
	if t := plan.takeover; t != nil {
		l.cfg.Observe(t.taker.Context, &t.plan.base.agg, &t.plan.after, t.plan.history)
		t.answer()
	}
	if plan.hot && plan.message != nil {
		l.cfg.Handoff.Offer(*plan.message)
	}
}

// Problem returns the refusal as a [*apierror.Error], or nil if there is none.
func (r *Result) Problem() error {
	if r.Outcome != statemachine.Refused {
		return nil
	}
	if r.Code == statemachine.CodeNotAfterPassed { // The request is wrong, not the state of the job.
		return &apierror.Error{Code: apierror.NotAfterPassed, Errors: []apierror.Violation{{Pointer: "/not_after", Message: r.Reason}}}
	}
	return &apierror.Error{Code: apierror.Code(r.Code), Detail: r.Reason}
}

// Problem maps an error of the ledger to the [*apierror.Error] for the client. An
// unforeseen error is wrapped, and answered as an internal one.
func Problem(err error) error {
	if err == nil {
		return nil
	}
	var known *apierror.Error
	var unfit *statemachine.NotRerunnableError
	var busy *LineBusyError
	told := &apierror.Error{Err: err}
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, ErrJobNotFound):
		told.Code, told.Detail = apierror.JobNotFound, "There is no such job."
	case errors.Is(err, ErrLineNotFound):
		told.Code, told.Detail = apierror.LineNotFound, "No job is in such a line."
	case errors.Is(err, ErrNotBlocking):
		told.Code, told.Detail = apierror.NotBlocking, "The job does not block this line."
	case errors.As(err, &busy):
		told.Code, told.Detail = apierror.LineBusy, "Job "+busy.JobID+" of the same order key has not ended, or blocks its line."
	case errors.Is(err, ErrLineFull):
		told.Code, told.RetryAfter = apierror.LineFull, time.Second
		told.Detail = "As many jobs of the order key wait as are allowed."
	case errors.Is(err, ErrIdempotencyMismatch):
		told.Code = apierror.IdempotencyMismatch
		told.Detail = "The idempotency key was used before, for a command with another content."
	case errors.As(err, &unfit):
		if told.Code = apierror.IllegalTransition; unfit.Nothing {
			told.Code = apierror.NothingToRun
		}
		told.Detail = strings.ToUpper(unfit.Reason[:1]) + unfit.Reason[1:] + "."
	case errors.Is(err, ErrTenantLimit):
		told.Code, told.RetryAfter = apierror.TenantLimit, time.Second
		told.Detail = "The tenant's limit of jobs in flight is reached."
	case errors.Is(err, tablestore.ErrTooLarge):
		told.Code, told.Detail = apierror.TooLarge, fmt.Sprintf("The request makes a row of more than %d bytes, or a change of more than "+
			"%d: shorten its payload, references or texts.", tablestore.MaxRowBytes, tablestore.MaxBatchBytes)
	case errors.Is(err, tablestore.ErrUnknown):
		told.Code, told.RetryAfter = apierror.StoreUnavailable, time.Second
		told.Detail = "The store did not confirm the change. Sending the request again is safe."
	case errors.Is(err, tablestore.ErrNoSpace):
		told.Code, told.RetryAfter = apierror.StoreUnavailable, time.Second
		told.Detail = "The store takes no writes: less disk space is free than its reserve. Sending the request again is safe."
	case errors.Is(err, tablestore.ErrDenied):
		told.Code, told.RetryAfter = apierror.StoreUnavailable, time.Second
		told.Detail = "The store denies the server access until an operator acts. Sending the request again is safe."
	case errors.Is(err, tablestore.ErrUnavailable):
		told.Code, told.RetryAfter = apierror.StoreUnavailable, time.Second
		told.Detail = "The store does not answer. Sending the request again is safe."
	default:
		return fmt.Errorf("ledger: %w", err)
	}
	return told
}
