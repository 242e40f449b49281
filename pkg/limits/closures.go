package limits

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
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

// opening returns the time until which the scope opens gradually.
func (c *Closure) opening() time.Time {
	return c.Until.Add(min(c.Until.Sub(c.ClosedAt), maxRamp))
}

// room reports whether the closure lets a start through at that time. The lock is held.
func (c *closure) room(now time.Time) bool {
	switch {
	case now.Before(c.row.Until):
		return false
	case !now.Before(c.row.opening()):
		return true
	case c.ramp == nil:
		c.ramp = breaker.NewRamp(1, c.row.Until)
	}
	return c.ramp.Room(now) > 0
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

// Close closes the scope in this process at once, and lets [Gate.Run] write the row. answered is
// when the RESULT came that closes it. A scope stays closed for at most [Config.MaxClose] from
// then on.
func (g *Gate) Close(fresh Closure, answered time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if latest := answered.Add(g.cfg.MaxClose); fresh.Until.After(latest) {
		fresh.Until = latest
	}
	c := g.closures[fresh.Scope]
	var known *Closure
	if c != nil {
		known = &c.row
	}
	next := known.close(&fresh, answered)
	if next == known {
		return // Other RESULTs have closed it for as long.
	}
	made := &closure{row: *next, unwritten: next, answered: answered}
	if c != nil {
		made.changes, made.writing = c.changes, c.writing
		*c = *made
		made = c
	}
	made.changes++
	g.closures[fresh.Scope] = made
	g.ask()
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
	}
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

// Holds reports whether a closed scope of all step types holds the directive back from
// publication. On Service Bus nothing else does.
func (g *Gate) Holds(service, tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock().Wall
	for _, scope := range []Scope{{Service: service}, {Service: service, TenantID: tenantID}} {
		if c := g.closures[scope]; c != nil && now.Before(c.row.opening()) {
			return true
		}
	}
	return false
}

// Admit reports whether the directive may be published, and counts it towards the gradual
// opening of its scopes.
func (g *Gate) Admit(service, tenantID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock().Wall
	var ramps []*breaker.Ramp
	for _, scope := range []Scope{{Service: service}, {Service: service, TenantID: tenantID}} {
		c := g.closures[scope]
		if c == nil || !now.Before(c.row.opening()) {
			continue
		}
		if !c.room(now) {
			return false
		}
		ramps = append(ramps, c.ramp)
	}
	for _, ramp := range ramps {
		ramp.Take(1)
	}
	return true
}
