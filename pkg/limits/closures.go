package limits

import (
	"context"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// closure is a closure as this process sees it.
type closure struct {
	row  Closure
	ramp *breaker.Ramp // nil until the closure has ended
	// unwritten is the closure that is not stored yet, nil if there is none, and answered when
	// the RESULT came that made it.
	unwritten *Closure
	answered  time.Time
	writing   bool
	changes   int // number of changes that this process has made
}

// maxRamp is how long a scope opens gradually at most.
const maxRamp = 15 * time.Second

// maxClosures bounds the closures that RESULTs make, since each process reads all of them every second
// and a worker may name any of its tenants. Beyond it a throttled attempt delays its own job alone.
const maxClosures = 1000

// opened returns the time from which on the closure holds nothing back.
func (c *Closure) opened() time.Time {
	return c.Until.Add(min(c.Until.Sub(c.ClosedAt), maxRamp))
}

// ramps returns those of the scopes that open gradually. open is false if one of the scopes is
// closed, or lets nothing through yet, and by is that one. The lock is held.
func (g *Gate) ramps(scopes []Scope, now time.Time) (ramps []*breaker.Ramp, by Scope, open bool) {
	for _, scope := range scopes {
		c := g.closures[scope]
		switch {
		case c == nil || !now.Before(c.row.opened()):
			continue
		case now.Before(c.row.Until):
			return nil, scope, false
		case c.ramp == nil:
			c.ramp = breaker.NewRamp(1, c.row.Until)
		}
		if c.ramp.Room(now) == 0 {
			return nil, scope, false
		}
		ramps = append(ramps, c.ramp)
	}
	return ramps, Scope{}, true
}

// closed reports whether one of the scopes is closed, or opens gradually. The lock is held.
func (g *Gate) closed(scopes []Scope, now time.Time) bool {
	return slices.ContainsFunc(scopes, func(scope Scope) bool {
		c := g.closures[scope]
		return c != nil && now.Before(c.row.opened())
	})
}

// adoptClosures makes the rows the view of closures, except those that this process has changed
// since the reading began. The lock is held.
func (g *Gate) adoptClosures(found *rows, changes map[Scope]int, began Reading) {
	known := g.closures
	g.closures = make(map[Scope]*closure, len(found.closures))
	for scope, c := range known {
		if c.unwritten != nil || c.changes != changes[scope] {
			g.closures[scope] = c
		}
	}
	for _, row := range found.closures {
		c := known[row.Scope]
		switch {
		case g.closures[row.Scope] != nil:
		case c != nil && c.row.Until.Equal(row.Until):
			c.row = row // Its ramp goes on.
			g.closures[row.Scope] = c
		default:
			g.closures[row.Scope] = &closure{row: row}
		}
	}
	for scope, c := range g.closures {
		if c.row.Until.After(began.Wall) { // Of tenants there may be too many for a metric.
			g.cfg.Observe(Scope{Service: scope.Service}, Closed, (began.Mono - g.read).Seconds())
		}
	}
}

// Close closes what a throttled RESULT says, in this process at once, for at most [Config.MaxClose],
// and lets [Gate.Run] write the row. It reports false if the scope is closed for as long already, or
// if there are 1,000 closures.
func (g *Gate) Close(of statemachine.Closure) bool {
	fresh := Closure{Scope: Scope{Service: of.Service, TenantID: of.TenantID}, Until: of.Until, Actor: of.Actor, Reason: of.Reason}
	if latest := of.ResultAt.Add(g.cfg.MaxClose); fresh.Until.After(latest) {
		fresh.Until = latest
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var known *Closure
	c := g.closures[fresh.Scope]
	if c != nil {
		known = &c.row
	}
	next := known.close(&fresh, of.ResultAt)
	if next == known || c == nil && len(g.closures) >= maxClosures {
		return false
	}
	if c == nil {
		c = &closure{}
		g.closures[fresh.Scope] = c
	}
	c.row, c.ramp, c.unwritten, c.answered = *next, nil, next, of.ResultAt
	c.changes++
	g.ask()
	return true
}

// write stores a closure of this process, which an operator may have replaced since.
func (g *Gate) write(ctx context.Context, scope Scope, c *closure, fresh *Closure, answered time.Time) {
	stored, err := g.cfg.Service.Close(ctx, *fresh, answered)
	g.mu.Lock()
	defer g.mu.Unlock()
	c.writing = false
	switch {
	case err != nil && fresh.Until.After(g.cfg.Clock().Wall):
		g.cfg.Logger.WarnContext(ctx, "closure not written yet", "limit_id", scope.ID(), "error", err)
		time.AfterFunc(time.Second, g.ask)
		return
	case c.unwritten != fresh: // It was closed for longer in the meantime.
		g.ask()
		return
	case err == nil:
		c.row = stored
	} // A closure that could not be written before its end needs no row.
	c.unwritten = nil
	c.changes++
}

// Apply makes the view show a closure that this process has stored.
func (g *Gate) Apply(stored Closure) {
	g.mu.Lock()
	c := g.closures[stored.Scope]
	if c == nil {
		c = &closure{}
		g.closures[stored.Scope] = c
	}
	if !c.row.Until.Equal(stored.Until) {
		c.ramp = nil
	}
	if due := c.unwritten; due != nil && due.Until.After(stored.Until) && c.answered.After(stored.OpenedAt) {
		stored = *due // A RESULT has closed it for longer, and is about to be written.
	} else {
		c.unwritten = nil
	}
	c.row = stored
	c.changes++
	wake, open := g.wake, !stored.Until.After(g.cfg.Clock().Wall)
	g.mu.Unlock()
	if open {
		wake(stored.Scope, -1)
	}
}

// onBus returns the scopes that hold back what is published to Service Bus: those of all step types.
func onBus(service, tenantID string) []Scope {
	return []Scope{{Service: service}, {Service: service, TenantID: tenantID}}
}

// Holds reports whether a closed scope holds a directive for Service Bus back from publication, or
// the view is too old to tell.
func (g *Gate) Holds(service, tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	return g.stale(now) || g.closed(onBus(service, tenantID), now.Wall)
}

// Admit reports whether the directive may be published to Service Bus, and counts it towards the
// gradual opening of its scopes.
func (g *Gate) Admit(service, tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	if g.stale(now) {
		return false
	}
	ramps, _, open := g.ramps(onBus(service, tenantID), now.Wall)
	for _, ramp := range ramps {
		ramp.Take(1)
	}
	return open
}
