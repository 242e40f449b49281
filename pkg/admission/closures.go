package admission

import (
	"context"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Closure holds back all starts of a scope for a time.
type Closure struct {
	Scope

	Until  time.Time `column:"until"`
	Actor  string    `column:"actor"` // of the last change, as Reason
	Reason string    `column:"reason"`
	// ClosedAt is since when it is closed without a break. OpenedAt is when an operator opened
	// it last: a RESULT from before does not close it again.
	ClosedAt time.Time `column:"closed_at"`
	OpenedAt time.Time `column:"opened_at"`
	// Reported says that a RESULT closed it last, not an operator.
	Reported bool `column:"reported"`
}

// Close closes the scope until that time, or leaves it closed for longer. answered is when the
// RESULT came that closes it, zero if an operator does: one from before it was last opened
// changes nothing.
func (s *Service) Close(ctx context.Context, fresh Closure, answered time.Time) (Closure, error) {
	return update(ctx, s, s.key(kindClosed, fresh.Scope), closureCodec, func(old *Closure) (*Closure, error) {
		return old.close(&fresh, answered), nil
	})
}

// close returns what the closure becomes; old itself if nothing changes, nil if there is none.
func (c *Closure) close(fresh *Closure, answered time.Time) *Closure {
	until := fresh.Until.UTC().Truncate(time.Millisecond)
	now := tablestore.Now()
	switch {
	case c != nil && !answered.IsZero() && !answered.After(c.OpenedAt):
		return c // The worker that answered had begun before the operator looked.
	case c != nil && !until.After(c.Until):
		return c
	}
	next := *fresh
	next.Until, next.ClosedAt = until, now
	if c != nil {
		next.OpenedAt = c.OpenedAt
		if c.Until.After(now) {
			next.ClosedAt = c.ClosedAt
		}
	}
	return &next
}

// Open ends the closure now. It returns a not_found [*apierror.Error] if the scope is not
// closed.
func (s *Service) Open(ctx context.Context, scope Scope, actor, reason string) (Closure, error) {
	return update(ctx, s, s.key(kindClosed, scope), closureCodec, func(old *Closure) (*Closure, error) {
		now := tablestore.Now()
		if old == nil || !old.Until.After(now) {
			return nil, &apierror.Error{Code: apierror.NotFound, Detail: "The scope is not closed."}
		}
		next := *old
		next.Until, next.OpenedAt, next.Actor, next.Reason = now, now, actor, reason
		return &next, nil
	})
}

// forgetAfter is how long a closure is kept after its end: a RESULT from before may come as late.
const forgetAfter = time.Hour

// over reports whether the closure can be forgotten.
func (c *Closure) over(now time.Time) bool {
	return !c.Until.Add(forgetAfter).After(now) && !c.OpenedAt.Add(forgetAfter).After(now)
}

// closure is a closure as this process sees it.
type closure struct {
	row  Closure
	ramp *breaker.Ramp // nil until the closure has ended
	// unwritten is the closure that is not stored yet, nil if there is none, and answered when
	// the RESULT came that made it.
	unwritten *Closure
	answered  time.Time
	writing   bool
}

// maxRamp is how long a scope opens gradually at most.
const maxRamp = 15 * time.Second

// maxClosures bounds the closures that RESULTs make, since each process reads all of them every second
// and a worker may name any of its tenants. Beyond it a throttled attempt delays its own job alone.
// Those that operators make do not count: the operators of one tenant leave room for all others.
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
// since the reading began. It returns the keys of those that can be forgotten. The lock is held.
func (g *Gate) adoptClosures(found *rows, mark int, began Reading) (over []tablestore.Key) {
	known := g.closures
	g.closures = make(map[Scope]*closure, len(found.closures))
	for scope, c := range known {
		if c.unwritten != nil || g.changedSince(g.cfg.Service.key(kindClosed, scope), mark) {
			g.closures[scope] = c
		}
	}
	for _, row := range found.closures {
		if row.over(began.Wall) {
			over = append(over, g.cfg.Service.key(kindClosed, row.Scope))
		}
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
			g.cfg.Observe(Scope{Service: scope.Service}, Closed, (began.Mono - g.read.Mono).Seconds())
		}
	}
	return over
}

// Close closes what a throttled RESULT says, in this process at once, for at most [Config.MaxClose],
// and lets [Gate.Run] write the row. It reports false if the scope is closed for as long already, or
// if RESULTs have closed 1,000 others.
func (g *Gate) Close(of statemachine.Closure) bool {
	fresh := Closure{
		Scope: Scope{Service: of.Service, TenantID: of.TenantID}, Until: of.Until, Actor: of.Actor, Reason: of.Reason, Reported: true,
	}
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
	if next == known || c == nil && g.reported() >= maxClosures {
		return false
	}
	if c == nil {
		c = &closure{}
		g.closures[fresh.Scope] = c
	}
	c.row, c.ramp, c.unwritten, c.answered = *next, nil, next, of.ResultAt
	g.change(g.cfg.Service.key(kindClosed, fresh.Scope))
	g.ask()
	return true
}

// reported returns how many closures RESULTs have made. The lock is held.
func (g *Gate) reported() (n int) {
	for _, c := range g.closures {
		if c.row.Reported {
			n++
		}
	}
	return n
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
	g.change(g.cfg.Service.key(kindClosed, scope))
}

// ApplyClosure makes the view show a closure that this process has stored.
func (g *Gate) ApplyClosure(stored Closure) {
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
	g.change(g.cfg.Service.key(kindClosed, stored.Scope))
	wake, open := g.wake, !stored.Until.After(g.cfg.Clock().Wall)
	g.mu.Unlock()
	if open {
		wake(stored.Scope, -1)
	}
}

// onBus returns the scopes that hold back the publication of the directive: those of all step types if
// directives are published to Service Bus, otherwise none, since they hold back the claims.
func (g *Gate) onBus(target statemachine.Target) []Scope {
	if !g.cfg.Bus {
		return nil
	}
	return []Scope{{Service: target.Service}, {Service: target.Service, TenantID: target.TenantID}}
}
