package httpapi

import (
	"slices"
	"sync"
)

// fairLimiter bounds what requests hold for long, such as a stream or the bytes of an
// answer that is not read yet, and shares it fairly among callers: when all is taken, a
// new request preempts the oldest request of the caller with the most, unless that would
// only swap the two callers. So a caller may take all that no other caller wants, and no
// more. It is safe for concurrent use.
type fairLimiter struct {
	limit int64
	// evicts lets a request preempt the oldest of its own caller too, or else the oldest
	// of the largest holder, rather than be refused.
	evicts bool

	mu      sync.Mutex
	taken   int64 // invariant: taken = Σ holders[c].taken ≤ limit, or only one slot is held
	ended   bool
	holders map[string]*holder // No entry is empty.
}

// holder is a caller that holds slots.
type holder struct {
	taken int64   // invariant: taken = Σ slots[i].weight
	slots []*slot // The oldest first.
}

// slot belongs to one request, which releases it soon after ended is closed.
type slot struct {
	limiter  *fairLimiter
	caller   string
	weight   int64
	cut      func()        // Called once the slot is preempted, without the lock; nil for none.
	ended    chan struct{} // Closed when the slot is preempted, or the limiter ends.
	released chan struct{} // Closed when the holder has released it.
}

// newFairLimiter returns a limiter of that much.
func newFairLimiter(limit int64) *fairLimiter {
	return &fairLimiter{limit: limit, holders: map[string]*holder{}}
}

// acquire returns a slot of that weight for a request of the caller, or nil if the
// caller has its share. cut, unless it is nil, ends the request when it is preempted.
// acquire waits until preempted requests have released their slots: there is never more
// held than the limit, but for a single slot that is larger.
func (l *fairLimiter) acquire(caller string, weight int64, cut func()) *slot {
	l.mu.Lock()
	var preempted []*slot
	for l.taken > 0 && l.taken+weight > l.limit {
		oldest := l.victim(caller, weight)
		if oldest == nil {
			for _, s := range slices.Backward(preempted) {
				l.insert(s, 0)
			}
			l.mu.Unlock()
			return nil
		}
		l.remove(oldest)
		preempted = append(preempted, oldest)
	}
	acquired := &slot{
		limiter: l, caller: caller, weight: weight, cut: cut, ended: make(chan struct{}), released: make(chan struct{}),
	}
	if l.ended {
		close(acquired.ended)
	} else {
		for _, s := range preempted {
			close(s.ended)
		}
	}
	at := 0
	if h := l.holders[caller]; h != nil {
		at = len(h.slots)
	}
	l.insert(acquired, at)
	l.mu.Unlock()
	for _, s := range preempted {
		if s.cut != nil {
			s.cut()
		}
	}
	for _, s := range preempted {
		<-s.released
	}
	return acquired
}

// victim returns the oldest slot of the caller that holds the most, or nil if with the
// new slot the other caller would hold at least as much. The lock is held.
func (l *fairLimiter) victim(caller string, weight int64) *slot {
	most, largest := weight, (*holder)(nil)
	if own := l.holders[caller]; own != nil {
		most += own.taken
		if l.evicts {
			largest = own
		}
	}
	for _, h := range l.holders {
		if h.taken > most || l.evicts && largest == nil {
			largest, most = h, max(most, h.taken)
		}
	}
	if largest == nil {
		return nil
	}
	return largest.slots[0]
}

// insert counts a slot, as the caller's i-th oldest. The lock is held.
func (l *fairLimiter) insert(s *slot, i int) {
	h := l.holders[s.caller]
	if h == nil {
		h = &holder{}
		l.holders[s.caller] = h
	}
	h.slots = slices.Insert(h.slots, i, s)
	h.taken += s.weight
	l.taken += s.weight
}

// remove stops counting a slot, unless that happened before. The lock is held.
func (l *fairLimiter) remove(s *slot) {
	h := l.holders[s.caller]
	if h == nil {
		return
	}
	i := slices.Index(h.slots, s)
	if i < 0 {
		return
	}
	l.taken -= s.weight
	h.taken -= s.weight
	if h.slots = slices.Delete(h.slots, i, i+1); len(h.slots) == 0 {
		delete(l.holders, s.caller)
	}
}

// release gives the slot back. The holder calls it once.
func (s *slot) release() {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	s.limiter.remove(s)
	close(s.released)
}

// end ends all slots, also those yet to be acquired. It may be called again.
func (l *fairLimiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	for _, h := range l.holders {
		for _, s := range h.slots {
			close(s.ended)
		}
	}
}
