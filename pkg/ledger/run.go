package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A limit of n attempts that run at once has the run slots 0 to n-1. A claim takes one of each such
// limit by an insert before its commit, and the item names them:
//
//	insert run row (item, attempt, rev R) ──▶ commit of rev R: the item is held, and names the row
//	commit that ends the hold ──▶ delete the row under its version
//
//	invariant: an item is held and names a slot ⇒ the slot's row exists
//	           from before the claim's commit until after the ending one
//
// No schedule entry is kept for a row: a claim that finds no free slot judges the rows that are taken.
// A row is held, or early (the commit of its rev may still land), or void. A claim that has to try
// another rev first replaces its rows: a process that sees the job at R and no held item deletes the row
// of R, under its version.

// SlotTaker chooses the run slots of claims. It must not block, and must be safe for concurrent use.
type SlotTaker interface {
	// Slots returns the slots that the claim of the hint's item is to take, one of each limit.
	Slots(hint *Hint) []statemachine.RunSlot
	// Another returns another slot of the same limit, for one that another claim has taken. ok is
	// false if none is free.
	Another(hint *Hint, taken statemachine.RunSlot) (another statemachine.RunSlot, ok bool)
}

// RunRow is a run slot that is taken.
type RunRow struct {
	Slot      statemachine.RunSlot
	WorkID    string    `column:"work_id"`
	AttemptNo int       `column:"attempt_no"`
	Rev       int64     `column:"rev"` // of the claim's commit
	At        time.Time `column:"at"`  // when it was taken, by the clock of the process that took it

	etag   tablestore.ETag
	damage error // why the row cannot be read: its slot is taken all the same
}

var runCodec = tablestore.NewCodec[RunRow]()

// earlyRun is how old the row of a claim must be for its commit to be made impossible.
const earlyRun = 30 * time.Second

// runPartition holds the taken slots of a limit.
func (l *Ledger) runPartition(scope statemachine.StartScope) tablestore.Key {
	return tablestore.Key{
		Table: l.tables.Queue, Partition: tablestore.Join("limit", scope.Service, scope.StepType, scope.TenantID),
	}
}

func (l *Ledger) runKey(slot statemachine.RunSlot) tablestore.Key {
	scope, _ := statemachine.ParseStartScope(slot.Limit) // It is the id of a scope.
	key := l.runPartition(scope)
	key.Row = tablestore.Join("run", tablestore.Pad(slot.No, 7))
	return key
}

// RunRows returns the taken run slots of a limit, by number, also those whose rows cannot be read: of these
// [Ledger.JudgeRun] returns the error. The error is the store's.
func (l *Ledger) RunRows(ctx context.Context, scope statemachine.StartScope) ([]RunRow, error) {
	key := l.runPartition(scope)
	rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{Table: key.Table, Partition: key.Partition})
	if err != nil {
		return nil, fmt.Errorf("read the run slots of limit %s: %w", scope.ID(), err)
	}
	taken := make([]RunRow, 0, len(rows))
	for i := range rows {
		var row RunRow
		row.damage = runCodec.Decode(&rows[i], &row)
		no, err := strconv.Atoi(strings.TrimPrefix(rows[i].Key.Row, "run:"))
		if err != nil {
			continue // It takes no slot.
		}
		row.Slot, row.etag = statemachine.RunSlot{Limit: scope.ID(), No: no}, rows[i].ETag
		taken = append(taken, row)
	}
	return taken, nil
}

// JudgeRun compares a taken run slot with its job, and deletes a void one. It makes the commit of an
// early one impossible once it is old. freed says that the slot is free now.
func (l *Ledger) JudgeRun(ctx context.Context, row *RunRow) (freed bool, err error) {
	if row.damage != nil {
		return false, row.damage
	}
	id, err := ParseOutboxID(row.WorkID)
	if err != nil {
		return false, err
	}
	s, err := l.load(ctx, id.JobID) // nil if the job is missing: no claim makes the first revision, so it was purged
	if err != nil && !errors.Is(err, ErrJobNotFound) {
		return false, err
	}
	switch gone := s == nil || s.head.Tombstone; {
	case !gone && s.agg.Job.Rev < row.Rev:
		if time.Since(row.At) < earlyRun {
			return false, nil
		}
		if _, err := l.change(ctx, id.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem}); err != nil {
			return false, err
		}
		return l.JudgeRun(ctx, row) // The claim may have landed first.
	case !gone && s.carries(row.WorkID, row.AttemptNo) && slices.Contains(s.open.Slots, row.Slot):
		return false, nil
	}
	return l.deleteVersion(ctx, l.runKey(row.Slot), row.etag)
}

// putRun writes a taken slot: over the version that this claim wrote before, or else as a new row.
func (l *Ledger) putRun(slot statemachine.RunSlot, etag tablestore.ETag, hint *Hint, rev int64) tablestore.Op {
	row := RunRow{WorkID: hint.WorkID, AttemptNo: hint.AttemptNo, Rev: rev, At: tablestore.Now()}
	op := tablestore.Op{Verb: tablestore.Insert, Key: l.runKey(slot), Properties: runCodec.Encode(&row, nil)}
	if etag != "" {
		op.Verb, op.ETag = tablestore.Replace, etag
	}
	return op
}

// takenSlot is a slot of a claim in progress.
type takenSlot struct {
	statemachine.RunSlot

	etag tablestore.ETag // of the row that the claim has written, empty if it has written none
	rev  int64           // of that row
}

// chooseSlots chooses the candidate's slots, unless it has some.
func (c *Claim) chooseSlots(one *candidate) {
	if c.Slots == nil || one.slots != nil {
		return
	}
	for _, slot := range c.Slots.Slots(&one.outcome.Hint) {
		one.slots = append(one.slots, takenSlot{RunSlot: slot})
	}
}

// another replaces a slot that another claim has taken. It returns an error that [lapsed] knows if all
// are taken.
func (c *Claim) another(one *candidate, i int) error {
	next, ok := c.Slots.Another(&one.outcome.Hint, one.slots[i].RunSlot)
	if !ok {
		return fmt.Errorf("%w: as many attempts run as limit %s allows", tablestore.ErrLapsed, one.slots[i].Limit)
	}
	one.slots[i] = takenSlot{RunSlot: next}
	return nil
}

// nameSlots makes the candidate's item name its slots.
func (one *candidate) nameSlots() {
	if len(one.slots) == 0 {
		return
	}
	named := *one.plan.open
	named.Slots = make([]statemachine.RunSlot, len(one.slots))
	for i := range one.slots {
		named.Slots[i] = one.slots[i].RunSlot
	}
	one.plan.open = &named
	for i := range one.plan.change.Commit {
		op := &one.plan.change.Commit[i]
		if strings.HasPrefix(op.Key.Row, rowOpenItem+":") && op.Verb != tablestore.Delete {
			op.Properties = itemCodec.Encode(&named, op.Properties)
		}
	}
}

// takeSlots writes the rows of the candidate's slots for the revision that its plan makes, each known
// written, and lets its item name them. On an atomic store the claim's write inserts them: see
// [Ledger.insertSlots].
func (l *Ledger) takeSlots(ctx context.Context, one *candidate, c *Claim) error {
	c.chooseSlots(one)
	rev := one.plan.after.Job.Rev
	for i := range one.slots {
		for slot := &one.slots[i]; slot.rev != rev; {
			op := l.putRun(slot.RunSlot, slot.etag, &one.outcome.Hint, rev)
			etags, err := l.store.Commit(ctx, tablestore.Batch{op})
			switch {
			case err == nil:
				slot.etag, slot.rev = etags[0], rev
			case errors.Is(err, tablestore.ErrConflict), errors.Is(err, tablestore.ErrNotFound):
				// It may be a row of this claim whose answer was lost: a row is never adopted.
				if err := c.another(one, i); err != nil {
					return err
				}
			default:
				return fmt.Errorf("take a run slot of limit %s: %w", slot.Limit, err)
			}
		}
	}
	one.nameSlots()
	return nil
}

// dropSlots deletes the rows of a candidate that was not committed and will not be. What it cannot
// delete, a later claim judges.
func (l *Ledger) dropSlots(ctx context.Context, slots []takenSlot) {
	for _, slot := range slots {
		if slot.etag != "" {
			_, _ = l.deleteVersion(ctx, l.runKey(slot.RunSlot), slot.etag)
		}
	}
}

// insertSlots adds the rows of the candidates' slots to the change that makes their claims, for an atomic
// store.
func (l *Ledger) insertSlots(open []*candidate, c *Claim, change tablestore.Change) tablestore.Change {
	var stage tablestore.Stage
	for _, one := range open {
		c.chooseSlots(one)
		for _, slot := range one.slots {
			stage = append(stage, tablestore.Batch{l.putRun(slot.RunSlot, "", &one.outcome.Hint, one.plan.after.Job.Rev)})
		}
		one.nameSlots()
	}
	if len(stage) > 0 {
		change.Pre = append([]tablestore.Stage{stage}, change.Pre...)
	}
	return change
}

// slotLost chooses another slot for the candidate whose row could not be inserted, and returns the
// candidates that are left. It reports false if the row is no slot.
func (l *Ledger) slotLost(open []*candidate, key tablestore.Key, c *Claim) ([]*candidate, bool) {
	for at, one := range open {
		i := slices.IndexFunc(one.slots, func(slot takenSlot) bool { return l.runKey(slot.RunSlot) == key })
		if i < 0 {
			continue
		}
		if c.another(one, i) != nil {
			*one.outcome = Claimed{Hint: one.outcome.Hint}
			open = slices.Delete(open, at, at+1)
		}
		return open, true
	}
	return open, false
}

// freed returns the slots that the change frees, because it ends the hold of the item that names them.
func (p *planner) freed() []statemachine.RunSlot {
	before := p.s.open
	if before == nil || len(before.Slots) == 0 || p.moves.Open != nil && len(p.moves.Open.Slots) > 0 {
		return nil
	}
	return before.Slots
}

// freeSlots plans the deletion of the rows of the slots that the change frees, as far as they still are
// the item's: each under its version, because another item may have the slot by then.
func (p *planner) freeSlots(ctx context.Context, out *plan) error {
	out.freed = p.freed()
	for _, slot := range out.freed {
		row, err := p.l.store.Get(ctx, p.l.runKey(slot))
		if errors.Is(err, tablestore.ErrNotFound) {
			continue
		}
		var taken RunRow
		if err == nil {
			err = runCodec.Decode(&row, &taken)
		}
		if err != nil {
			return fmt.Errorf("read a run slot of limit %s: %w", slot.Limit, err)
		}
		if taken.WorkID == p.s.open.WorkID && taken.AttemptNo == p.s.open.AttemptNo {
			out.free = append(out.free, tablestore.Batch{{Verb: tablestore.Delete, Key: row.Key, ETag: row.ETag}})
		}
	}
	return nil
}

// freeRuns deletes the rows of the slots that a committed change freed, unless its write has done so,
// and tells the limits. What it cannot delete, a later claim judges.
func (l *Ledger) freeRuns(ctx context.Context, out *plan) {
	if len(out.freed) == 0 {
		return
	}
	if l.atomic == nil && l.commitEach(tablestore.WithGuard(ctx, nil), out.free) != nil {
		return
	}
	l.cfg.Freed(out.freed)
}
