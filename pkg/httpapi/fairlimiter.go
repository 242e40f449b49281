package httpapi

import (
	"slices"
	"sync"
)

// fairLimiter bounds long-lived requests, such as streams, and shares its slots
// fairly among callers: when all are taken, a new request preempts the oldest request
// of the caller with the most slots, unless that would only swap the two callers. So
// a caller may take all slots that no other caller wants, and no more. It is safe
// for concurrent use.
type fairLimiter struct {
	limit int

	mu      sync.Mutex
	taken   int // invariant: taken = Σ len(callers[c]) ≤ limit
	ended   bool
	callers map[string][]*slot // The oldest first; no entry is empty.
}

// slot belongs to one request, which releases it soon after ended is closed.
type slot struct {
	limiter  *fairLimiter
	caller   string
	ended    chan struct{} // Closed when the slot is preempted, or the limiter ends.
	released chan struct{} // Closed when the holder has released it.
}

// newFairLimiter returns a limiter with limit slots.
func newFairLimiter(limit int) *fairLimiter {
	return &fairLimiter{limit: limit, callers: map[string][]*slot{}}
}

// acquire returns a slot for a request of the caller, or nil if the caller has its
// share. It waits until a preempted request has released its slot: there are never
// more holders than slots.
func (l *fairLimiter) acquire(caller string) *slot {
	l.mu.Lock()
	var preempted *slot
	if l.taken >= l.limit {
		if preempted = l.victim(caller); preempted == nil {
			l.mu.Unlock()
			return nil
		}
		l.remove(preempted)
		if !l.ended {
			close(preempted.ended)
		}
	}
	acquired := &slot{limiter: l, caller: caller, ended: make(chan struct{}), released: make(chan struct{})}
	if l.ended {
		close(acquired.ended)
	}
	l.callers[caller] = append(l.callers[caller], acquired)
	l.taken++
	l.mu.Unlock()
	if preempted != nil {
		<-preempted.released
	}
	return acquired
}

// victim returns the oldest slot of the caller with the most slots, or nil if with
// one more slot the other caller would have at least as many. The lock is held.
func (l *fairLimiter) victim(caller string) *slot {
	most := len(l.callers[caller]) + 1
	var oldest *slot
	for _, held := range l.callers {
		if len(held) > most {
			oldest, most = held[0], len(held)
		}
	}
	return oldest
}

// remove stops counting a slot, unless that happened before. The lock is held.
func (l *fairLimiter) remove(s *slot) {
	held := l.callers[s.caller]
	i := slices.Index(held, s)
	if i < 0 {
		return
	}
	l.taken--
	if len(held) == 1 {
		delete(l.callers, s.caller)
		return
	}
	l.callers[s.caller] = slices.Delete(held, i, i+1)
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
	for _, held := range l.callers {
		for _, s := range held {
			close(s.ended)
		}
	}
}
