package workqueue

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The order in which claims pick:
//
//	streams  m.order     A B C   ── a claim that picks something ──▶  B C A
//	tenants  s.rotation  x y z   ── the oldest hint of x ──────────▶  y z x
//	hints    t.hints     oldest first; those that a pause holds are parked on the way
//
// A tenant without a hint for the claim keeps its place, and so does one whose hints a limit
// holds back: a limit covers all hints of a queue, so none is parked. Streams of bulk work come
// last, but for their share, and take turns by another rule: see class.go.

// pick takes up to limit hints out of the mirror, streams and their tenants in rotation, oldest first
// within one tenant. The claim must settle each, put it back, or set it aside. Hints that were set
// aside return if their time ended by at. Bulk work beyond its share is not picked while normal work
// is to be read, because it was last read before stale.
func (m *Mirror) pick(c *claim, limit int, at, stale time.Time) []ledger.Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	picked := m.pickNormal(c, limit, at)
	if len(picked) < limit && len(m.shares) > 0 && m.due(c, stale, true, statemachine.ClassNormal) == nil {
		picked = append(picked, m.pickBulk(c, limit-len(picked), at)...)
	}
	for i := range picked {
		m.count(&picked[i])
	}
	return picked
}

// pickNormal picks normal work, and the share of bulk work next to it. The lock is held.
func (m *Mirror) pickNormal(c *claim, limit int, at time.Time) []ledger.Hint {
	var picked []ledger.Hint
	c.missed = nil
	for _, s := range m.order {
		if !c.wants(s.kind) || s.class != statemachine.ClassNormal {
			continue
		}
		bulk := m.shareFor(c, s.kind, at, limit)
		queues := s.queues(c)
		few := len(queues) < len(s.rotation)
		// Tenants of which the claim takes none, and those whose hints are all in the
		// store or kept back, keep their place in the rotation.
		for passed := 0; len(picked) < limit && len(queues) > 0 && passed < len(s.rotation); {
			if hint, ok := bulk.due(); ok {
				picked = append(picked, hint)
				continue
			}
			t := s.rotation[passed]
			if few && !slices.Contains(queues, t) {
				passed++
				continue
			}
			if hint, ok := m.pickOf(t, c, at, limit-len(picked)); ok {
				picked = append(picked, hint)
				bulk.passedOver()
			} else if t.hasWork() {
				passed++
				continue
			}
			copy(s.rotation[1:], s.rotation[:passed]) // Over t.
			s.rotation, t.inRotation = s.rotation[1:], false
			s.enter(t)
		}
		bulk.end()
	}
	if len(picked) > 0 && len(m.order) > 1 { // The next claim begins with another stream.
		isNormal := func(s *stream) bool { return s.class == statemachine.ClassNormal }
		next := 1 + max(slices.IndexFunc(m.order, isNormal), 0)
		m.order = append(m.order[next:], m.order[:next]...)
	}
	return picked
}

// queues returns the queues from which the claim may pick: all in the rotation, unless it names few
// tenants. Of many tenants, most polls find none of theirs here. The lock is held.
func (s *stream) queues(c *claim) []*tenantQueue {
	named := c.Tenants
	if len(named) == 0 {
		named = c.q.caller.Tenants
	}
	if len(named) == 0 || len(named) > maxNamed {
		return s.rotation
	}
	var of []*tenantQueue
	for _, name := range named {
		if t := s.tenants[name]; t != nil && t.inRotation {
			of = append(of, t)
		}
	}
	return of
}

// restore puts the queues back to the head of the rotation.
func (s *stream) restore(passed []*tenantQueue) {
	if len(passed) == 0 {
		return
	}
	rest := s.rotation
	s.rotation = nil
	for _, t := range passed {
		s.enter(t)
	}
	s.rotation = append(s.rotation, rest...)
}

// pickOf takes the first hint of the queue that is not held back, and parks those
// before it. The claim has so many places. The lock is held.
func (m *Mirror) pickOf(t *tenantQueue, c *claim, at time.Time, places int) (ledger.Hint, bool) {
	if !c.admits(t.tenant) {
		return ledger.Hint{}, false
	}
	m.returnKept(t, c, at)
	for len(t.hints) > 0 {
		e := t.hints[0]
		held := c.q.held(e.hint.Target)
		if !held && !c.takeToken(&e.hint, places, func(of admission.Scope) int { return m.ready(c, of) }) {
			break
		}
		t.hints = t.hints[1:]
		m.inside--
		if !held {
			t.away[e.row] = placePicked
			return e.hint, true
		}
		p := t.parked[e.hint.Target]
		if p == nil {
			p = &parked{hints: map[string]entry{}}
			t.parked[e.hint.Target] = p
		}
		if m.kept >= m.limit {
			p.dropped = true
			continue
		}
		p.hints[e.row] = e
		t.away[e.row] = placeParked
		m.kept++
	}
	return ledger.Hint{}, false
}

// lacks reports whether tokens are being leased for the queues that come first in a pick of so many hints. It
// asks for them.
func (m *Mirror) lacks(c *claim, places int) (lacks bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.order {
		if places <= 0 {
			break
		}
		if !c.wants(s.kind) || s.class != statemachine.ClassNormal {
			continue
		}
		if of := m.shares[s.kind]; of != nil && of.waited >= m.per {
			for _, bulk := range of.streams {
				_, leasing := m.lacksOf(bulk, c, 1)
				lacks = lacks || leasing
			}
		}
		ready, leasing := m.lacksOf(s, c, places)
		places, lacks = places-ready, lacks || leasing
	}
	var bulk []*stream // for the places that normal work leaves
	for _, s := range m.order {
		if s.class == statemachine.ClassBulk && c.wants(s.kind) && len(s.rotation) > 0 {
			bulk = append(bulk, s)
		}
	}
	slices.SortStableFunc(bulk, byTurn)
	for i := 0; i < len(bulk) && places > 0; i++ {
		ready, leasing := m.lacksOf(bulk[i], c, places)
		places, lacks = places-ready, lacks || leasing
	}
	return lacks
}

// lacksOf is lacks for the first places queues of a stream from which a hint may be picked. It returns how
// many hints these have. The lock is held.
func (m *Mirror) lacksOf(s *stream, c *claim, places int) (ready int, lacks bool) {
	queues, named := 0, s.queues(c)
	few := len(named) < len(s.rotation)
	for _, t := range s.rotation { // In their turn, as the pick.
		if queues == places || len(named) == 0 {
			break
		}
		if few && !slices.Contains(named, t) || len(t.hints) == 0 || !c.admits(t.tenant) || c.q.held(t.hints[0].hint.Target) {
			continue
		}
		of, tokens, ok := c.q.limits.Lacks(s.kind.Service, s.kind.StepType, t.tenant)
		if !ok {
			continue
		}
		queues, ready = queues+1, ready+len(t.hints)
		if !tokens {
			continue
		}
		if c.lacked[of] < places {
			most := m.ready(c, of)
			if n := min(places, most); n > c.lacked[of] {
				c.lacked[of] = n
				c.q.limits.Ask(of, n, most)
			}
		}
		lacks = lacks || c.q.limits.Leasing(of)
	}
	return ready, lacks
}

// ready returns how many hints of the scope there are for the claim, the most if there are more in
// the store. The lock is held.
func (m *Mirror) ready(c *claim, of admission.Scope) (ready int) {
	for _, s := range m.order {
		if !c.wants(s.kind) {
			continue
		}
		for _, t := range s.tenants { // Those that were passed over are not in the rotation.
			switch {
			case !of.Covers(s.kind.Service, s.kind.StepType, t.tenant) || !c.admits(t.tenant):
			case t.more:
				return math.MaxInt
			default:
				ready += len(t.hints)
			}
		}
	}
	return ready
}

// returnKept makes hints ready again whose pause or set aside for a time that has ended,
// and begins the next walk over the queue if it is due. The lock is held.
func (m *Mirror) returnKept(t *tenantQueue, c *claim, at time.Time) {
	var back []entry
	reread := false
	for target, p := range t.parked {
		if c.q.held(target) {
			continue
		}
		delete(t.parked, target)
		for _, e := range p.hints {
			back = append(back, e)
		}
		reread = reread || p.dropped
	}
	for len(t.aside) > 0 && !t.aside[0].until.After(at) {
		back = append(back, t.aside[0])
		t.aside = t.aside[1:]
	}
	if !t.again.IsZero() && !t.again.After(at) {
		t.again, reread = time.Time{}, true
	}
	if reread {
		t.leaveInStore(tenantPrefix(t.tenant))
		t.whole = true
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

// byClass orders streams of normal work before those of bulk work.
func byClass(x, y *stream) int { return strings.Compare(string(x.class), string(y.class)) }

// pickFailed takes hints whose items could not be claimed a moment ago, for a claim
// that finds no others.
func (m *Mirror) pickFailed(c *claim, limit int) []ledger.Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	var picked []ledger.Hint
	one := func(admission.Scope) int { return 1 } // Each hint asks by itself.
	for _, s := range slices.SortedStableFunc(slices.Values(m.order), byClass) {
		for _, t := range s.queues(c) {
			if !c.wants(s.kind) || !c.admits(t.tenant) {
				continue
			}
			t.aside = slices.DeleteFunc(t.aside, func(e entry) bool {
				if !e.failed || len(picked) == limit || c.q.held(e.hint.Target) || !c.takeToken(&e.hint, 1, one) {
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
