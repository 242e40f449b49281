package httpapi

import (
	"container/list"
	"sync"
)

// shares are the places of requests that last, such as streams. Callers share them
// fairly: where all are taken, a newcomer gets that of the oldest request of the
// caller who has the most, unless that would only turn the two around. So a caller
// may take all that nobody else wants, and no more. It is safe for concurrent use.
type shares struct {
	limit int

	mu      sync.Mutex
	taken   int
	ended   bool
	callers map[string]*list.List // Of *place, the oldest first.
}

// place is that of one request. Its holder leaves it, soon after it has ended.
type place struct {
	shares *shares
	caller string
	held   *list.Element // Nil once another has it.
	ended  chan struct{} // Closed when another gets the place, or none is left.
	left   chan struct{} // Closed when the holder has left.
}

// newShares returns so many places.
func newShares(limit int) *shares {
	return &shares{limit: limit, callers: map[string]*list.List{}}
}

// take returns a place for a request of that caller, or nil where it has its share.
// One that another has had is taken once that one has left it: there are never more
// holders than places.
func (s *shares) take(caller string) *place {
	taken, former := s.find(caller)
	if former != nil {
		<-former.left
	}
	return taken
}

// find is a place for the caller, or nil, and whose it was until now, if anybody's.
func (s *shares) find(caller string) (taken, former *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.limit {
		if former = s.spare(caller); former == nil {
			return nil, nil
		}
		s.release(former)
		if !s.ended {
			close(former.ended)
		}
	}
	return s.hold(caller), former
}

// spare is the oldest place of the caller who has the most, nil where the other
// caller would then have more than that one. The lock is held.
func (s *shares) spare(caller string) *place {
	most := 0
	if own := s.callers[caller]; own != nil {
		most = own.Len()
	}
	most++ // What the caller would have.
	var heaviest *list.List
	for _, held := range s.callers {
		if held.Len() > most {
			heaviest, most = held, held.Len()
		}
	}
	if heaviest == nil {
		return nil
	}
	oldest, _ := heaviest.Front().Value.(*place)
	return oldest
}

// hold gives the caller a place. The lock is held.
func (s *shares) hold(caller string) *place {
	held := s.callers[caller]
	if held == nil {
		held = list.New()
		s.callers[caller] = held
	}
	p := &place{shares: s, caller: caller, ended: make(chan struct{}), left: make(chan struct{})}
	p.held = held.PushBack(p)
	s.taken++
	if s.ended {
		close(p.ended)
	}
	return p
}

// release counts a place no longer, if it did. The lock is held.
func (s *shares) release(p *place) {
	if p.held == nil {
		return
	}
	held := s.callers[p.caller]
	held.Remove(p.held)
	p.held = nil
	s.taken--
	if held.Len() == 0 {
		delete(s.callers, p.caller)
	}
}

// leave gives the place back. The holder calls it once.
func (p *place) leave() {
	p.shares.mu.Lock()
	defer p.shares.mu.Unlock()
	p.shares.release(p)
	close(p.left)
}

// end ends all places, those yet to be taken too. It may be called again.
func (s *shares) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	for _, held := range s.callers {
		for e := held.Front(); e != nil; e = e.Next() {
			if p, ok := e.Value.(*place); ok {
				close(p.ended)
			}
		}
	}
}
