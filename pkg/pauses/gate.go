package pauses

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Gate says whether a directive may be dispatched now, by its own view of the
// pauses. It is safe for concurrent use, and makes no call to the store but in
// its refresh.
type Gate struct {
	service *Service

	mu      sync.Mutex
	holds   map[string]*hold // by the pause's id
	applied int              // how many changes of this process there were
	read    time.Time        // when the refresh began that made the view
}

// maxAge is how old a view may be: beyond it the process does not know what is
// paused, and neither makes directives ready nor hands them out.
const maxAge = 5 * time.Second

// hold is a pause as this process enforces it.
type hold struct {
	pause Pause
	// let is how many directives passed since the ramp began.
	let float64
}

// NewGate returns a gate that has read the pauses once. The error is the
// store's.
func NewGate(ctx context.Context, service *Service) (*Gate, error) {
	g := &Gate{service: service, holds: map[string]*hold{}}
	if err := g.Refresh(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// Refresh reads the pauses, and removes those whose ramp is over. It is to be called
// every second: so long may a process go on with what another one has paused. What it
// has read is dropped if a change of this process came in between: it may be older.
// After an error the view is as it was: what is paused stays paused.
func (g *Gate) Refresh(ctx context.Context) error {
	before, began := g.changes(), tablestore.Now()
	pauses, err := g.service.List(ctx)
	if err != nil {
		return fmt.Errorf("refresh the gate: %w", err)
	}
	for _, pause := range g.adopt(pauses, before, began) {
		if err := g.service.forget(ctx, pause.Scope); err != nil {
			return fmt.Errorf("refresh the gate: %w", err)
		}
	}
	return nil
}

// changes is how many changes of this process the view has seen.
func (g *Gate) changes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.applied
}

// adopt takes the pauses over that were read after so many changes of this process,
// unless there was another since, and returns those whose ramp is over.
func (g *Gate) adopt(pauses []Pause, after int, current time.Time) []Pause {
	var over []Pause
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.applied != after {
		return nil
	}
	g.read = current
	fresh := make(map[string]*hold, len(pauses))
	for _, pause := range pauses {
		if pause.at(current).State == Resumed {
			over = append(over, pause)
			continue
		}
		fresh[pause.ID()] = g.hold(pause)
	}
	g.holds = fresh
	return over
}

// hold is the pause with what its ramp has let through so far. The lock is held.
func (g *Gate) hold(pause Pause) *hold {
	h := &hold{pause: pause}
	if known := g.holds[pause.ID()]; known != nil && known.pause.ResumedAt.Equal(pause.ResumedAt) {
		h.let = known.let
	}
	return h
}

// Apply makes the view show a change of this process at once.
func (g *Gate) Apply(pause Pause) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applied++
	if pause.State == Resumed {
		delete(g.holds, pause.ID())
		return
	}
	g.holds[pause.ID()] = g.hold(pause)
}

// Admit reports whether the directive may be dispatched. One that is admitted
// counts towards the ramps that it passes.
func (g *Gate) Admit(subject Subject) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	current := time.Now()
	if g.stale(current) {
		return false
	}
	if len(g.holds) == 0 {
		return true
	}
	var ramps []*hold
	for _, h := range g.holds {
		if !h.pause.Covers(subject) {
			continue
		}
		switch h.pause.at(current).State {
		case Paused:
			return false
		case Ramping:
			if h.let+1 > passed(current.Sub(h.pause.ResumedAt)) {
				return false
			}
			ramps = append(ramps, h)
		case Resumed:
		}
	}
	for _, h := range ramps {
		h.let++
	}
	return true
}

// Holds reports whether the directive has to wait for its turn: a pause covers it,
// be it one that ramps up, or the view is too old to tell. It counts nothing.
func (g *Gate) Holds(subject Subject) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	current := time.Now()
	if g.stale(current) {
		return true
	}
	for _, h := range g.holds {
		if h.pause.Covers(subject) && h.pause.at(current).State != Resumed {
			return true
		}
	}
	return false
}

// Pauses reports whether what was published, and no worker has taken yet, is not to
// be handed out: a pause covers it, or the view is too old to tell. A ramp holds back
// only what is still to be published. It counts nothing.
func (g *Gate) Pauses(subject Subject) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stale(time.Now()) {
		return true
	}
	for _, h := range g.holds {
		if h.pause.State == Paused && h.pause.Covers(subject) {
			return true
		}
	}
	return false
}

// PausesTenant reports whether [Gate.Pauses] holds for all of the tenant's work.
func (g *Gate) PausesTenant(tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stale(time.Now()) {
		return true
	}
	for _, id := range []string{Scope{}.ID(), Scope{TenantID: tenantID}.ID()} {
		if h := g.holds[id]; h != nil && h.pause.State == Paused {
			return true
		}
	}
	return false
}

// stale reports whether the view is too old to go by. The lock is held.
func (g *Gate) stale(current time.Time) bool { return current.Sub(g.read) > maxAge }

// Active returns the pauses that hold anything back, in no order.
func (g *Gate) Active() []Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	active := make([]Pause, 0, len(g.holds))
	current := time.Now()
	for _, h := range g.holds {
		if pause := h.pause.at(current); pause.State != Resumed {
			active = append(active, pause)
		}
	}
	return active
}
