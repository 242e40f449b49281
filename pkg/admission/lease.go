package admission

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// limit is a limit as this process sees it.
type limit struct {
	row    Limit // as it was last read or written
	etag   tablestore.ETag
	leases []*lease // with tokens that may be used, oldest first
	spent  []spending
	missed missed
	// leasing says that a lease is being written, or claims are being told of it. Before again
	// none is tried.
	leasing bool
	again   time.Duration
	clock   guard
	slots   slots // of the attempts that run at once
}

// lease is a number of tokens that can be used for a time.
type lease struct {
	limit *limit
	left  int
	wall  time.Time // The tokens lapse at the first of these two.
	mono  time.Duration
}

// usable reports whether the tokens can be used. By the wall clock a host that was suspended
// sees that they lapsed, by the other one a host whose wall clock was set back.
func (l *lease) usable(now Reading) bool { return now.Wall.Before(l.wall) && now.Mono < l.mono }

// spending is how many tokens were spent at about that time.
type spending struct {
	at time.Duration
	n  int
}

// missed counts the items that claims could not get, in the current second and the one before,
// because each waiting claim asks about once a second.
type missed struct {
	second      time.Duration
	now, before int
}

// add counts n places of a claim, but no more in all than so many items are ready.
func (m *missed) add(n, ready int, at time.Duration) {
	m.roll(at)
	m.now = max(m.now, min(m.now+n, ready))
}

func (m *missed) roll(at time.Duration) {
	second := at.Truncate(time.Second)
	switch second - m.second {
	case 0:
		return
	case time.Second:
		m.before = m.now
	default:
		m.before = 0
	}
	m.second, m.now = second, 0
}

// places is how many items claims lack.
func (m *missed) places(at time.Duration) int {
	m.roll(at)
	return max(m.now, m.before)
}

// served takes away n places, for which tokens were leased.
func (m *missed) served(n int) { m.now, m.before = max(m.now-n, 0), max(m.before-n, 0) }

// guard finds that the own clock is ahead of the others': what it wrote into the row is taken
// back by another process.
type guard struct {
	seen      time.Time // the greatest time in the row that this process saw, while its clock is trusted
	etag      tablestore.ETag
	unchanged time.Duration // since when the row has not changed
	ahead     bool
}

// look judges the clock by the row.
func (g *guard) look(row *Limit, etag tablestore.ETag, now Reading, skew time.Duration) {
	if etag != g.etag {
		g.etag, g.unchanged = etag, now.Mono
	}
	if row.At.Before(g.seen.Add(-wrong)) && row.At.Before(now.Wall) {
		g.ahead = true
	}
	if g.ahead && (now.Wall.Sub(row.At) <= wrong || now.Mono-g.unchanged >= row.span(skew)) {
		g.ahead, g.seen = false, row.At
	}
	if !g.ahead && row.At.After(g.seen) {
		g.seen = row.At
	}
}

// spend counts a spent token. The lock is held.
func (l *limit) spend(now time.Duration) {
	life := l.row.life()
	l.spent = slices.DeleteFunc(l.spent, func(s spending) bool { return now-s.at > life })
	if last := len(l.spent) - 1; last >= 0 && now-l.spent[last].at < life/16 {
		l.spent[last].n++
	} else {
		l.spent = append(l.spent, spending{at: now, n: 1})
	}
}

// want is how many tokens this process wants: one for each item that claims lack, and as many as
// it has spent in half the life of a token, for those to come: a process that slows down by as much
// still uses them, and tokens that lapse are missed for a whole window. If the window is long, it
// wants none for items to come. The lock is held.
func (l *limit) want(now time.Duration) int {
	want := l.missed.places(now)
	if l.row.Window > maxForesight {
		return want
	}
	for _, s := range l.spent {
		if now-s.at <= l.row.life()/2 {
			want += s.n
		}
	}
	return want
}

// maxForesight is the longest window for which tokens are leased for items to come.
const maxForesight = time.Minute

// ask lets [Gate.Run] look. It does not block.
func (g *Gate) ask() {
	select {
	case g.asked <- struct{}{}:
	default:
	}
}

// Run leases tokens for limits that lack some and writes closures, until ctx ends. It returns nil.
// The number of requests in flight is that of limits and closures: one for each.
func (g *Gate) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.asked:
		case <-timer.C:
		}
		next := g.start(ctx, &running)
		timer.Reset(next)
	}
}

// start begins the requests that are due, and returns when the next are.
func (g *Gate) start(ctx context.Context, running *sync.WaitGroup) (next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, wake := g.cfg.Clock(), g.wake
	next = time.Minute
	for scope, l := range g.limits {
		if l.row.MaxRunning > 0 {
			next = min(next, g.startJudging(ctx, running, scope, l, now.Mono))
		}
		switch {
		case l.leasing || l.missed.places(now.Mono) == 0:
		case l.again > now.Mono:
			next = min(next, l.again-now.Mono)
		default:
			l.leasing = true
			running.Go(func() {
				if granted := g.lease(ctx, scope, l); granted > 0 {
					wake(scope, granted)
				}
				g.mu.Lock()
				l.leasing = false
				close(g.leased)
				g.leased = make(chan struct{})
				g.ask() // Claims may have missed tokens since.
				g.mu.Unlock()
			})
		}
	}
	for scope, c := range g.closures {
		if fresh, answered := c.unwritten, c.answered; fresh != nil && !c.writing {
			c.writing = true
			running.Go(func() { g.write(ctx, scope, c, fresh, answered) })
		}
	}
	return next
}

// maxLeaseTries bounds how often a lease is tried again at once after a conflict.
const maxLeaseTries = 4

// retryLease is how long a process waits after a lease that failed.
const retryLease = 200 * time.Millisecond

// lease leases tokens of the limit, and returns how many.
func (g *Gate) lease(ctx context.Context, scope Scope, l *limit) int {
	for range maxLeaseTries {
		g.mu.Lock()
		now := g.cfg.Clock()
		want, places := max(l.want(now.Mono), 1), l.missed.places(now.Mono)
		l.clock.look(&l.row, l.etag, now, g.cfg.Skew)
		if l.clock.ahead || g.cfg.ClockWrong() {
			l.again = now.Mono + time.Second
			g.mu.Unlock()
			return 0
		}
		next, granted := l.row.lease(now.Wall, want, g.cfg.Skew)
		etag := l.etag
		if granted == 0 {
			_, leaves := l.row.Used(now.Wall, g.cfg.Skew)
			l.again = now.Mono + max(leaves.Sub(now.Wall), 0) + time.Duration(g.cfg.Random()*float64(50*time.Millisecond))
		}
		if next == nil {
			g.mu.Unlock()
			return 0
		}
		g.mu.Unlock()

		written, err := g.cfg.Service.replace(ctx, next, etag)
		if err == nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			l.row, l.etag = *next, written
			g.change(g.cfg.Service.key(kindLimit, scope))
			l.clock.look(&l.row, written, now, g.cfg.Skew)
			if granted == 0 {
				return 0
			}
			l.missed.served(max(places, granted)) // What claims missed during the write is leased next.
			// The row holds whole milliseconds, so the life may begin one earlier.
			life := next.life() - time.Millisecond
			l.leases = append(l.leases, &lease{limit: l, left: granted, wall: now.Wall.Add(life), mono: now.Mono + life})
			g.observe(l, Granted, float64(granted))
			return granted
		}
		conflict := errors.Is(err, tablestore.ErrConflict) || errors.Is(err, tablestore.ErrNotFound)
		if conflict {
			g.mu.Lock()
			g.observe(l, Conflicts, 1)
			g.mu.Unlock()
		} else {
			g.cfg.Logger.WarnContext(ctx, "tokens of a limit not leased", "limit_id", scope.ID(), "error", err)
		}
		if !g.readAgain(ctx, scope, l) || !conflict {
			break
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l.again = g.cfg.Clock().Mono + retryLease
	return 0
}

// readAgain reads the limit's row after a lease that failed, and forgets a limit that was
// deleted. It reports whether the row is known.
func (g *Gate) readAgain(ctx context.Context, scope Scope, l *limit) bool {
	row, etag, err := g.cfg.Service.get(ctx, scope)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(err, tablestore.ErrNotFound):
		if g.limits[scope] == l {
			delete(g.limits, scope)
			g.cfg.Observe(scope, Deleted, 0)
		}
		return false
	case err != nil:
		g.cfg.Logger.WarnContext(ctx, "limit not read", "limit_id", scope.ID(), "error", err)
		return false
	}
	g.change(g.cfg.Service.key(kindLimit, scope)) // A refresh that began before is older.
	l.adopt(row, etag, g.cfg.Clock(), g.cfg.Skew)
	return true
}
