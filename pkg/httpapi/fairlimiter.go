package httpapi

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// fairLimiter bounds what requests hold, such as streams or the bytes of bodies, and
// shares it fairly among callers: a caller may take all that other callers do not want, and
// no more. It is safe for concurrent use.
type fairLimiter struct {
	limit int64
	full  whenFull
	// refusal is the problem of a request if its caller has its share and whenFull is
	// refuses.
	refusal *apierror.Error

	mu      sync.Mutex
	taken   int64 // invariant: taken = Σ holders[c].taken ≤ limit, or only one slot is held
	ended   bool
	holders map[string]*holder // No entry is empty.
	waiting map[string][]*slot // By caller, the smallest first, then the oldest. No entry is empty.
}

// whenFull says how to treat a request when all is taken.
type whenFull int

const (
	// refuses: the request preempts the oldest request of the caller that holds the most;
	// it is refused if that would only swap the two callers.
	refuses whenFull = iota
	// evicts: like refuses, but instead of being refused the request preempts the oldest of
	// its own caller, or else the oldest of the largest holder.
	evicts
	// queues: the request waits; the next slot goes to the caller with the smallest share.
	// Holders must release their slots without waiting for a client.
	queues
)

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
	granted  chan struct{} // Closed when a waiting slot is granted; nil if the slot does not wait.
	ended    chan struct{} // Closed when the slot is preempted, or the limiter ends; nil in a limiter that queues.
	released chan struct{} // Closed when the holder has released it; nil until it is preempted.
}

// newFairLimiter returns a limiter with that total.
func newFairLimiter(limit int64, full whenFull, refusal *apierror.Error) *fairLimiter {
	return &fairLimiter{limit: limit, full: full, refusal: refusal, holders: map[string]*holder{}, waiting: map[string][]*slot{}}
}

// acquire returns a slot of that weight for a request of the caller, or the limiter's
// refusal. cut, unless it is nil, ends the request when it is preempted. acquire waits
// until preempted requests have released their slots, so that the limit is never exceeded,
// except by a single slot that is larger. Its other errors are those of ctx: the slot then
// counts until the preempted ones are released, and cut may still be called.
func (l *fairLimiter) acquire(ctx context.Context, caller string, weight int64, cut func()) (*slot, error) {
	acquired := &slot{limiter: l, caller: caller, weight: weight, cut: cut}
	if l.full == queues {
		if err := acquired.await(ctx); err != nil {
			return nil, err
		}
		return acquired, nil
	}
	acquired.ended = make(chan struct{})
	l.mu.Lock()
	var preempted []*slot
	for l.taken > 0 && l.taken+weight > l.limit {
		oldest := l.victim(caller, weight)
		if oldest == nil {
			for _, s := range slices.Backward(preempted) {
				l.insert(s, 0)
			}
			l.mu.Unlock()
			return nil, l.refusal
		}
		l.remove(oldest)
		preempted = append(preempted, oldest)
	}
	if l.ended {
		close(acquired.ended)
	}
	for _, s := range preempted {
		s.released = make(chan struct{})
		if !l.ended {
			close(s.ended)
		}
	}
	l.insert(acquired, newest)
	l.mu.Unlock()
	for _, s := range preempted {
		if s.cut != nil {
			s.cut()
		}
	}
	for i, s := range preempted {
		select {
		case <-s.released:
		case <-ctx.Done():
			go func() { // Until then the preempted slots count as this one.
				for _, s := range preempted[i:] {
					<-s.released
				}
				acquired.release()
			}()
			return nil, context.Cause(ctx)
		}
	}
	return acquired, nil
}

// await waits until the limiter has room for the slot. A request gets none once its context
// has ended, even if there is room.
func (s *slot) await(ctx context.Context) error {
	if ctx.Err() != nil { // Of two ready cases, select picks one at random.
		return context.Cause(ctx)
	}
	l := s.limiter
	l.mu.Lock()
	if len(l.waiting) == 0 && (l.taken == 0 || l.taken+s.weight <= l.limit) {
		l.insert(s, newest)
		l.mu.Unlock()
		return nil
	}
	s.granted = make(chan struct{})
	own := l.waiting[s.caller]
	after, _ := slices.BinarySearchFunc(own, s.weight+1, func(other *slot, weight int64) int {
		return cmp.Compare(other.weight, weight)
	})
	l.waiting[s.caller] = slices.Insert(own, after, s)
	l.grant()
	l.mu.Unlock()
	select {
	case <-s.granted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.leave(s)
	l.mu.Unlock()
	s.release() // It may have been granted in the meantime.
	return context.Cause(ctx)
}

// grant gives the free room to waiting slots, in the order of what their callers would hold
// with them, least first. The lock is held.
func (l *fairLimiter) grant() {
	for len(l.waiting) > 0 {
		var next *slot
		least := int64(math.MaxInt64)
		for caller, own := range l.waiting {
			if share := l.share(caller) + own[0].weight; share < least {
				next, least = own[0], share
			}
		}
		if l.taken > 0 && l.taken+next.weight > l.limit {
			return
		}
		l.leave(next)
		l.insert(next, newest)
		close(next.granted)
	}
}

// leave ends the wait of a slot; a repeat has no effect. The lock is held.
func (l *fairLimiter) leave(s *slot) {
	own := slices.DeleteFunc(l.waiting[s.caller], func(other *slot) bool { return other == s })
	if l.waiting[s.caller] = own; len(own) == 0 {
		delete(l.waiting, s.caller)
	}
}

// share returns how much the caller holds. The lock is held.
func (l *fairLimiter) share(caller string) int64 {
	if h := l.holders[caller]; h != nil {
		return h.taken
	}
	return 0
}

// victim returns the oldest slot of the caller that holds the most, or nil if with the
// new slot the other caller would hold at least as much. The lock is held.
func (l *fairLimiter) victim(caller string, weight int64) *slot {
	most, largest := weight+l.share(caller), (*holder)(nil)
	if l.full == evicts {
		largest = l.holders[caller]
	}
	for _, h := range l.holders {
		if h.taken > most || l.full == evicts && largest == nil {
			largest, most = h, max(most, h.taken)
		}
	}
	if largest == nil {
		return nil
	}
	return largest.slots[0]
}

// newest is the index of a slot after all others of its caller.
const newest = math.MaxInt

// insert counts a slot, as the caller's i-th oldest. The lock is held.
func (l *fairLimiter) insert(s *slot, i int) {
	h := l.holders[s.caller]
	if h == nil {
		h = &holder{}
		l.holders[s.caller] = h
	}
	h.slots = slices.Insert(h.slots, min(i, len(h.slots)), s)
	h.taken += s.weight
	l.taken += s.weight
}

// remove stops counting a slot; a repeat has no effect. The lock is held.
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
	s.limiter.grant()
	if s.released != nil {
		close(s.released)
	}
}

// end ends all slots, including those yet to be acquired. It may be called repeatedly.
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
