package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Claim is a worker's claim of items.
type Claim struct {
	Owner     string
	RequestID string
	// Start also starts the items, in the same change.
	Start bool
	// Lease replaces the step's ACK timeout until the start if it is not 0.
	Lease time.Duration
	// Sees is the same check as [Verb].Sees. Optional.
	Sees func(tenantID, service string) bool
	// Enough bounds the bytes of directives: the claim stops looking at hints once it has
	// that many. 0 means no bound.
	Enough int64
	// Sendable reports whether the claim of the hint's item may be sent now. It is asked
	// immediately before each sending of the commit, also after an unknown outcome; an item that
	// it refuses counts as one that the claim had enough without. Optional. It must not block.
	Sendable func(hint *Hint) bool
	// Slots chooses the run slots that each claim takes. Optional.
	Slots SlotTaker
	// Memory returns the write of the claim's row, which names its candidates and is
	// kept until the longest lease ends. An atomic store commits it with the claims;
	// any other commits it before the first. Optional.
	Memory func(candidates []Candidate, until time.Time) tablestore.Batch
}

// Candidate is an attempt that a claim is about to claim.
type Candidate struct {
	WorkID    string
	AttemptNo int
}

// Claimed is the outcome of a claim for one hint.
type Claimed struct {
	Hint Hint
	// Standing is HintNamed for an item that the owner holds now, unless Err is set. It is
	// 0 if the claim had enough before it looked at the hint, or was not to send it.
	Standing HintStanding
	Item     statemachine.Item
	// Directive is the message body of the item's attempt, with its lease id.
	Directive []byte
	// Known says that the request claimed the item before, so nothing was committed for it.
	Known bool
	// Err says why the item could not be claimed though its hint may be named.
	Err error
	// PostErr is the first error of the post-commit work; the claim is committed.
	PostErr error
}

// ErrClaimKnown is returned for a claim whose memory exists: another try of the
// request is or was in progress.
var ErrClaimKnown = errors.New("the claim was made before")

// parallelClaims bounds how many items one claim works on concurrently.
const parallelClaims = 32

// candidate is the planned claim of one item.
type candidate struct {
	outcome *Claimed
	plan    *plan
	slots   []takenSlot // that it takes, nil until they are chosen
}

// Claim claims the items of hints, each by one change of its job; on an atomic store
// all in one write. It skips items that are not available, and deletes void hints.
// The outcomes are in the order of the hints. The error is [ErrClaimKnown], or one
// that concerns all items.
//
// Source: Job lifecycle plan 02, Claim.
func (l *Ledger) Claim(ctx context.Context, hints []Hint, c *Claim) ([]Claimed, error) {
	ctx = l.operation(ctx)
	outcomes := make([]Claimed, len(hints))
	planned := make([]*candidate, len(hints))
	var held atomic.Int64 // The bytes of directives.
	enough := func() bool { return c.Enough > 0 && held.Load() >= c.Enough }
	for i := range hints {
		outcomes[i].Hint = hints[i]
		if enough() {
			continue
		}
		if planned[i] = l.planRemembered(ctx, hints[i], c, &outcomes[i]); planned[i] != nil {
			held.Add(int64(len(outcomes[i].Directive)))
		}
	}
	var group errgroup.Group
	group.SetLimit(parallelClaims)
	for i := range hints {
		if planned[i] == nil && !enough() {
			group.Go(func() error {
				planned[i] = l.planClaim(ctx, hints[i], c, &outcomes[i])
				held.Add(int64(len(outcomes[i].Directive)))
				return nil
			})
		}
	}
	_ = group.Wait() // Each outcome has its own error.
	open := slices.DeleteFunc(planned, func(one *candidate) bool { return one == nil })
	if len(open) == 0 {
		return outcomes, nil
	}

	memory := memoryOf(open, c)
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

// memoryOf returns the write of the claim's row, none if the claim has none.
func memoryOf(open []*candidate, c *Claim) tablestore.Batch {
	if c.Memory == nil {
		return nil
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

// planRemembered plans the claim of a hint whose job and directive this process
// remembers, without a read. It returns nil for any other, and if there would be nothing
// to commit: only a commit proves that a remembered job is the stored one.
func (l *Ledger) planRemembered(ctx context.Context, hint Hint, c *Claim, outcome *Claimed) *candidate {
	id, err := ParseOutboxID(hint.WorkID)
	if err != nil {
		return nil
	}
	s := l.recent.take(id.JobID)
	if s == nil || judgeHint(&hint, s) != HintNamed ||
		s.directive.Key != l.attemptKey(rowDirective, id.JobID, id.StepIndex, hint.AttemptNo) {
		return nil
	}
	*outcome = Claimed{Hint: hint}
	plan, _ := l.decideClaim(ctx, s, &hint, id, c, outcome)
	if plan == nil {
		return nil
	}
	return &candidate{outcome: outcome, plan: plan}
}

// planClaim loads the job of a hint, decides the claim, and plans its writes. It
// returns nil if there is nothing to commit; the outcome says why.
func (l *Ledger) planClaim(ctx context.Context, hint Hint, c *Claim, outcome *Claimed) *candidate {
	*outcome = Claimed{Hint: hint}
	id, err := ParseOutboxID(hint.WorkID)
	if err != nil {
		outcome.Err = err
		return nil
	}
	s, err := l.load(ctx, id.JobID) // nil if the job is missing
	if err != nil && !errors.Is(err, ErrJobNotFound) {
		outcome.Err = err
		return nil
	}
	plan, err := l.decideClaim(ctx, s, &hint, id, c, outcome)
	if err != nil || plan == nil {
		outcome.Err = err
		return nil
	}
	return &candidate{outcome: outcome, plan: plan}
}

func (l *Ledger) decideClaim(
	ctx context.Context, s *snapshot, hint *Hint, id OutboxID, c *Claim, outcome *Claimed,
) (_ *plan, err error) {
	switch outcome.Standing = judgeHint(hint, s); outcome.Standing {
	case HintVoid:
		if s != nil && s.carries(hint.WorkID, hint.AttemptNo) {
			// The client may have sent this request twice, and the other try may have
			// claimed the item since the hint was read: both get the same answer.
			if item := statemachine.ViewItem(&s.agg, s.open); item.HeldUnder(c.Owner, c.RequestID) {
				outcome.Standing, outcome.Item, outcome.Known = HintNamed, item, true
				outcome.Directive, err = l.ItemDirective(ctx, &item)
				return nil, err
			}
		}
		return nil, l.dropHint(ctx, hint)
	case HintEarly:
		return nil, nil
	case HintNamed:
	}
	if outcome.Directive, err = l.directive(ctx, s, id.JobID, id.StepIndex, hint.AttemptNo); err != nil {
		return nil, err
	}
	v := claimVerb(hint.WorkID, id, c)
	result, plan, err := l.prepare(ctx, s, nil, &options{actor: ActorWorker, requestID: c.RequestID, verb: v})
	switch {
	case errors.Is(err, statemachine.ErrNoItem), err == nil && result.Outcome == statemachine.Duplicate:
		// The caller may not see the item, or this very request claimed it once and it
		// was offered again since.
		outcome.Standing = HintEarly
		return nil, nil
	case err == nil && result.Code == statemachine.CodeNotAfterPassed: // The sweeper is to end the job.
		outcome.Standing = HintEarly
		return nil, nil
	case err == nil && plan == nil:
		return nil, fmt.Errorf("claim work item %s: %s %s", hint.WorkID, result.Outcome, result.Reason)
	}
	outcome.Item = result.Item
	return plan, err
}

// claimVerb returns the claim of one item as a verb. To the job it is the delivery,
// which starts the ACK deadline; with the start it is the ACK.
func claimVerb(workID string, id OutboxID, c *Claim) *verb {
	event := func(item *statemachine.Item, _ time.Time) statemachine.Event {
		pair := statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
		if c.Start {
			return statemachine.Ack{StepID: item.StepID, Pair: pair, Lease: c.Lease}
		}
		return statemachine.Claimed{StepID: item.StepID, Pair: pair, Lease: c.Lease}
	}
	return &verb{
		workID: workID, id: id, claim: c,
		Verb: Verb{
			Operation: statemachine.OpClaimNext, Request: statemachine.ItemRequest{Actor: c.Owner, ID: c.RequestID},
			Sees: c.Sees, Event: event,
		},
	}
}

// claimAlone commits one candidate by itself, and decides again after a lost race.
func (l *Ledger) claimAlone(ctx context.Context, one *candidate, c *Claim) {
	outcome := one.outcome
	kept := false // The claim is committed, or may be.
	err := tablestore.Retry(ctx, l.cfg.Random, func() error {
		if one.plan == nil {
			again := l.planClaim(ctx, outcome.Hint, c, outcome)
			if again == nil {
				return outcome.Err
			}
			one.plan = again.plan
		}
		if err := l.takeSlots(ctx, one, c); err != nil {
			return err
		}
		applied, err := l.submit(c.guarded(ctx, one), one.plan)
		if kept = err == nil || errors.Is(err, tablestore.ErrUnknown); err == nil {
			l.claimed(ctx, one, applied.PostErr)
		}
		one.plan = nil
		return err
	})
	if !kept {
		l.dropSlots(ctx, one.slots)
	}
	if lapsed(err) {
		*outcome = Claimed{Hint: outcome.Hint}
		return
	}
	if err != nil {
		outcome.Err = fmt.Errorf("claim: %w", err)
	}
}

// guarded returns a context whose writes are sent only while these candidates may be.
func (c *Claim) guarded(ctx context.Context, all ...*candidate) context.Context {
	if c.Sendable == nil {
		return ctx
	}
	return tablestore.WithGuard(ctx, func() bool {
		return !slices.ContainsFunc(all, func(one *candidate) bool { return !c.Sendable(&one.outcome.Hint) })
	})
}

// lapsed reports whether a claim was not sent because it was not to be. An earlier sending
// whose outcome is unknown stays unknown.
func lapsed(err error) bool {
	return errors.Is(err, tablestore.ErrLapsed) && !errors.Is(err, tablestore.ErrUnknown)
}

// sendable returns the candidates that may still be sent. The others are not claimed.
func (c *Claim) sendable(open []*candidate) []*candidate {
	return slices.DeleteFunc(open, func(one *candidate) bool {
		refused := !c.Sendable(&one.outcome.Hint)
		if refused {
			*one.outcome = Claimed{Hint: one.outcome.Hint}
		}
		return refused
	})
}

// claimTogether commits all candidates and the claim's row in one write. If a job
// has changed since it was loaded, its claim is decided again; the plans of the
// others still fit.
func (l *Ledger) claimTogether(ctx context.Context, open []*candidate, memory tablestore.Batch, c *Claim) error {
	err := tablestore.Retry(ctx, l.cfg.Random, func() error {
		if len(open) == 0 {
			return nil
		}
		plans := make([]*plan, len(open))
		for i, one := range open {
			plans[i] = one.plan
		}
		change := l.insertSlots(open, c, together(plans, memory))
		applied, err := l.apply(c.guarded(ctx, open...), change, plans...)
		if lapsed(err) {
			open = c.sendable(open)
			return errors.Join(tablestore.ErrConflict, err) // The others are tried again.
		}
		if err == nil {
			for _, one := range open {
				l.claimed(ctx, one, applied.PostErr)
			}
			return nil
		}
		conflict, lost := errors.AsType[*tablestore.ConflictError](err)
		if !lost {
			return err
		}
		if len(memory) > 0 && conflict.Key == memory[0].Key {
			return ErrClaimKnown
		}
		open = l.decideAgain(ctx, open, conflict.Key, c)
		return err
	})
	if errors.Is(err, tablestore.ErrUnknown) {
		l.cfg.Unsure()
	}
	if err != nil && !errors.Is(err, ErrClaimKnown) {
		return fmt.Errorf("claim: %w", err)
	}
	return err
}

// decideAgain decides the claim of the candidate again whose row has changed, and returns those that are
// left.
func (l *Ledger) decideAgain(ctx context.Context, open []*candidate, changed tablestore.Key, c *Claim) []*candidate {
	if left, lost := l.slotLost(open, changed, c); lost {
		return left
	}
	i := slices.IndexFunc(open, func(one *candidate) bool {
		return changed.Partition == tablestore.Escape(one.plan.after.Job.ID)
	})
	if i < 0 {
		return open
	}
	again := l.planClaim(ctx, open[i].outcome.Hint, c, open[i].outcome)
	if again == nil {
		return slices.Delete(open, i, i+1)
	}
	again.slots = open[i].slots
	open[i] = again
	return open
}

// together returns one change for all plans and the claim's row, for an atomic store:
// only one batch can be the commit, and the store applies the stages before it in the
// same write. A plan may be based on the writes of the plan before it.
func together(plans []*plan, memory tablestore.Batch) tablestore.Change {
	last := len(plans) - 1
	change := tablestore.Change{Commit: plans[last].change.Commit}
	for i, one := range plans {
		change.Pre = append(change.Pre, one.change.Pre...)
		if i == 0 && len(memory) > 0 {
			change.Pre = append(change.Pre, tablestore.Stage{memory})
		}
		if i < last {
			change.Pre = append(change.Pre, tablestore.Stage{one.change.Commit})
		}
		change.Post = append(change.Post, one.change.Post...)
	}
	return change
}

// claimed runs the post-commit work of a claim.
func (l *Ledger) claimed(ctx context.Context, one *candidate, postErr error) {
	l.committed(ctx, one.plan)
	one.outcome.PostErr = l.finish(ctx, one.plan, postErr)
}

// Reclaimable is the outcome of reclaiming a candidate of an earlier claim.
type Reclaimable uint8

// The values of Reclaimable.
const (
	// ReclaimLost: the request never claimed it, and it is not available any more.
	ReclaimLost Reclaimable = iota
	// ReclaimHeld: the owner holds it under the request.
	ReclaimHeld
	// ReclaimLater: it waits for a worker at that attempt, but cannot be claimed now.
	// Another try of the request may be about to claim it.
	ReclaimLater
	// ReclaimDone: the request claimed it, and the owner has finished or lost it.
	ReclaimDone
)

// Reclaim answers for one candidate of an earlier claim. If it still waits for a
// worker it is claimed now, unless held keeps it back: the first try may have
// crashed.
func (l *Ledger) Reclaim(ctx context.Context, of Candidate, c *Claim, held func(*Hint) bool) (Claimed, Reclaimable, error) {
	id, err := ParseOutboxID(of.WorkID)
	if err != nil {
		return Claimed{}, ReclaimLost, err
	}
	s, err := l.loadExisting(ctx, id.JobID)
	if errors.Is(err, ErrJobNotFound) {
		return Claimed{}, ReclaimLost, nil
	}
	if err != nil {
		return Claimed{}, ReclaimLost, err
	}
	if s.queued() && s.carries(of.WorkID, of.AttemptNo) {
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
			return Claimed{}, ReclaimLost, nil // The caller may not see it.
		}
		return l.Reclaim(ctx, of, c, held) // It has changed: it is not queued at that attempt now.
	}
	item, repeat, err := l.admit(ctx, s, claimVerb(of.WorkID, id, c))
	refused := slices.ContainsFunc([]error{
		statemachine.ErrInvalidRequest, statemachine.ErrNotOwner, statemachine.ErrRevConflict, statemachine.ErrIllegalTransition,
		statemachine.ErrNoItem,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
	switch {
	case refused, err == nil && !repeat: // The request has not claimed it.
		return Claimed{}, ReclaimLost, nil
	case err != nil:
		return Claimed{}, ReclaimLost, err
	case !item.HeldUnder(c.Owner, c.RequestID):
		return Claimed{}, ReclaimDone, nil
	}
	directive, err := l.Directive(ctx, id.JobID, id.StepIndex, item.AttemptNo)
	return Claimed{Standing: HintNamed, Item: item, Directive: directive}, ReclaimHeld, err
}
