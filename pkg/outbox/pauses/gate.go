package pauses

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Gate says whether a directive may be dispatched now, by its own view of the
// pauses. It is safe for concurrent use, and calls the store only in its refresh.
//
// Dispatch asks at three points, by the directive's tenant, protocol, lane and
// service: the ledger when it makes a row ([Gate.HoldsNew]), the relay before it publishes one
// ([Gate.Admit]), and the pull queue before it hands out what was published earlier
// ([Gate.HoldsQueued]).
type Gate struct {
	service *Service
	expired func(context.Context, Pause)

	mu      sync.Mutex       // Guards all below. Not held during a read: changed says what it missed.
	holds   map[string]*hold // by the pause's id
	changes int              // number of changes of this process
	// changed is the number of the last change of a pause, by the pause's id, unless the view
	// was read after it.
	changed map[string]int
	read    time.Time // when the refresh began that made the view
}

// maxAge is how old a view may be: beyond it the process does not know what is
// paused, and neither makes directives ready nor hands them out.
const maxAge = 5 * time.Second

// hold is a pause as this process enforces it.
type hold struct {
	pause Pause
	ramp  *breaker.Ramp // nil until the scope ramps up
}

// NewGate returns a gate that has read the pauses once. It calls expired after it resumed
// a pause at its time; nil means not to. The error is the store's.
func NewGate(ctx context.Context, service *Service, expired func(context.Context, Pause)) (*Gate, error) {
	if expired == nil {
		expired = func(context.Context, Pause) {}
	}
	g := &Gate{service: service, expired: expired, holds: map[string]*hold{}, changed: map[string]int{}}
	if err := g.Refresh(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// Refresh reads the pauses, resumes those whose time is over, and removes those whose ramp
// is. It is to be called every second: a process learns that late what another one has
// paused. What it has read of a pause is dropped if this process changed that pause in
// between: it may be older. After an error the view is unchanged: what is paused stays paused.
func (g *Gate) Refresh(ctx context.Context) error {
	g.mu.Lock()
	changes := g.changes
	g.mu.Unlock()
	began := tablestore.Now()
	pauses, err := g.service.List(ctx)
	if err != nil {
		return fmt.Errorf("refresh the gate: %w", err)
	}
	for _, pause := range g.adopt(pauses, changes, began) {
		if err := g.service.forget(ctx, pause.Scope); err != nil {
			return fmt.Errorf("refresh the gate: %w", err)
		}
	}
	for i := range pauses {
		if !expired(&pauses[i], began) {
			continue
		}
		resumed, err := g.service.expire(ctx, pauses[i].Scope)
		if err != nil {
			return fmt.Errorf("refresh the gate: %w", err)
		}
		if resumed != nil {
			g.Apply(*resumed)
			g.expired(ctx, *resumed)
		}
	}
	return nil
}

// adopt makes the pauses the view that were read after so many changes of this process, except
// those that it has changed since, and returns those whose ramp is over.
func (g *Gate) adopt(pauses []Pause, changes int, began time.Time) []Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	var over []Pause
	fresh := make(map[string]*hold, len(pauses))
	for _, pause := range pauses {
		switch id := pause.ID(); {
		case g.changed[id] > changes:
		case pause.At(began).State == Resumed:
			over = append(over, pause)
		default:
			fresh[id] = g.hold(pause)
		}
	}
	for id, change := range g.changed {
		if change <= changes {
			delete(g.changed, id)
		} else if known := g.holds[id]; known != nil {
			fresh[id] = known
		}
	}
	g.holds, g.read = fresh, began
	return over
}

// hold is the pause with its ramp, which goes on if there is one. The lock is held.
func (g *Gate) hold(pause Pause) *hold {
	h := &hold{pause: pause}
	if known := g.holds[pause.ID()]; known != nil && known.pause.ResumedAt.Equal(pause.ResumedAt) {
		h.ramp = known.ramp
	} else if pause.State == Ramping {
		h.ramp = breaker.NewRamp(firstSecond, pause.ResumedAt)
	}
	return h
}

// Apply makes the view show a change of this process at once.
func (g *Gate) Apply(pause Pause) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changes++
	g.changed[pause.ID()] = g.changes
	if pause.State == Resumed {
		delete(g.holds, pause.ID())
		return
	}
	g.holds[pause.ID()] = g.hold(pause)
}

// Admit reports whether the directive may be published. One that is admitted counts
// towards the ramps that cover it.
func (g *Gate) Admit(target statemachine.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.stale(now) {
		return false
	}
	var ramps []*breaker.Ramp
	for _, h := range g.holds {
		if !h.pause.Covers(target) {
			continue
		}
		switch h.pause.At(now).State {
		case Paused:
			return false
		case Ramping:
			if h.ramp.Room(now) == 0 {
				return false
			}
			ramps = append(ramps, h.ramp)
		case Resumed:
		}
	}
	for _, ramp := range ramps {
		ramp.Take(1)
	}
	return true
}

// firstSecond is how many directives a process lets through in the first second
// of a ramp.
const firstSecond = 10

// HoldsNew reports whether a new directive has to wait in the schedule: a pause or a
// ramp covers it, or the view is too old to tell. It counts nothing.
func (g *Gate) HoldsNew(target statemachine.Target) bool {
	return g.held(target, true)
}

// HoldsQueued reports whether a published directive that no worker has claimed must
// not be handed out: a pause covers it, or the view is too old to tell. A ramp holds
// back only unpublished directives. It counts nothing.
func (g *Gate) HoldsQueued(target statemachine.Target) bool {
	return g.held(target, false)
}

// held reports whether a pause covers the directive, or a ramp if ramps count.
func (g *Gate) held(target statemachine.Target, ramps bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.stale(now) {
		return true
	}
	for _, h := range g.holds {
		state := h.pause.At(now).State
		if (state == Paused || ramps && state == Ramping) && h.pause.Covers(target) {
			return true
		}
	}
	return false
}

// Covering returns the pause that covers the directive, by this process's last view, or
// nil. Of several it is one that holds back everything rather than a ramp, and then the
// oldest.
func (g *Gate) Covering(target statemachine.Target) *Pause {
	var found *Pause
	active := g.Active()
	for i := range active {
		if p := &active[i]; p.Covers(target) && (found == nil || before(p, found)) {
			found = p
		}
	}
	return found
}

// before orders the pauses that cover one directive.
func before(p, other *Pause) bool {
	return cmp.Or(cmp.Compare(p.State, other.State), p.CreatedAt.Compare(other.CreatedAt), cmp.Compare(p.ID(), other.ID())) < 0
}

// HoldsTenant reports whether [Gate.HoldsQueued] is true of all of the tenant's work.
func (g *Gate) HoldsTenant(tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stale(time.Now()) {
		return true
	}
	for _, h := range g.holds {
		if h.pause.State == Paused && (h.pause.Scope == statemachine.Scope{} || h.pause.TenantID() == tenantID) {
			return true
		}
	}
	return false
}

// Stale reports whether the view is too old to go by, so that nothing is dispatched.
func (g *Gate) Stale() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stale(time.Now())
}

// stale is [Gate.Stale]. The lock is held.
func (g *Gate) stale(now time.Time) bool { return now.Sub(g.read) > maxAge }

// Active returns the pauses that hold anything back, in no order.
func (g *Gate) Active() []Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	active := make([]Pause, 0, len(g.holds))
	now := time.Now()
	for _, h := range g.holds {
		if pause := h.pause.At(now); pause.State != Resumed {
			active = append(active, pause)
		}
	}
	return active
}

// Paused returns the scopes that are paused, and not ramping up, the oldest first.
func (g *Gate) Paused() []statemachine.Scope {
	active := g.Active()
	slices.SortFunc(active, func(a, b Pause) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID(), b.ID()))
	})
	scopes := make([]statemachine.Scope, 0, len(active))
	for i := range active {
		if active[i].State == Paused {
			scopes = append(scopes, active[i].Scope)
		}
	}
	return scopes
}
