package workqueue

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Where a hint of a tenant's queue is, and what moves it:
//
//	in the store ──read──▶ hints ──pick──▶ picked ──settle───▶ forgotten
//	     ▲                  ▲  │              │ ╰────putBack──▶ hints
//	     ╰─────no room──────┤  │ paused       ╰─────setAside──▶ aside ──asideFor──▶ hints
//	                        │  ▼
//	                        │ parked ──the pause ends──▶ hints
//	                        ╰── Ready: this process queued an item

const (
	// asideFor is how long a hint is set aside after its item could not be claimed.
	asideFor = time.Second
	// damagedFor is how long it is if the item's rows cannot be read. It is much longer than the poll of a
	// claim: each time that a claim has waited, it looks past more of such items.
	damagedFor = time.Minute
)

// Mirror keeps the head of the ready index in memory, so that claims neither scan
// nor race each other within the process. It is a hint, as the index is: only the
// job's rows say whether an item can be claimed. No method blocks.
//
// Each partition of the index (a kind of work, a class and a shard) is a stream of queues,
// one for each tenant, from which claims pick in rotation. Hints that do not fit are
// read later, from the end of the tenant's queue.
type Mirror struct {
	mu      sync.Mutex // Guards all below, and all that it leads to: each method is one atomic step.
	sizes   sizes
	limit   int // bounds inside and kept
	inside  int // invariant: inside = Σ len(t.hints), over all queues t
	kept    int // invariant: kept = Σ len(t.aside) + Σ len(t.parked[target].hints)
	streams map[streamKey]*stream
	order   []*stream
	shares  map[ledger.WorkKind]*share // of the kinds that ever had bulk work
	// per is the number of picks of normal work after which bulk work that is ready gets one.
	per     int
	picks   int64 // the picks from bulk streams
	waiting []*waiter
	catalog time.Time     // when the catalog was last read
	pruned  time.Time     // when the queues of tenants without work were last dropped
	reader  chan struct{} // full while a claim reads the index
	// tell tells other processes that an item is ready; nil if the store cannot.
	tell func(*ledger.Hint)
	// onPick is told of each pick; nil if no caller wants to know.
	onPick func(ledger.WorkClass)
}

// NewMirror returns a mirror for at most limit hints, 10,000 if limit is 0, and a few more of each queue
// when it is full. Of the picks of a kind of work, bulk work gets one in [DefaultBulkShare] unless
// [Mirror.SetBulkShare] says otherwise.
func NewMirror(limit int) *Mirror {
	return &Mirror{
		sizes: sizes{head: 128, sweep: 4096, tail: 1024, low: 64},
		limit: cmp.Or(limit, 10_000), streams: map[streamKey]*stream{},
		shares: map[ledger.WorkKind]*share{}, per: DefaultBulkShare - 1,
		reader: make(chan struct{}, 1),
	}
}

// streamKey is a partition of the ready index.
type streamKey struct {
	kind  ledger.WorkKind
	class statemachine.Class
	shard int
}

// stream is the ready work of one partition of the index.
type stream struct {
	streamKey

	tenants  map[string]*tenantQueue
	rotation []*tenantQueue // those with hints inside or kept back, or with more in the store
	// swept is when the last complete sweep over the heads of all tenants began; a
	// sweep that spent its budget continues at resume.
	swept  time.Time
	resume string
	// told are the tenants for whom another process queued an item since their heads were
	// read.
	told map[string]struct{}
}

// tenantQueue is the ready work of one tenant in a stream.
type tenantQueue struct {
	tenant     string
	hints      []entry                         // ready to be picked, oldest first
	parked     map[statemachine.Target]*parked // held back by a pause
	aside      []entry                         // could not be claimed; in the order of their return
	away       map[string]place                // invariant: the rows that are picked, aside or parked
	inRotation bool
	picked     int64 // which pick from bulk streams was the last from this queue
	// invariant: !more ⇒ every hint of the tenant that this process knows is in hints or
	// away. If more, the hints at and after from are still in the store.
	more bool
	from string
	// skipped is the first row after from that was added while that part was read.
	skipped string
	// again is when the queue is to be read from its head again, because there was no room
	// for hints that were set aside; zero if it need not be.
	again time.Time
	// walk is the duration of the reads since hints were left in the store, and whole says
	// that they began at the head. walked is when the last such walk ended.
	walk     time.Duration
	whole    bool
	walked   time.Time
	headRead time.Time // when the head was last read for a claim that names the tenant
}

// entry is a hint with its row.
type entry struct {
	hint ledger.Hint
	row  string
	// Of a hint that was set aside: when it returns, and whether an error was the reason
	until  time.Time
	failed bool
}

// byRow compares an entry with a row.
func byRow(e entry, row string) int { return strings.Compare(e.row, row) }

// place says why a known hint is not ready to be picked.
type place uint8

const (
	placePicked place = iota + 1 // a claim is about to take it
	placeAside
	placeParked
)

// parked are the hints of one target that a pause holds back.
type parked struct {
	hints map[string]entry
	// dropped says that the store holds more of them, before the end of what was read.
	dropped bool
}

// stream returns the stream of that partition, a new one if there is none. The lock
// is held.
func (m *Mirror) stream(key streamKey) *stream {
	s := m.streams[key]
	if s == nil {
		key.kind = ledger.WorkKind{Service: strings.Clone(key.kind.Service), StepType: strings.Clone(key.kind.StepType)}
		s = &stream{streamKey: key, tenants: map[string]*tenantQueue{}, told: map[string]struct{}{}}
		m.streams[key] = s
		m.order = append(m.order, s)
		m.share(s)
	}
	return s
}

// tenant returns the tenant's queue, a new one if there is none. The lock is held.
func (s *stream) tenant(tenantID string) *tenantQueue {
	t := s.tenants[tenantID]
	if t == nil {
		tenantID = strings.Clone(tenantID)
		t = &tenantQueue{tenant: tenantID, parked: map[statemachine.Target]*parked{}, away: map[string]place{}}
		s.tenants[tenantID] = t
	}
	return t
}

// place returns the hint's stream and queue. The lock is held.
func (m *Mirror) place(hint *ledger.Hint) (*stream, *tenantQueue) {
	s := m.stream(streamKey{hint.Kind, hint.Class, hint.Shard})
	return s, s.tenant(hint.TenantID)
}

// Ready applies a notification of the ledger: after a commit of this process a queued item
// names the hint, or no longer does.
func (m *Mirror) Ready(hint ledger.Hint, queued bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, t := m.place(&hint)
	row := hint.Row()
	if queued {
		if woken := m.add(s, t, entry{hint: hint, row: row}); !woken && m.tell != nil {
			m.tell(&hint)
		}
		return
	}
	at := t.away[row]
	delete(t.away, row)
	switch at {
	case placePicked:
	case placeAside:
		t.aside = slices.DeleteFunc(t.aside, func(e entry) bool { return e.row == row })
		m.kept--
	case placeParked:
		p := t.parked[hint.Target]
		if delete(p.hints, row); len(p.hints) == 0 && !p.dropped {
			delete(t.parked, hint.Target)
		}
		m.kept--
	default:
		if i, inside := slices.BinarySearchFunc(t.hints, row, byRow); inside {
			t.hints = slices.Delete(t.hints, i, i+1)
			m.inside--
		}
	}
}

// add inserts a hint by its age, since hints of other processes are found later than they
// were written. If there is no room, the hint is left in the store. It reports whether it
// woke a claim. The lock is held.
func (m *Mirror) add(s *stream, t *tenantQueue, e entry) (woken bool) {
	if t.away[e.row] != 0 {
		return false
	}
	at, known := slices.BinarySearchFunc(t.hints, e.row, byRow)
	switch {
	case known:
		return false
	case t.more && e.row >= t.from:
		if t.skipped == "" || e.row < t.skipped {
			t.skipped = e.row
		}
	case m.inside >= m.limit && len(t.hints) >= m.room():
		t.leaveInStore(e.row)
	default:
		// The texts may be parts of a job's rows, which they would keep in memory.
		e.hint.Kind, e.hint.Service, e.hint.TenantID = s.kind, s.kind.Service, t.tenant
		e.hint.ProtocolID, e.hint.WorkID = strings.Clone(e.hint.ProtocolID), strings.Clone(e.hint.WorkID)
		t.hints = slices.Insert(t.hints, at, e)
		m.inside++
	}
	s.enter(t)
	return m.wake(&e.hint)
}

// room is how many hints each queue may have inside when the mirror is full, so that each tenant has
// some: a part of a page, the smaller the more queues there are. The lock is held.
func (m *Mirror) room() int {
	queues := 1
	for _, s := range m.order {
		queues += len(s.rotation)
	}
	return min(m.sizes.head, max(m.sizes.head/16, m.limit/queues, 1))
}

// hasWork reports whether there are hints inside or kept back, or more to be read.
func (t *tenantQueue) hasWork() bool {
	return len(t.hints)+len(t.aside)+len(t.parked) > 0 || t.more || !t.again.IsZero()
}

// enter appends the tenant to the rotation if it has work. The lock is held.
func (s *stream) enter(t *tenantQueue) {
	if t.hasWork() && !t.inRotation {
		t.inRotation = true
		s.rotation = append(s.rotation, t)
	}
}

// leaveInStore says that the hints at and after that row are to be read from the
// store. The lock is held.
func (t *tenantQueue) leaveInStore(row string) {
	if !t.more {
		t.walk, t.whole = 0, false
	}
	if !t.more || row < t.from {
		t.more, t.from = true, row
	}
}

// settle forgets a picked hint: its item was claimed, or the hint is void.
func (m *Mirror) settle(hint *ledger.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, t := m.place(hint)
	delete(t.away, hint.Row())
}

// putBack makes a picked hint ready again.
func (m *Mirror) putBack(hint *ledger.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, t := m.place(hint)
	e := entry{hint: *hint, row: hint.Row()}
	if t.away[e.row] == placePicked {
		delete(t.away, e.row)
		m.add(s, t, e)
	}
}

// setAside keeps a picked hint back for that time; without room it is left for a later read.
// failed says that an error was the reason, so that its item may be ready.
func (m *Mirror) setAside(hint *ledger.Hint, length time.Duration, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, t := m.place(hint)
	e := entry{hint: *hint, row: hint.Row(), until: time.Now().Add(length), failed: failed}
	if t.away[e.row] != placePicked {
		return
	}
	if m.kept < m.limit {
		t.away[e.row] = placeAside
		at, _ := slices.BinarySearchFunc(t.aside, e.until, func(o entry, until time.Time) int { return o.until.Compare(until) })
		t.aside = slices.Insert(t.aside, at, e)
		m.kept++
	} else {
		delete(t.away, e.row)
		if t.again.IsZero() || e.until.Before(t.again) {
			t.again = e.until
		}
	}
	s.enter(t)
}

// waiter is a claim that waits for work.
type waiter struct {
	claim  *claim
	mirror *Mirror
	// signal is one wake-up. Only the holder of the mirror's lock sends, and only while
	// there is none.
	signal chan struct{}
	// parked says that the claim only waits, and has not been woken: a woken claim must
	// take the work that it was woken for. reserved says that a change is about to claim an
	// item for it; then given is the outcome.
	//
	//	invariant: parked ⇒ ¬reserved ∧ given = nil ∧ no wake-up is pending
	//	invariant: reserved ⇒ signal is empty
	parked, reserved bool
	given            *ledger.Claimed
}

// wait registers a claim; leave removes it, and passes a wake-up that came too late on to
// the next claim.
func (m *Mirror) wait(c *claim) (w *waiter, leave func()) {
	w = &waiter{claim: c, mirror: m, signal: make(chan struct{}, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, w)
	return w, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting = slices.DeleteFunc(m.waiting, func(other *waiter) bool { return other == w })
		if len(w.signal) == 0 {
			return
		}
		for _, s := range m.order {
			for _, t := range s.rotation {
				if len(t.hints) > 0 && m.wake(&t.hints[0].hint) {
					return
				}
			}
		}
	}
}

// park lets a change claim an item for the waiting claim until unpark.
func (w *waiter) park() {
	w.mirror.mu.Lock()
	defer w.mirror.mu.Unlock()
	w.parked = len(w.signal) == 0
}

// unpark ends the park. If a change is about to claim an item, it waits for the outcome. It
// returns the item, or nil.
func (w *waiter) unpark() *ledger.Claimed {
	for {
		w.mirror.mu.Lock()
		if !w.reserved {
			defer w.mirror.mu.Unlock()
			w.parked = false
			given := w.given
			w.given = nil
			return given
		}
		w.mirror.mu.Unlock()
		<-w.signal
	}
}

// wake wakes the first waiting claim that may take the hint's item and has no wake-up
// pending. The lock is held.
func (m *Mirror) wake(hint *ledger.Hint) bool {
	return m.wakeFirst(func(c *claim) bool { return c.fits(hint) })
}

// wakeFirst wakes the first waiting claim that may, and has no wake-up pending. The lock is
// held.
func (m *Mirror) wakeFirst(may func(*claim) bool) bool {
	for _, w := range m.waiting {
		if !w.reserved && len(w.signal) == 0 && may(w.claim) {
			w.parked = false
			w.signal <- struct{}{}
			return true
		}
	}
	return false
}

// granted wakes claims for which the scope has tokens now: one for each token, all of them if
// the number is negative. A claim that something else holds back would use up the wake-up of
// another, and not the token.
func (m *Mirror) granted(scope admission.Scope, tokens int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.order {
		for _, t := range s.rotation {
			if len(t.hints) == 0 && !t.more || !scope.Covers(s.kind.Service, s.kind.StepType, t.tenant) {
				continue
			}
			for n := max(len(t.hints), 1); n > 0; n-- {
				if tokens == 0 {
					return
				}
				if !m.wakeFirst(func(c *claim) bool {
					return c.wants(s.kind) && c.admits(t.tenant) &&
						(tokens < 0 || c.q.limits.Leasable(s.kind.Service, s.kind.StepType, t.tenant))
				}) {
					break
				}
				tokens--
			}
		}
	}
}

// Taker returns the first waiting claim that may claim the hint's item, for the change that
// is about to queue the item, or nil if there is none. A claim waits only when there is no
// older item for it.
func (m *Mirror) Taker(hint *ledger.Hint) *ledger.Taker {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.waiting {
		if !w.parked || !w.claim.fits(hint) || hint.Class == statemachine.ClassBulk && m.normalFirst(w.claim) {
			continue
		}
		if w.claim.q.limits.Covers(hint.Kind.Service, hint.Kind.StepType, hint.TenantID) {
			return nil // Older hints wait for the same tokens.
		}
		w.parked, w.reserved = false, true
		asked := w.claim.asked()
		asked.Memory = w.claim.remember
		return &ledger.Taker{Claim: asked, Context: w.claim.ctx, Done: func(item *ledger.Claimed) {
			m.mu.Lock()
			defer m.mu.Unlock()
			w.reserved, w.given = false, item
			if item != nil {
				m.count(&item.Hint)
			}
			w.signal <- struct{}{}
		}}
	}
	return nil
}
