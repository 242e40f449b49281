package ledger

import (
	"context"
	"slices"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Taker is a worker's claim that waits for an item.
type Taker struct {
	*Claim

	// Context holds the caller of the claim, for the history, and its trace.
	Context context.Context //nolint:containedctx // It is another request's than that of the change.
	// Done ends the wait. It is called once: with the item once the claim is committed, or
	// with nil if that is not known, so that the claim looks for items itself. It must not
	// block.
	Done func(item *Claimed)
}

// takeover is the claim of the item that a change queues, by a worker that waits for
// it. An atomic store commits both in one write, so that an item passes from one
// worker to the next, or from the client to a worker, without an extra commit.
// They stay two changes with a revision and a journal row each: a reader of the job
// cannot tell them from two writes.
type takeover struct {
	taker   *Taker
	plan    *plan // made for the job as the change leaves it
	claimed Claimed
	// commit is that of the change alone.
	commit   tablestore.Batch
	answered bool
}

// hand gives the item that the plan queues to a waiting worker: the plan's change then
// claims it as well. It does so only while this process makes no other change: under load,
// a claim that waits a moment longer takes the items of several changes in one request.
//
// An item that only moves to another class is not handed: it was offered before.
//
// A change hands its item in one try at most, and handed says that it did: the write may
// conflict with the memory of the claim, whose request another try has answered, and the
// next waiting claim may be one more repeat of that request.
func (l *Ledger) hand(out *plan, handed *bool) {
	if *handed || out.queued == nil || out.taken != nil {
		return
	}
	if l.atomic == nil || l.cfg.Projector != nil || l.cfg.Taker == nil || l.changing.Load() > 1 {
		return
	}
	id, err := ParseOutboxID(out.queued.WorkID)
	if err != nil {
		return
	}
	taker := l.cfg.Taker(out.queued)
	if taker == nil {
		return
	}
	*handed = true
	// An item that cannot be claimed now is queued as usual; its claim reports the error.
	defer func() {
		if out.takeover == nil {
			taker.Done(nil)
		}
	}()
	t := &takeover{taker: taker, claimed: Claimed{Hint: *out.queued}, commit: out.change.Commit}
	own := make(map[tablestore.Key]tablestore.ETag, len(out.change.Commit))
	for i := range out.change.Commit {
		own[out.change.Commit[i].Key] = tablestore.Own
	}
	t.plan, err = l.decideClaim(taker.Context, out.snapshot(own), out.queued, id, taker.Claim, &t.claimed)
	if err != nil || t.plan == nil {
		return
	}
	memory := memoryOf([]*candidate{{outcome: &t.claimed, plan: t.plan}}, taker.Claim)
	// The hint would be written and deleted by the same write.
	hint := l.hintKey(out.queued)
	out.change.Pre, t.plan.change.Post = without(out.change.Pre, hint), without(t.plan.change.Post, hint)
	out.change = together([]*plan{out, t.plan}, memory)
	out.takeover = t
}

// without removes the ops on a row from the stages.
func without(stages []tablestore.Stage, key tablestore.Key) []tablestore.Stage {
	for i := range stages {
		for j := range stages[i] {
			stages[i][j] = slices.DeleteFunc(stages[i][j], func(op tablestore.Op) bool { return op.Key == key })
		}
		stages[i] = slices.DeleteFunc(stages[i], func(batch tablestore.Batch) bool { return len(batch) == 0 })
	}
	return stages
}

// follow bases the claim on the versions that the change wrote.
func (t *takeover) follow(out *plan, etags map[tablestore.Key]tablestore.ETag) {
	alone := plan{base: out.base, after: out.after, head: out.head, open: out.open, change: tablestore.Change{Commit: t.commit}}
	t.plan.base = alone.snapshot(etags)
	t.plan.taken = nil // The mirror was not told of the hint.
}

// answer gives the item to the worker that it was claimed for, now that the plan is durable.
func (t *takeover) answer() {
	if t != nil && !t.answered {
		t.answered = true
		t.taker.Done(&t.claimed)
	}
}

// release tells the worker that was to get the item to look for work itself. It does
// nothing once the plan is known to be committed.
func (t *takeover) release() {
	if t != nil && !t.answered {
		t.answered = true
		t.taker.Done(nil)
	}
}
