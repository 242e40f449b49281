package workqueue

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Mirror keeps the head of the ready index in memory, so that claims neither scan
// nor race each other within the process. It is a hint, as the index is: only the
// job's rows say whether an item can be had. No method blocks.
//
// Each partition of the index (a kind of work and a shard) is a stream of queues,
// one for each tenant, from which claims pick in turns. What does not fit is read
// later, from where the tenant's queue ends.
type Mirror struct {
	mu      sync.Mutex
	sizes   sizes
	limit   int // the most hints ready to be picked, and the most kept back
	inside  int // hints ready to be picked
	kept    int // hints kept back: parked and aside
	streams map[streamKey]*stream
	order   []*stream
	waiting []*waiter
	counts  map[ledger.WorkKind]int
	catalog time.Time     // when the catalog was last read
	pruned  time.Time     // when the queues of tenants without work were last dropped
	turn    chan struct{} // held by the one claim that reads the index
}

// NewMirror returns a mirror for that many hints, 10,000 if limit is 0.
func NewMirror(limit int) *Mirror {
	return &Mirror{
		sizes: sizes{head: 128, sweep: 4096, tail: 1024, low: 64},
		limit: cmp.Or(limit, 10_000), streams: map[streamKey]*stream{}, counts: map[ledger.WorkKind]int{},
		turn: make(chan struct{}, 1),
	}
}

// streamKey is a partition of the ready index.
type streamKey struct {
	kind  ledger.WorkKind
	shard int
}

// stream is one partition of the ready index.
type stream struct {
	streamKey

	tenants map[string]*tenantQueue
	turn    []*tenantQueue // those with hints inside or kept back, or with more in the store
	// swept is when the last whole sweep over the heads of all tenants began; a sweep
	// that ran out of its budget goes on at resume.
	swept  time.Time
	resume string
}

// tenantQueue is the ready work of one tenant in a stream.
type tenantQueue struct {
	tenant string
	hints  []entry           // ready to be picked, oldest first
	parked map[scope]*parked // held back by a pause
	aside  []entry           // could not be handed out; in the order of their return
	// away says of each row that is known and not in hints where it is.
	away   map[string]place
	inTurn bool
	// invariant: !more ⇒ every hint of the tenant that this process knows of is in
	// hints, or away. Else those at and after from are still in the store.
	more bool
	from string
	// skipped is the first hint that came after from while that was being read.
	skipped string
	// again is when the queue is to be read from its head again, because hints that
	// stepped aside had no room; zero if it is not.
	again time.Time
	// walk is how long the reads took since the queue was left, and whole says that
	// they began at its head. walked is when such a walk came to the end.
	walk     time.Duration
	whole    bool
	walked   time.Time
	headRead time.Time // when the head was last read for a filter that names the tenant
}

// entry is a hint with its row.
type entry struct {
	hint ledger.Hint
	row  string
	// Of one that stepped aside: when it returns, and whether that was because of an
	// error.
	until  time.Time
	failed bool
}

// byRow compares an entry with a row.
func byRow(e entry, row string) int { return strings.Compare(e.row, row) }

// place is where a known hint is that is not ready to be picked.
type place uint8

const (
	placePicked place = iota + 1 // a claim is about to take it
	placeAside
	placeParked
)

// scope is what tells the hints of one queue apart for a pause.
type scope struct {
	protocolID string
	lane       int
}

func scopeOf(hint *ledger.Hint) scope { return scope{hint.ProtocolID, hint.Lane} }

// parked are the hints of one scope that a pause holds back.
type parked struct {
	hints  map[string]entry
	sample ledger.Hint
	// dropped says that there are more in the store, before the end of what was read.
	dropped bool
}

// Ready takes over what the ledger tells: a commit of this process made a queued
// item name the hint, or ended that.
func (m *Mirror) Ready(hint ledger.Hint, queued bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, e := m.tenant(&hint), entry{hint: hint, row: hint.Row()}
	if queued {
		m.counts[hint.Kind]++
		m.add(t, e)
		return
	}
	m.counts[hint.Kind]--
	m.forget(t, e)
}

// forget drops a hint, wherever it is. The lock is held.
func (m *Mirror) forget(t *tenantQueue, e entry) {
	at := t.away[e.row]
	delete(t.away, e.row)
	switch at {
	case placePicked:
	case placeAside:
		t.aside = slices.DeleteFunc(t.aside, func(other entry) bool { return other.row == e.row })
		m.kept--
	case placeParked:
		p := t.parked[scopeOf(&e.hint)]
		if delete(p.hints, e.row); len(p.hints) == 0 && !p.dropped {
			delete(t.parked, scopeOf(&e.hint))
		}
		m.kept--
	default:
		if i, inside := slices.BinarySearchFunc(t.hints, e.row, byRow); inside {
			t.hints = slices.Delete(t.hints, i, i+1)
			m.inside--
		}
	}
}

// Counts are the ready items by kind, as far as the commits of this process and
// what was counted at its start tell: exact if no other process shares the store.
func (m *Mirror) Counts() map[ledger.WorkKind]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[ledger.WorkKind]int, len(m.counts))
	for kind, n := range m.counts {
		counts[kind] = max(n, 0)
	}
	return counts
}

// count adds what was found in the store when the process began.
func (m *Mirror) count(kind ledger.WorkKind, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[kind] += n
}

// stream returns the stream of that partition, a new one if there is none. The
// lock is held.
func (m *Mirror) stream(key streamKey) *stream {
	s := m.streams[key]
	if s == nil {
		s = &stream{streamKey: key, tenants: map[string]*tenantQueue{}}
		m.streams[key] = s
		m.order = append(m.order, s)
	}
	return s
}

// tenant returns the queue in which the hint belongs. The lock is held.
func (m *Mirror) tenant(hint *ledger.Hint) *tenantQueue {
	return m.stream(streamKey{hint.Kind, hint.Shard}).tenant(hint.TenantID)
}

func (s *stream) tenant(tenantID string) *tenantQueue {
	t := s.tenants[tenantID]
	if t == nil {
		t = &tenantQueue{tenant: tenantID, parked: map[scope]*parked{}, away: map[string]place{}}
		s.tenants[tenantID] = t
	}
	return t
}

// idle reports whether there is nothing in the queue, and nothing to be read.
func (t *tenantQueue) idle() bool {
	return len(t.hints)+len(t.away)+len(t.parked) == 0 && !t.more && t.again.IsZero()
}

// enter gives the tenant its turn. The lock is held.
func (s *stream) enter(t *tenantQueue) {
	waits := len(t.hints)+len(t.aside)+len(t.parked) > 0 || t.more || !t.again.IsZero()
	if waits && !t.inTurn {
		t.inTurn = true
		s.turn = append(s.turn, t)
	}
}

// add puts a hint in its place by its age: those of another process are found
// later than they were written. One that has no room is left for a read. The lock
// is held.
func (m *Mirror) add(t *tenantQueue, e entry) {
	if t.away[e.row] != 0 {
		return
	}
	at, known := slices.BinarySearchFunc(t.hints, e.row, byRow)
	switch {
	case known:
		return
	case t.more && e.row >= t.from:
		if t.skipped == "" || e.row < t.skipped {
			t.skipped = e.row
		}
	case m.inside >= m.limit && len(t.hints) >= m.sizes.head: // Each tenant may have its first page.
		t.leave(e.row)
	default:
		t.hints = slices.Insert(t.hints, at, e)
		m.inside++
	}
	m.streams[streamKey{e.hint.Kind, e.hint.Shard}].enter(t)
	for _, w := range m.waiting {
		if w.fits(&e.hint) && w.wake() {
			break
		}
	}
}

// leave says that what is at and after that row is to be read from the store.
func (t *tenantQueue) leave(row string) {
	if !t.more {
		t.walk, t.whole = 0, false
	}
	if !t.more || row < t.from {
		t.more, t.from = true, row
	}
}

// waiter is a claim that waits for work.
type waiter struct {
	fits   func(*ledger.Hint) bool
	signal chan struct{}
}

// wake tells the waiter, unless it was told before.
func (w *waiter) wake() bool {
	select {
	case w.signal <- struct{}{}:
		return true
	default:
		return false
	}
}

// wait registers a claim; leave ends that, and hands a wake-up that came too
// late for it to the next.
func (m *Mirror) wait(fits func(*ledger.Hint) bool) (signal <-chan struct{}, leave func()) {
	w := &waiter{fits: fits, signal: make(chan struct{}, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, w)
	return w.signal, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting = slices.DeleteFunc(m.waiting, func(other *waiter) bool { return other == w })
		if len(w.signal) > 0 {
			m.wakeNext()
		}
	}
}

// wakeNext wakes the first waiting claim for which there is work. The lock is held.
func (m *Mirror) wakeNext() {
	for _, w := range m.waiting {
		for _, s := range m.order {
			for _, t := range s.turn {
				if len(t.hints) > 0 && w.fits(&t.hints[0].hint) && w.wake() {
					return
				}
			}
		}
	}
}
