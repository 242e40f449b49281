package httpapi

import (
	"container/list"
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
	taken   int
	ended   bool
	callers map[string]*list.List // Of *slot, the oldest first.
}

// slot belongs to one request, which releases it soon after ended is closed.
type slot struct {
	limiter  *fairLimiter
	caller   string
	held     *list.Element // Nil once the slot is preempted.
	ended    chan struct{} // Closed when the slot is preempted, or the limiter ends.
	released chan struct{} // Closed when the holder has released it.
}

// newFairLimiter returns a limiter with limit slots.
func newFairLimiter(limit int) *fairLimiter {
	return &fairLimiter{limit: limit, callers: map[string]*list.List{}}
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
	if l.callers[caller] == nil {
		l.callers[caller] = list.New()
	}
	acquired.held = l.callers[caller].PushBack(acquired)
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
	most := 0
	if own := l.callers[caller]; own != nil {
		most = own.Len()
	}
	most++ // With the new slot.
	var heaviest *list.List
	for _, held := range l.callers {
		if held.Len() > most {
			heaviest, most = held, held.Len()
		}
	}
	if heaviest == nil {
		return nil
	}
	oldest, _ := heaviest.Front().Value.(*slot)
	return oldest
}

// remove stops counting a slot, unless that happened before. The lock is held.
func (l *fairLimiter) remove(s *slot) {
	if s.held == nil {
		return
	}
	held := l.callers[s.caller]
	held.Remove(s.held)
	s.held = nil
	l.taken--
	if held.Len() == 0 {
		delete(l.callers, s.caller)
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
	for _, held := range l.callers {
		for e := held.Front(); e != nil; e = e.Next() {
			if s, ok := e.Value.(*slot); ok {
				close(s.ended)
			}
		}
	}
}
