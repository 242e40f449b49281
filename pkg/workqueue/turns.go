package workqueue

import (
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// asideFor is how long a hint steps aside that could not be handed out.
const asideFor = time.Second

// pick takes up to limit hints out, in turns over streams and tenants, oldest
// first within one. Each is to be settled, put back, or put aside. Hints that stepped
// aside return if their time was over at the given time.
func (m *Mirror) pick(filter *Filter, limit int, at time.Time) []ledger.Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	var picked []ledger.Hint
	for i := 0; i < len(m.order) && len(picked) < limit; i++ {
		if s := m.order[i]; filter.matches(s.kind) {
			picked = m.take(s, picked, limit, filter, at)
		}
	}
	if len(picked) > 0 && len(m.order) > 1 { // The next claim begins with another stream.
		m.order = append(m.order[1:], m.order[0])
	}
	return picked
}

// take takes one hint of each tenant in turn. Tenants that the filter leaves out,
// and those whose hints are all in the store or kept back, keep their turn. The lock
// is held.
func (m *Mirror) take(s *stream, picked []ledger.Hint, limit int, filter *Filter, at time.Time) []ledger.Hint {
	var passed []*tenantQueue
	for len(picked) < limit && len(s.turn) > 0 {
		t := s.turn[0]
		s.turn, t.inTurn = s.turn[1:], false
		if !filter.admits(t.tenant) {
			passed = append(passed, t)
			continue
		}
		m.comeBack(t, filter, at)
		hint, ok := m.first(t, filter)
		if !ok {
			passed = append(passed, t)
			continue
		}
		picked = append(picked, hint)
		s.enter(t)
	}
	later := s.turn
	s.turn = nil
	for _, t := range passed {
		s.enter(t)
	}
	s.turn = append(s.turn, later...)
	return picked
}

// first takes the first hint of the queue that is not held back; those that are
// held are parked. The lock is held.
func (m *Mirror) first(t *tenantQueue, filter *Filter) (ledger.Hint, bool) {
	for len(t.hints) > 0 {
		e := t.hints[0]
		t.hints = t.hints[1:]
		m.inside--
		if filter.held(&e.hint) {
			m.park(t, e)
			continue
		}
		t.away[e.row] = placePicked
		return e.hint, true
	}
	return ledger.Hint{}, false
}

// park keeps a hint back until its scope is held no longer. The lock is held.
func (m *Mirror) park(t *tenantQueue, e entry) {
	p := t.parked[scopeOf(&e.hint)]
	if p == nil {
		p = &parked{hints: map[string]entry{}, sample: e.hint}
		t.parked[scopeOf(&e.hint)] = p
	}
	if m.kept >= m.limit {
		p.dropped = true
		return
	}
	p.hints[e.row] = e
	t.away[e.row] = placeParked
	m.kept++
}

// comeBack returns hints to the queue whose pause or whose time aside is over, and
// begins the next walk over the queue if it is due. The lock is held.
func (m *Mirror) comeBack(t *tenantQueue, filter *Filter, at time.Time) {
	var back []entry
	for of, p := range t.parked {
		if filter.held(&p.sample) {
			continue
		}
		delete(t.parked, of)
		for _, e := range p.hints {
			back = append(back, e)
		}
		if p.dropped {
			t.startOver()
		}
	}
	for len(t.aside) > 0 && !t.aside[0].until.After(at) {
		back = append(back, t.aside[0])
		t.aside = t.aside[1:]
	}
	if !t.again.IsZero() && !t.again.After(at) {
		t.again = time.Time{}
		t.startOver()
	}
	if len(back) == 0 {
		return
	}
	m.kept -= len(back)
	m.inside += len(back)
	for _, e := range back {
		delete(t.away, e.row)
	}
	t.hints = append(back, t.hints...)
	slices.SortFunc(t.hints, func(a, b entry) int { return strings.Compare(a.row, b.row) })
}

// pickFailed takes hints out that could not be handed out a moment ago: for a claim
// for which there is nothing else.
func (m *Mirror) pickFailed(filter *Filter, limit int) []ledger.Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	var picked []ledger.Hint
	for _, s := range m.order {
		for _, t := range s.turn {
			if !filter.matches(s.kind) || !filter.admits(t.tenant) {
				continue
			}
			t.aside = slices.DeleteFunc(t.aside, func(e entry) bool {
				if !e.failed || len(picked) == limit || filter.held(&e.hint) {
					return false
				}
				picked = append(picked, e.hint)
				t.away[e.row] = placePicked
				m.kept--
				return true
			})
		}
	}
	return picked
}

// startOver has the queue read from its head again.
func (t *tenantQueue) startOver() {
	t.leave(tenantPrefix(t.tenant))
	t.whole = true
}

// settle forgets a picked hint: its item was claimed, or the hint is void.
func (m *Mirror) settle(hint *ledger.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tenant(hint).away, hint.Row())
}

// putBack returns a picked hint to its place.
func (m *Mirror) putBack(hint *ledger.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, e := m.tenant(hint), entry{hint: *hint, row: hint.Row()}
	if t.away[e.row] == placePicked {
		delete(t.away, e.row)
		m.add(t, e)
	}
}

// stepAside keeps a picked hint back for a while; without room it is left for a later
// read. failed says that its item may be there to be had.
func (m *Mirror) stepAside(hint *ledger.Hint, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, e := m.tenant(hint), entry{hint: *hint, row: hint.Row(), until: time.Now().Add(asideFor), failed: failed}
	if t.away[e.row] != placePicked {
		return
	}
	switch {
	case m.kept >= m.limit:
		delete(t.away, e.row)
		if t.again.IsZero() { // Else the next walk is due before that.
			t.again = e.until
		}
	default:
		t.away[e.row] = placeAside
		t.aside = append(t.aside, e)
		m.kept++
	}
	m.streams[streamKey{hint.Kind, hint.Shard}].enter(t)
}
