package workqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// How classes share the picks of a kind of work, over all its shards:
//
//	normal  first
//	bulk    one pick after each per picks of normal work that were made while bulk work was
//	        ready, so that old bulk work is never promoted and never starves; else only after
//	        the last hint of normal work, and not while a read of normal work is due
//
// The queues of bulk work take turns over all shards: next is the stream whose first queue was
// picked from the longest ago.
//
//	invariant: a bulk item that is p-th of its tenant, with b queues of bulk work, is picked within
//	(per + 1)·p·b picks of its kind by claims that may take it

// DefaultBulkShare is the share of bulk work in the picks of a kind: one in so many.
const DefaultBulkShare = 8

// share is the bulk work of a kind.
type share struct {
	streams []*stream
	// waited counts the picks of normal work since the last pick of bulk work, that were made
	// while bulk work was ready for the claim.
	waited int
}

// SetBulkShare gives bulk work one pick in that many, at least 2. It must be called before the mirror is
// used.
func (m *Mirror) SetBulkShare(one int) { m.per = one - 1 }

// OnPick makes the mirror call f for each directive that is picked for a claim, or handed to one. f must
// not block. It must be called before the mirror is used.
func (m *Mirror) OnPick(f func(ledger.WorkClass)) { m.onPick = f }

// count reports a pick.
func (m *Mirror) count(hint *ledger.Hint) {
	if m.onPick != nil {
		m.onPick(hint.WorkClass())
	}
}

// share adds a stream of bulk work to the share of its kind.
func (m *Mirror) share(s *stream) {
	if s.class == statemachine.ClassNormal {
		return
	}
	if m.shares[s.kind] == nil {
		m.shares[s.kind] = &share{}
	}
	m.shares[s.kind].streams = append(m.shares[s.kind].streams, s)
}

// bulkPicks are the picks of bulk work by one call. It must be ended. The lock is held.
type bulkPicks struct {
	m       *Mirror
	c       *claim
	at      time.Time
	places  int       // of the claim
	streams []*stream // those that may have a hint for the claim
	passed  map[*stream][]*tenantQueue
	share   *share
	ready   bool // of the share
}

// bulkPicks returns the picks from these streams. The lock is held.
func (m *Mirror) bulkPicks(c *claim, streams []*stream, at time.Time, places int) *bulkPicks {
	return &bulkPicks{m: m, c: c, at: at, places: places, streams: slices.Clone(streams), passed: map[*stream][]*tenantQueue{}}
}

// shareFor returns the picks of bulk work next to those of normal work of that kind. The lock is held.
func (m *Mirror) shareFor(c *claim, kind ledger.WorkKind, at time.Time, places int) *bulkPicks {
	of := m.shares[kind]
	if of == nil {
		return nil
	}
	b := m.bulkPicks(c, of.streams, at, places)
	b.share = of
	b.look()
	return b
}

// look finds out whether there is bulk work for the claim. What a pause, a limit or a closure holds
// back does not count.
func (b *bulkPicks) look() {
	b.ready = slices.ContainsFunc(b.streams, func(s *stream) bool {
		return slices.ContainsFunc(s.queues(b.c), func(t *tenantQueue) bool {
			if !b.c.admits(t.tenant) {
				return false
			}
			b.m.returnKept(t, b.c, b.at)
			return len(t.hints) > 0 && b.c.q.limits.Leasable(s.kind.Service, s.kind.StepType, t.tenant)
		})
	})
}

// passedOver counts a pick of normal work.
func (b *bulkPicks) passedOver() {
	if b != nil && b.ready {
		b.share.waited++
	}
}

// due takes the hint of bulk work that is next by its share.
func (b *bulkPicks) due() (hint ledger.Hint, ok bool) {
	if b == nil || !b.ready || b.share.waited < b.m.per {
		return hint, false
	}
	hint, ok = b.next()
	b.look()
	return hint, ok
}

// byTurn orders streams of bulk work by when their first tenant was picked last.
func byTurn(x, y *stream) int { return cmp.Compare(x.rotation[0].picked, y.rotation[0].picked) }

// next takes a hint out of the streams.
func (b *bulkPicks) next() (ledger.Hint, bool) {
	for {
		b.streams = slices.DeleteFunc(b.streams, func(s *stream) bool { return len(s.rotation) == 0 })
		if len(b.streams) == 0 {
			return ledger.Hint{}, false
		}
		s := slices.MinFunc(b.streams, byTurn)
		t := s.rotation[0]
		s.rotation, t.inRotation = s.rotation[1:], false
		hint, ok := b.m.pickOf(t, b.c, b.at, b.places)
		if !ok {
			b.passed[s] = append(b.passed[s], t)
			continue
		}
		b.m.picks++
		t.picked = b.m.picks
		s.enter(t)
		b.m.shares[s.kind].waited = 0
		return hint, true
	}
}

// end lets the tenants without a hint for the claim keep their places.
func (b *bulkPicks) end() {
	if b == nil {
		return
	}
	for s, passed := range b.passed {
		s.restore(passed)
	}
}

// pickBulk takes up to limit hints of bulk work out of the mirror. The lock is held.
func (m *Mirror) pickBulk(c *claim, limit int, at time.Time) (picked []ledger.Hint) {
	var streams []*stream
	for _, s := range m.order {
		if s.class == statemachine.ClassBulk && c.wants(s.kind) {
			streams = append(streams, s)
		}
	}
	b := m.bulkPicks(c, streams, at, limit)
	defer b.end()
	for len(picked) < limit {
		hint, ok := b.next()
		if !ok {
			break
		}
		picked = append(picked, hint)
	}
	return picked
}

// normalFirst reports whether bulk work is not to be handed to the claim, because there is normal work
// for it or a read of it is due. The lock is held.
func (m *Mirror) normalFirst(c *claim) bool {
	if m.due(c, c.q.stale(time.Now()), true, statemachine.ClassNormal) != nil {
		return true
	}
	return slices.ContainsFunc(m.order, func(s *stream) bool {
		return s.class == statemachine.ClassNormal && slices.ContainsFunc(s.queues(c), func(t *tenantQueue) bool {
			return len(t.hints) > 0 && c.fits(&t.hints[0].hint)
		})
	})
}
