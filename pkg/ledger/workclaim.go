package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// Claim is who claims items, and how.
type Claim struct {
	Owner     string
	RequestID string
	// Start says that the items are started in the same change.
	Start bool
	// Lease replaces the step's ACK timeout until the start if it is not 0.
	Lease time.Duration
	// Sees is that of a [Verb]. Optional.
	Sees func(tenantID, service string) bool
	// Memory makes the write of the claim's own row, which names its candidates and
	// lasts until the end of the longest lease. An atomic store applies it with the
	// claims; on any other it is known written before the first. Optional.
	Memory func(candidates []Candidate, until time.Time) (tablestore.Batch, error)
}

// Candidate is an attempt that a claim is about to take.
type Candidate struct {
	WorkID    string
	AttemptNo int
}

// Claimed is what became of one hint in a claim.
type Claimed struct {
	Hint Hint
	// Standing is HintNamed for an item that the owner holds now, unless Err is set.
	Standing HintStanding
	Item     lifecycle.Item
	// Directive is the message body of the item's attempt, with its lease id.
	Directive []byte
	// Err says why the item could not be claimed though its hint may be named.
	Err error
	// PostErr is the first error of what follows the change; the claim holds.
	PostErr error
}

// ErrClaimKnown is returned for a claim whose memory is there already: the same
// request is, or was, under way elsewhere.
var ErrClaimKnown = errors.New("the claim was made before")

// parallelClaims bounds how many items one claim works on side by side.
const parallelClaims = 32

// candidate is a claim of one item in the making; plan is nil if there is nothing
// to commit.
type candidate struct {
	outcome *Claimed
	jobID   string
	plan    *plan
}

// Claim claims the items of hints, each by one change of its job, on an atomic
// store all in one write. Items that cannot be had are left out, and void hints
// are deleted. The outcomes are in the order of the hints. The error is
// [ErrClaimKnown], or one that concerned all of them.
//
// Source: Job lifecycle plan 02, Claim.
func (l *Ledger) Claim(ctx context.Context, hints []Hint, c *Claim) ([]Claimed, error) {
	outcomes := make([]Claimed, len(hints))
	begun := make([]*candidate, len(hints))
	var group errgroup.Group
	group.SetLimit(parallelClaims)
	for i := range hints {
		group.Go(func() error {
			begun[i] = l.beginClaim(ctx, &hints[i], c, &outcomes[i])
			return nil
		})
	}
	_ = group.Wait() // Each hint has an outcome of its own.
	open := slices.DeleteFunc(begun, func(one *candidate) bool { return one == nil })
	if len(open) == 0 {
		return outcomes, nil
	}
	memory, err := c.memory(open)
	if err != nil {
		return nil, err
	}
	if l.atomic != nil {
		return outcomes, l.claimTogether(ctx, open, memory, c)
	}
	if len(memory) > 0 {
		_, err := l.store.Commit(ctx, memory)
		switch {
		case errors.Is(err, tablestore.ErrConflict), errors.Is(err, tablestore.ErrUnknown):
			return nil, ErrClaimKnown
		case err != nil:
			return nil, fmt.Errorf("remember the claim: %w", err)
		}
	}
	for _, one := range open {
		group.Go(func() error {
			l.claimAlone(ctx, one, c)
			return nil
		})
	}
	_ = group.Wait()
	return outcomes, nil
}

// memory is the write that remembers the claim of these candidates.
func (c *Claim) memory(open []*candidate) (tablestore.Batch, error) {
	if c.Memory == nil {
		return nil, nil
	}
	var until time.Time
	candidates := make([]Candidate, len(open))
	for i, one := range open {
		candidates[i] = Candidate{WorkID: one.outcome.Hint.WorkID, AttemptNo: one.outcome.Hint.AttemptNo}
		if lease := one.outcome.Item.LeaseExpiresAt; lease.After(until) {
			until = lease
		}
	}
	return c.Memory(candidates, until)
}

// beginClaim loads the job of a hint and decides about the claim. It returns nil if
// there is nothing to commit; the outcome says why.
func (l *Ledger) beginClaim(ctx context.Context, hint *Hint, c *Claim, outcome *Claimed) *candidate {
	*outcome = Claimed{Hint: *hint}
	plan, err := l.planClaim(ctx, hint, c, outcome)
	if err != nil || plan == nil {
		outcome.Err = err
		return nil
	}
	return &candidate{outcome: outcome, jobID: plan.after.Job.ID, plan: plan}
}

func (l *Ledger) planClaim(ctx context.Context, hint *Hint, c *Claim, outcome *Claimed) (*plan, error) {
	id, err := ParseOutboxID(hint.WorkID)
	if err != nil {
		return nil, err
	}
	s, err := l.load(ctx, id.JobID)
	if errors.Is(err, ErrJobNotFound) {
		s, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch outcome.Standing = judgeHint(hint, s); outcome.Standing {
	case HintVoid:
		if held, err := l.heldAlready(ctx, s, c, outcome); held || err != nil {
			return nil, err
		}
		return nil, l.dropHint(ctx, hint)
	case HintEarly:
		return nil, nil
	case HintNamed:
	}
	if outcome.Directive, err = l.Directive(ctx, id.JobID, id.StepIndex, hint.AttemptNo); err != nil {
		return nil, err
	}
	v := claimVerb(hint, id, c)
	result, plan, err := l.prepare(ctx, s, nil, &options{actor: c.Owner, requestID: c.RequestID, verb: v})
	switch {
	case errors.Is(err, lifecycle.ErrNotFound), err == nil && result.Outcome == statemachine.Duplicate:
		// Not the caller's to see, or offered again since this very request had it.
		outcome.Standing = HintEarly
		return nil, nil
	case err == nil && plan == nil:
		return nil, fmt.Errorf("claim work item %s: %s %s", hint.WorkID, result.Outcome, result.Reason)
	}
	outcome.Item = result.Item
	return plan, err
}

// heldAlready answers for an item that the same request has taken elsewhere since its
// hint was read: the claim's client may have sent it twice, and hear one answer.
func (l *Ledger) heldAlready(ctx context.Context, s *snapshot, c *Claim, outcome *Claimed) (bool, error) {
	hint := &outcome.Hint
	if s == nil || s.open == nil || s.open.WorkID != hint.WorkID || s.open.AttemptNo != hint.AttemptNo {
		return false, nil
	}
	item := workitem.View(&s.agg, s.open)
	if !item.HeldUnder(c.Owner, c.RequestID) {
		return false, nil
	}
	directive, err := l.ItemDirective(ctx, &item)
	outcome.Standing, outcome.Item, outcome.Directive = HintNamed, item, directive
	return true, err
}

// claimVerb is the claim of one item: to the ledger the delivery, which starts the
// ACK deadline, or with the start the ACK.
func claimVerb(hint *Hint, id OutboxID, c *Claim) *verb {
	event := func(item *lifecycle.Item, now time.Time) statemachine.Event {
		pair := statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
		switch {
		case c.Start:
			return statemachine.Ack{StepID: item.StepID, Pair: pair}
		case c.Lease > 0:
			return statemachine.Claimed{StepID: item.StepID, Pair: pair, By: now.Add(c.Lease)}
		}
		return statemachine.Claimed{StepID: item.StepID, Pair: pair}
	}
	return &verb{
		workID: hint.WorkID, id: id, claim: c,
		Verb: Verb{
			Operation: lifecycle.OpClaimNext, Request: lifecycle.Request{Actor: c.Owner, ID: c.RequestID},
			Sees: c.Sees, Event: event,
		},
	}
}

// claimAlone commits one candidate by itself, and decides again after a lost race.
func (l *Ledger) claimAlone(ctx context.Context, one *candidate, c *Claim) {
	outcome := one.outcome
	err := tablestore.Retry(ctx, l.random, func() error {
		if one == nil {
			hint := outcome.Hint
			if one = l.beginClaim(ctx, &hint, c, outcome); one == nil {
				return outcome.Err
			}
		}
		postErr, err := l.submit(ctx, one.plan)
		if err == nil {
			l.claimed(ctx, one, postErr)
		}
		one = nil
		return err
	})
	if err != nil {
		outcome.Err = fmt.Errorf("claim: %w", err)
	}
}

// claimTogether commits all candidates and the claim's row in one write. Of a job
// that changed in between the claim is decided about again; the plans of the
// others still fit.
func (l *Ledger) claimTogether(ctx context.Context, open []*candidate, memory tablestore.Batch, c *Claim) error {
	err := tablestore.Retry(ctx, l.random, func() error {
		if len(open) == 0 {
			return nil
		}
		applied, err := tablestore.Apply(ctx, l.store, together(open, memory))
		if err == nil {
			for _, one := range open {
				l.claimed(ctx, one, applied.PostErr)
			}
			return nil
		}
		var conflict *tablestore.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		if len(memory) > 0 && conflict.Key == memory[0].Key {
			return ErrClaimKnown
		}
		lost := slices.IndexFunc(open, func(one *candidate) bool {
			return conflict.Key.Partition == tablestore.Escape(one.jobID)
		})
		if lost < 0 {
			return err
		}
		outcome := open[lost].outcome
		hint := outcome.Hint
		if again := l.beginClaim(ctx, &hint, c, outcome); again != nil {
			open[lost] = again
		} else {
			open = slices.Delete(open, lost, lost+1)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrClaimKnown) {
		return fmt.Errorf("claim: %w", err)
	}
	return err
}

// together is one change of all candidates' changes and the claim's row, for a store
// that applies it in one write.
func together(open []*candidate, memory tablestore.Batch) tablestore.Change {
	change := tablestore.Change{Commit: open[0].plan.change.Commit}
	if len(memory) > 0 {
		change.Pre = append(change.Pre, tablestore.Stage{memory})
	}
	for i, one := range open {
		change.Pre = append(change.Pre, one.plan.change.Pre...)
		if i > 0 {
			change.Pre = append(change.Pre, tablestore.Stage{one.plan.change.Commit})
		}
		change.Post = append(change.Post, one.plan.change.Post...)
	}
	return change
}

// claimed does what follows the commit of a claim.
func (l *Ledger) claimed(ctx context.Context, one *candidate, postErr error) {
	l.committed(one.plan)
	one.outcome.PostErr = l.finish(ctx, one.plan, postErr)
}

// Reclaimable is what a candidate of a claim that was made before is to the same
// request now.
type Reclaimable uint8

// What it may be.
const (
	// ReclaimLost: another claim took it, or it is not to be had any more, and it was
	// never claimed under the request.
	ReclaimLost Reclaimable = iota
	// ReclaimHeld: the owner holds it under the request.
	ReclaimHeld
	// ReclaimLater: it waits for a worker at that attempt and can not be had now. A
	// try of the request may be on its way to it.
	ReclaimLater
	// ReclaimDone: it was claimed under the request, and the owner is done with it or
	// has lost it.
	ReclaimDone
)

// Reclaim answers for one candidate of a claim that was made before. One that still
// waits for a worker is claimed now unless held keeps it back: the first try may
// have died on the way.
func (l *Ledger) Reclaim(ctx context.Context, of Candidate, c *Claim, held func(*Hint) bool) (Claimed, Reclaimable, error) {
	id, err := ParseOutboxID(of.WorkID)
	if err != nil {
		return Claimed{}, ReclaimLost, err
	}
	s, err := l.load(ctx, id.JobID)
	switch {
	case errors.Is(err, ErrJobNotFound), err == nil && s.head.tombstone:
		return Claimed{}, ReclaimLost, nil
	case err != nil:
		return Claimed{}, ReclaimLost, err
	}
	if s.queued() && s.open != nil && s.open.WorkID == of.WorkID && s.open.AttemptNo == of.AttemptNo {
		hint := l.hintOf(&s.agg, s.open)
		if held(&hint) {
			return Claimed{}, ReclaimLater, nil
		}
		unremembered := *c
		unremembered.Memory = nil
		outcomes, err := l.Claim(ctx, []Hint{hint}, &unremembered)
		if err == nil {
			err = outcomes[0].Err
		}
		switch {
		case err != nil:
			return Claimed{}, ReclaimLater, err
		case outcomes[0].Standing == HintNamed:
			return outcomes[0], ReclaimHeld, nil
		case outcomes[0].Standing == HintEarly:
			return Claimed{}, ReclaimLost, nil // Not the caller's to see.
		}
		return l.Reclaim(ctx, of, c, held) // It moved in between: it is not queued at that attempt now.
	}
	item, repeat, err := l.admit(ctx, s, claimVerb(&Hint{WorkID: of.WorkID}, id, c))
	switch {
	case isRefusal(err), err == nil && !repeat: // It was no claim under this request.
		return Claimed{}, ReclaimLost, nil
	case err != nil:
		return Claimed{}, ReclaimLost, err
	case !item.HeldUnder(c.Owner, c.RequestID):
		return Claimed{}, ReclaimDone, nil
	}
	directive, err := l.Directive(ctx, id.JobID, id.StepIndex, item.AttemptNo)
	return Claimed{Standing: HintNamed, Item: item, Directive: directive}, ReclaimHeld, err
}

// isRefusal reports whether the policy of the queue said no.
func isRefusal(err error) bool {
	for _, refusal := range []error{
		lifecycle.ErrInvalidRequest, lifecycle.ErrNotOwner, lifecycle.ErrRevConflict, lifecycle.ErrIllegalTransition,
		lifecycle.ErrNotFound,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}
