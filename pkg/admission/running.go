package admission

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Runs are the rows of the attempts that limits let run at once: those of a [ledger.Ledger].
type Runs interface {
	// RunRows returns the taken run slots of a limit.
	RunRows(ctx context.Context, scope Scope) ([]ledger.RunRow, error)
	// JudgeRun compares a taken slot with its job. freed says that the slot is free now.
	JudgeRun(ctx context.Context, row *ledger.RunRow) (freed bool, err error)
}

// slots is this process's view of the run slots of a limit. It may be wrong in both directions: only
// the insert of a slot's row takes it.
type slots struct {
	rows  []ledger.RunRow // as they were last read
	taken map[int]bool    // those and mine, with the changes since
	mine  map[int]bool    // of claims of this process in progress
	// since are the changes that this process saw since the last read began: whether the slot is taken.
	since map[int]slotChange
	// looked says of each row since when this process has not judged it.
	looked map[int]look
	// missed is when a claim last found no free slot. judging says that rows are being judged.
	missed  time.Duration
	judging bool
}

// look is when a row was first seen, or last judged.
type look struct {
	workID string
	rev    int64
	at     time.Duration
}

type slotChange struct {
	taken bool
	at    time.Duration
}

// bound is the bound of the slots that may be taken. The taken ones beyond the limit count too.
func (s *slots) bound(most int) int {
	outside := 0
	for no := range s.taken {
		if no >= most {
			outside++
		}
	}
	return ledger.SlotBound(most, outside, func(no int) bool { return s.taken[no] })
}

// free returns a free slot. The search begins at a random one, so that processes seldom find the same.
func (s *slots) free(most int, random func() float64) (no int, ok bool) {
	if len(s.taken) >= most {
		return 0, false
	}
	bound := s.bound(most)
	first := int(random() * float64(bound))
	for i := range bound {
		if no = (first + i) % bound; !s.taken[no] {
			return no, true
		}
	}
	return 0, false
}

// full reports whether no slot is free.
func (s *slots) full(most int) bool {
	_, ok := s.free(most, func() float64 { return 0 })
	return !ok
}

// take reserves a slot for a claim.
func (s *slots) take(no int) {
	if s.taken == nil {
		s.taken, s.mine, s.since = map[int]bool{}, map[int]bool{}, map[int]slotChange{}
	}
	s.taken[no], s.mine[no] = true, true
}

// giveBack ends a reservation of which nothing is left.
func (s *slots) giveBack(no int) {
	delete(s.mine, no)
	delete(s.taken, no)
}

// keep ends the reservation of a slot that has a row, or may have one.
func (s *slots) keep(no int, now time.Duration) {
	if s.since != nil {
		delete(s.mine, no)
		s.since[no] = slotChange{taken: true, at: now}
	}
}

// leave notes that the row of a slot was deleted.
func (s *slots) leave(no int, now time.Duration) {
	if s.since != nil && !s.mine[no] {
		delete(s.taken, no)
		s.since[no] = slotChange{at: now}
	}
}

// adopt takes over the rows that were read from that time on. It returns how many slots have become
// free that this process knew as taken.
func (s *slots) adopt(rows []ledger.RunRow, began time.Duration) (freed int) {
	known, looked := s.taken, s.looked
	s.rows, s.taken, s.looked = rows, make(map[int]bool, len(rows)), make(map[int]look, len(rows))
	for i := range rows {
		no := rows[i].Slot.No
		s.taken[no] = true
		if s.looked[no] = looked[no]; looked[no].workID != rows[i].WorkID || looked[no].rev != rows[i].Rev {
			s.looked[no] = look{rows[i].WorkID, rows[i].Rev, began}
		}
	}
	if s.mine == nil {
		s.mine, s.since = map[int]bool{}, map[int]slotChange{}
	}
	for no, change := range s.since {
		switch {
		case change.at <= began:
			delete(s.since, no)
		case change.taken:
			s.taken[no] = true
		default:
			delete(s.taken, no)
		}
	}
	for no := range s.mine {
		s.taken[no] = true
	}
	for no := range known {
		if !s.taken[no] {
			freed++
		}
	}
	return freed
}

// run is a slot that a claim has reserved.
type run struct {
	limit *limit
	no    int
}

// full returns the narrowest of the scopes of which as many attempts run as its limit allows, and
// notes that a claim missed a slot of it. The lock is held.
func (g *Gate) full(scopes [4]Scope, now Reading) (by Scope, full bool) {
	for _, scope := range scopes {
		l := g.limits[scope]
		if l == nil || l.row.MaxRunning == 0 {
			continue
		}
		if _, ok := l.slots.free(l.row.MaxRunning, g.cfg.Random); !ok {
			l.slots.missed = now.Mono
			g.ask()
			return scope, true
		}
	}
	return Scope{}, false
}

// reserve reserves a slot of each of the scopes that limits what runs at once. None is full. The lock
// is held.
func (g *Gate) reserve(scopes [4]Scope) (runs []run) {
	for _, scope := range scopes {
		l := g.limits[scope]
		if l == nil || l.row.MaxRunning == 0 {
			continue
		}
		if no, ok := l.slots.free(l.row.MaxRunning, g.cfg.Random); ok {
			l.slots.take(no)
			runs = append(runs, run{l, no})
		}
	}
	return runs
}

// Slots returns the run slots that the start takes, one of each limit of what runs at once.
func (t *Token) Slots() []statemachine.RunSlot {
	if len(t.runs) == 0 {
		return nil
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	found := make([]statemachine.RunSlot, len(t.runs))
	for i, one := range t.runs {
		found[i] = statemachine.RunSlot{Limit: one.limit.row.ID(), No: one.no}
	}
	return found
}

// Another replaces a slot of the token that another claim has taken. ok is false if none is free.
func (t *Token) Another(taken statemachine.RunSlot) (another statemachine.RunSlot, ok bool) {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	now := t.gate.cfg.Clock()
	i := slices.IndexFunc(t.runs, func(one run) bool { return one.no == taken.No && one.limit.row.ID() == taken.Limit })
	if i < 0 {
		return taken, false
	}
	l := t.runs[i].limit
	l.slots.keep(taken.No, now.Mono)
	no, ok := l.slots.free(l.row.MaxRunning, t.gate.cfg.Random)
	if !ok {
		t.runs = slices.Delete(t.runs, i, i+1)
		l.slots.missed = now.Mono
		t.gate.ask()
		return taken, false
	}
	l.slots.take(no)
	t.runs[i].no = no
	return statemachine.RunSlot{Limit: taken.Limit, No: no}, true
}

// Freed tells the gate of run slots whose attempts have ended, so that a waiting claim takes them.
func (g *Gate) Freed(freed []statemachine.RunSlot) {
	if g == nil {
		return
	}
	for _, slot := range freed {
		scope, err := statemachine.ParseStartScope(slot.Limit)
		if err != nil {
			continue
		}
		g.mu.Lock()
		l, wake := g.limits[scope], g.wake
		if l != nil {
			l.slots.leave(slot.No, g.cfg.Clock().Mono)
		}
		g.mu.Unlock()
		if l != nil {
			wake(scope, 1)
		}
	}
}

// Running returns how many attempts run under the limit, by this process's view.
func (g *Gate) Running(scope Scope) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.limits[scope]; l != nil {
		return len(l.slots.taken)
	}
	return 0
}

const (
	// judgeMissed is how often a taken slot is judged while claims find no free one, and judgeAll how
	// often otherwise, so that what a crash left does not look as if it ran.
	judgeMissed = 10 * time.Second
	judgeAll    = time.Minute
	// maxJudged bounds how many slots are judged at once: those not judged for longest, so that each has
	// its turn, and the oldest of them.
	maxJudged = 100
)

// startJudging begins to judge the slots of the limit that are due, and returns when to look again. The
// lock is held.
func (g *Gate) startJudging(ctx context.Context, running *sync.WaitGroup, scope Scope, l *limit, now time.Duration) time.Duration {
	s, every := &l.slots, judgeAll
	if s.missed > 0 && now-s.missed < 2*time.Second { // Each waiting claim asks about once a second.
		every = judgeMissed
	}
	if g.cfg.Runs == nil || s.judging {
		return judgeAll
	}
	var due []ledger.RunRow
	for i := range s.rows {
		if now-s.looked[s.rows[i].Slot.No].at >= every {
			due = append(due, s.rows[i])
		}
	}
	if len(due) == 0 {
		return time.Second
	}
	slices.SortFunc(due, func(a, b ledger.RunRow) int {
		return cmp.Or(cmp.Compare(s.looked[a.Slot.No].at, s.looked[b.Slot.No].at), a.At.Compare(b.At))
	})
	due = due[:min(len(due), maxJudged)]
	for i := range due {
		no := due[i].Slot.No
		s.looked[no] = look{due[i].WorkID, due[i].Rev, now}
	}
	s.judging = true
	running.Go(func() {
		g.judge(ctx, scope, l, due)
		g.mu.Lock()
		defer g.mu.Unlock()
		s.judging = false
	})
	return time.Second
}

// judge compares taken slots with their jobs.
func (g *Gate) judge(ctx context.Context, scope Scope, l *limit, rows []ledger.RunRow) {
	for i := range rows {
		freed, err := g.cfg.Runs.JudgeRun(ctx, &rows[i])
		if err != nil {
			g.cfg.Logger.WarnContext(ctx, "run slot not judged", "limit_id", scope.ID(), "slot", rows[i].Slot.No, "error", err)
			if ctx.Err() != nil {
				return
			}
		}
		if !freed {
			continue
		}
		g.mu.Lock()
		g.observe(l, Reclaimed, 1)
		l.slots.leave(rows[i].Slot.No, g.cfg.Clock().Mono)
		wake := g.wake
		g.mu.Unlock()
		wake(scope, 1)
	}
}

// maxRunReads bounds the reads of run slots in flight.
const maxRunReads = 16

// RefreshRuns reads the taken run slots, those of each limit by themselves: after an error the view of that
// limit is unchanged. It is to be called every second, but by another loop than [Gate.Refresh]: with many
// limits it takes long, and the view of pauses, limits and closures must not age until it has ended.
func (g *Gate) RefreshRuns(ctx context.Context) error {
	if g.cfg.Runs == nil {
		return nil
	}
	g.mu.Lock()
	limits := maps.Clone(g.limits)
	maps.DeleteFunc(limits, func(_ Scope, l *limit) bool { return l.row.MaxRunning == 0 })
	g.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(maxRunReads)
	for scope, l := range limits {
		group.Go(func() error { return g.readRuns(ctx, scope, l) })
	}
	return group.Wait()
}

// readRuns reads the taken slots of a limit.
func (g *Gate) readRuns(ctx context.Context, scope Scope, l *limit) error {
	began := g.cfg.Clock().Mono
	rows, err := g.cfg.Runs.RunRows(ctx, scope)
	if err != nil {
		return err
	}
	g.mu.Lock()
	if g.limits[scope] != l || l.row.MaxRunning == 0 {
		g.mu.Unlock()
		return nil
	}
	freed, wake := l.slots.adopt(rows, began), g.wake
	g.mu.Unlock()
	if freed > 0 {
		wake(scope, freed)
	}
	return nil
}
