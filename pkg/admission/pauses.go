package admission

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Pause is a pause by scope.
type Pause = statemachine.ScopePause

// The states of a pause.
const (
	Paused  = statemachine.ScopePaused
	Ramping = statemachine.ScopeRamping
	Resumed = statemachine.ScopeResumed
)

// DefaultRamp is how long a resumed scope ramps up unless the caller says otherwise.
const DefaultRamp = breaker.RampFor

// expired reports whether the pause should resume by itself.
func expired(p *Pause, now time.Time) bool {
	return p.State == Paused && !p.Until.IsZero() && !now.Before(p.Until)
}

// outlasts reports whether the pause is to end later than the other one.
func outlasts(p, other *Pause) bool {
	return !other.Until.IsZero() && (p.Until.IsZero() || p.Until.After(other.Until))
}

// Pause pauses the scope. Of two pauses of one scope the one that ends later counts, so
// that no operator cuts short the pause of another: a scope that is paused for as long
// already is left unchanged. A scope that ramps up is paused again.
//
// The pause names its scope, reason and actor, and optionally its Until and the Ramp after
// that.
func (s *Service) Pause(ctx context.Context, fresh Pause) (Pause, error) {
	fresh.State, fresh.CreatedAt, fresh.ResumedAt = Paused, tablestore.Now(), time.Time{}
	fresh.Until = fresh.Until.UTC().Truncate(time.Millisecond)
	return s.updatePause(ctx, fresh.Scope, func(old *Pause) (*Pause, error) {
		if old == nil || old.State != Paused {
			return &fresh, nil
		}
		if !outlasts(&fresh, old) {
			return old, nil
		}
		longer := fresh
		longer.CreatedAt = old.CreatedAt
		return &longer, nil
	})
}

// Resume lets the scope ramp up within that time, or at once if it is 0. It
// returns a not_found [*apierror.Error] for a scope that is not paused.
func (s *Service) Resume(ctx context.Context, scope statemachine.Scope, ramp time.Duration) (Pause, error) {
	return s.updatePause(ctx, scope, func(old *Pause) (*Pause, error) {
		if old == nil {
			return nil, &apierror.Error{Code: apierror.NotFound, Detail: "There is no such pause."}
		}
		if old.State == Ramping {
			return old, nil
		}
		next := *old
		next.State, next.ResumedAt, next.Ramp, next.Until = Ramping, tablestore.Now(), ramp, time.Time{}
		return &next, nil
	})
}

// expire resumes a pause whose time is over. It returns nil if there is no such pause any
// more: another process was first, or an operator.
func (s *Service) expire(ctx context.Context, scope statemachine.Scope) (*Pause, error) {
	var resumed bool
	pause, err := s.updatePause(ctx, scope, func(old *Pause) (*Pause, error) {
		now := tablestore.Now()
		if resumed = old != nil && expired(old, now); !resumed {
			return old, nil
		}
		next := *old
		next.State, next.ResumedAt = Ramping, now
		return &next, nil
	})
	if err != nil || !resumed {
		return nil, err
	}
	return &pause, nil
}

func (s *Service) updatePause(ctx context.Context, scope statemachine.Scope, decide func(old *Pause) (*Pause, error)) (Pause, error) {
	pause, err := update(ctx, s, s.pauseKey(scope), pauseCodec, decide)
	return pause.At(tablestore.Now()), err
}

// hold is a pause as this process enforces it.
type hold struct {
	pause Pause
	ramp  *breaker.Ramp // nil until the scope ramps up
}

// adoptPauses makes the rows the view of pauses, except those that this process has changed since the
// reading began. It returns the keys of those whose ramp is over. The lock is held.
func (g *Gate) adoptPauses(found *rows, mark int, now time.Time) (over []tablestore.Key) {
	fresh := make(map[statemachine.Scope]*hold, len(found.pauses))
	for scope, known := range g.holds {
		if g.changedSince(g.cfg.Service.pauseKey(scope), mark) {
			fresh[scope] = known
		}
	}
	for i := range found.pauses {
		pause := &found.pauses[i]
		switch key := g.cfg.Service.pauseKey(pause.Scope); {
		case g.changedSince(key, mark):
		case pause.At(now).State == Resumed:
			over = append(over, key)
		default:
			fresh[pause.Scope] = g.hold(pause)
		}
	}
	g.holds = fresh
	return over
}

// hold is the pause with its ramp, which goes on if there is one. The lock is held.
func (g *Gate) hold(pause *Pause) *hold {
	h := &hold{pause: *pause}
	if known := g.holds[pause.Scope]; known != nil && known.pause.ResumedAt.Equal(pause.ResumedAt) {
		h.ramp = known.ramp
	} else if pause.State == Ramping {
		h.ramp = breaker.NewRamp(firstSecond, pause.ResumedAt)
	}
	return h
}

// resumeExpired resumes the pauses whose time is over.
func (g *Gate) resumeExpired(ctx context.Context, pauses []Pause, now time.Time) error {
	for i := range pauses {
		if !expired(&pauses[i], now) {
			continue
		}
		resumed, err := g.cfg.Service.expire(ctx, pauses[i].Scope)
		if err != nil {
			return err
		}
		if resumed != nil {
			g.ApplyPause(*resumed)
			g.cfg.Expired(ctx, *resumed)
		}
	}
	return nil
}

// ApplyPause makes the view show a pause that this process has stored.
func (g *Gate) ApplyPause(stored Pause) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.change(g.cfg.Service.pauseKey(stored.Scope))
	if stored.State == Resumed {
		delete(g.holds, stored.Scope)
		return
	}
	g.holds[stored.Scope] = g.hold(&stored)
}

// Admit reports whether the directive may be published. One that is admitted counts
// towards the ramps that cover it.
func (g *Gate) Admit(target statemachine.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	if g.stale(now) {
		return false
	}
	ramps, _, open := g.ramps(g.onBus(target), now.Wall)
	if !open {
		return false
	}
	for _, h := range g.holds {
		if !h.pause.Covers(target) {
			continue
		}
		switch h.pause.At(now.Wall).State {
		case Paused:
			return false
		case Ramping:
			if h.ramp.Room(now.Wall) == 0 {
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
// ramp covers it, on a bus also a closure, or the view is too old to tell. It counts nothing.
func (g *Gate) HoldsNew(target statemachine.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	return g.paused(target, true, now) || g.closed(g.onBus(target), now.Wall)
}

// HoldsQueued reports whether a published directive that no worker has claimed must
// not be handed out: a pause covers it, or the view is too old to tell. A ramp holds
// back only unpublished directives. It counts nothing.
func (g *Gate) HoldsQueued(target statemachine.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused(target, false, g.cfg.Clock())
}

// paused reports whether a pause covers the directive, or a ramp if ramps count, or the view is too old.
// The lock is held.
func (g *Gate) paused(target statemachine.Target, ramps bool, now Reading) bool {
	if g.stale(now) {
		return true
	}
	for _, h := range g.holds {
		state := h.pause.At(now.Wall).State
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
	if g.stale(g.cfg.Clock()) {
		return true
	}
	for _, h := range g.holds {
		if h.pause.State == Paused && (h.pause.Scope == statemachine.Scope{} || h.pause.TenantID() == tenantID) {
			return true
		}
	}
	return false
}

// Active returns the pauses that hold anything back, in no order.
func (g *Gate) Active() []Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	active := make([]Pause, 0, len(g.holds))
	now := g.cfg.Clock().Wall
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
