package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Reading is one reading of a host's clocks: of the wall clock, and of one that never jumps.
type Reading struct {
	Wall time.Time
	Mono time.Duration
}

// hostClocks reads the host's clocks.
func hostClocks() func() Reading {
	started := time.Now()
	return func() Reading {
		now := time.Now()
		return Reading{Wall: now.Round(0).UTC(), Mono: now.Sub(started)}
	}
}

// Config configures a [Gate].
type Config struct {
	// Service holds the rows. Required.
	Service *Service
	// Skew is by how much the clocks of two processes may differ; 0 if there is one process.
	Skew time.Duration
	// MaxClose is how long a RESULT can close a scope at most. Optional. Defaults to an hour.
	MaxClose time.Duration
	// Clock reads the host's clocks. Optional.
	Clock func() Reading
	// ClockWrong reports that the host's clock is known to be wrong: no token is leased then.
	// Optional. It must not block.
	ClockWrong func() bool
	// Random returns numbers in [0, 1), for the delays of leases. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Observe is told of each change of a limit's or closure's figures. Optional. It must not
	// block.
	Observe func(scope Scope, figure Figure, n float64)
	// Logger is told of rows that could not be written. Optional.
	Logger *slog.Logger
}

// Figure is what a [Gate] counts of a limit or a closure.
type Figure string

// The figures.
const (
	Granted   Figure = "granted"   // tokens that were leased
	Spent     Figure = "spent"     // starts
	Lapsed    Figure = "lapsed"    // tokens that were not used in time
	Conflicts Figure = "conflicts" // leases that another process was faster with
	Closed    Figure = "closed"    // seconds for which a scope was closed
)

// Gate says whether a directive may be started now, by this process's view of the limits and
// closures, and spends the tokens that this process has leased. It is safe for concurrent use.
// It calls the store only in its [Gate.Refresh] and [Gate.Run]. A nil gate holds nothing back.
type Gate struct {
	cfg   Config
	asked chan struct{} // full if a limit wants tokens, or a closure is to be written

	mu       sync.Mutex // Guards all below. Not held during a request of the store.
	limits   map[Scope]*limit
	closures map[Scope]*closure
	read     time.Duration // when the refresh began that made the view
	// wake is told that so many tokens of the scope can be used now.
	wake func(scope Scope, tokens int)
}

// maxAge is how old a view may be: beyond it the process does not know what is closed or
// limited, and hands out nothing.
const maxAge = 5 * time.Second

// limit is a limit as this process sees it.
type limit struct {
	row    Limit // as it was last read or written
	etag   tablestore.ETag
	leases []*lease // with tokens that may be used, oldest first
	writes int      // number of leases that this process wrote
	spent  []spending
	missed missed
	// leasing says that a lease is being written. Before again none is tried.
	leasing bool
	again   time.Duration
	clock   guard
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

func (m *missed) add(n int, at time.Duration) {
	m.roll(at)
	m.now += n
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

// NewGate returns a gate that has read the rows once. The error is the store's.
func NewGate(ctx context.Context, cfg Config) (*Gate, error) {
	cfg.MaxClose = cmp.Or(cfg.MaxClose, time.Hour)
	if cfg.Clock == nil {
		cfg.Clock = hostClocks()
	}
	if cfg.ClockWrong == nil {
		cfg.ClockWrong = func() bool { return false }
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Scope, Figure, float64) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gate{
		cfg: cfg, asked: make(chan struct{}, 1), limits: map[Scope]*limit{}, closures: map[Scope]*closure{},
		wake: func(Scope, int) {},
	}
	return g, g.Refresh(ctx)
}

// Wake sets what is told that so many tokens of the scope can be used now, or -1 if the scope
// has opened. It must be set before [Gate.Run].
func (g *Gate) Wake(wake func(scope Scope, tokens int)) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wake = wake
}

// Refresh reads the rows, and deletes closures that are long over. It is to be called every
// second. After an error the view is unchanged.
func (g *Gate) Refresh(ctx context.Context) error {
	g.mu.Lock()
	writes := make(map[Scope]int, len(g.limits))
	for scope, l := range g.limits {
		writes[scope] = l.writes
	}
	changes := make(map[Scope]int, len(g.closures))
	for scope, c := range g.closures {
		changes[scope] = c.changes
	}
	g.mu.Unlock()
	began := g.cfg.Clock()
	found, err := g.cfg.Service.scan(ctx)
	if err != nil {
		return fmt.Errorf("refresh the gate of the limits: %w", err)
	}
	g.adoptLimits(&found, writes, began)
	g.adoptClosures(&found, changes, began)
	for i := range found.closures {
		one := &found.closures[i]
		if !one.over(began.Wall) {
			continue
		}
		if err := g.cfg.Service.forget(ctx, one.Scope, found.etags[g.cfg.Service.key(kindClosed, one.Scope)]); err != nil {
			return fmt.Errorf("refresh the gate of the limits: %w", err)
		}
	}
	return nil
}

// adoptLimits makes the rows the view of limits, except those that this process has written
// since the reading began.
func (g *Gate) adoptLimits(found *rows, writes map[Scope]int, began Reading) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.limits
	g.limits = make(map[Scope]*limit, len(found.limits))
	for _, row := range found.limits {
		l := known[row.Scope]
		if l == nil || !l.row.CreatedAt.Equal(row.CreatedAt) {
			l = &limit{}
		}
		if l.writes == writes[row.Scope] {
			l.adopt(row, found.etags[g.cfg.Service.key(kindLimit, row.Scope)], g.cfg.Clock(), g.cfg.Skew)
		}
		g.limits[row.Scope] = l
	}
	g.read = began.Mono
	for scope, l := range g.limits {
		lapsed := 0
		l.leases = slices.DeleteFunc(l.leases, func(one *lease) bool {
			if one.usable(began) {
				return false
			}
			lapsed += one.left
			one.left = 0
			return true
		})
		if lapsed > 0 {
			g.cfg.Observe(scope, Lapsed, float64(lapsed))
		}
	}
}

// adopt takes over a row that was read.
func (l *limit) adopt(row Limit, etag tablestore.ETag, now Reading, skew time.Duration) {
	l.row, l.etag = row, etag
	l.clock.look(&row, etag, now, skew)
}

// adoptClosures makes the rows the view of closures, except those that this process has changed
// since the reading began.
func (g *Gate) adoptClosures(found *rows, changes map[Scope]int, began Reading) {
	g.mu.Lock()
	defer g.mu.Unlock()
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
		if c.row.Until.After(began.Wall) {
			g.cfg.Observe(scope, Closed, 1)
		}
	}
}

// Token is the right to start one directive. The zero token is that of a directive without
// limits. It belongs to one claim, and is not safe for concurrent use.
type Token struct {
	gate   *Gate
	leases []*lease
}

// Limited reports whether the directive has a limit.
func (t *Token) Limited() bool { return len(t.leases) > 0 }

// Take takes a token of each limit of the directive, or none of them. ok is false if a closure
// or a limit holds the directive back, and by is its scope, or the directive's own if the view is
// too old. The limit that lacks tokens is asked to lease some for that many places of the claim.
func (g *Gate) Take(service, stepType, tenantID string, places int) (token Token, by Scope, ok bool) {
	if g == nil {
		return Token{}, Scope{}, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	switch {
	case now.Mono-g.read > maxAge:
		return Token{}, Scope{service, stepType, tenantID}, false
	case len(g.limits)+len(g.closures) == 0:
		return Token{}, Scope{}, true
	}
	var ramps []*breaker.Ramp
	scopes := covering(service, stepType, tenantID)
	for _, scope := range scopes {
		c := g.closures[scope]
		if c == nil {
			continue
		}
		if !c.room(now.Wall) {
			return Token{}, scope, false
		}
		if now.Wall.Before(c.row.opening()) {
			ramps = append(ramps, c.ramp)
		}
	}
	var leases []*lease
	for _, scope := range scopes {
		l := g.limits[scope]
		if l == nil {
			continue
		}
		one := l.first(now)
		if one == nil {
			l.missed.add(places, now.Mono)
			g.ask()
			return Token{}, scope, false
		}
		leases = append(leases, one)
	}
	for _, one := range leases {
		one.left--
	}
	for _, ramp := range ramps {
		ramp.Take(1)
	}
	if len(leases) == 0 {
		return Token{}, Scope{}, true
	}
	return Token{gate: g, leases: leases}, Scope{}, true
}

// Leasing reports whether tokens of the limit may come soon, since they are asked for and no
// window has to pass.
func (g *Gate) Leasing(scope Scope) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, now := g.limits[scope], g.cfg.Clock()
	return l != nil && l.again <= now.Mono && l.missed.places(now.Mono) > 0
}

// first returns the oldest lease with a token, nil if there is none. The lock is held.
func (l *limit) first(now Reading) *lease {
	for _, one := range l.leases {
		if one.left > 0 && one.usable(now) {
			return one
		}
	}
	return nil
}

// Offers reports whether a directive could be started now, so that it is worth waking a claim
// for it. If only a token is missing, it asks for one.
func (g *Gate) Offers(service, stepType, tenantID string) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	if now.Mono-g.read > maxAge {
		return false
	}
	if len(g.limits)+len(g.closures) == 0 {
		return true
	}
	scopes := covering(service, stepType, tenantID)
	for _, scope := range scopes {
		if c := g.closures[scope]; c != nil && !c.room(now.Wall) {
			return false
		}
	}
	for _, scope := range scopes {
		if l := g.limits[scope]; l != nil && l.first(now) == nil {
			if l.missed.places(now.Mono) == 0 {
				l.missed.add(1, now.Mono)
			}
			g.ask()
			return false
		}
	}
	return true
}

// Covers reports whether a limit or a closure covers the directive, whether or not it holds it
// back now.
func (g *Gate) Covers(service, stepType, tenantID string) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	if now.Mono-g.read > maxAge {
		return true
	}
	for _, scope := range covering(service, stepType, tenantID) {
		if g.limits[scope] != nil {
			return true
		}
		if c := g.closures[scope]; c != nil && now.Wall.Before(c.row.opening()) {
			return true
		}
	}
	return false
}

// Usable reports whether the directive may be started with the token at this moment. It is to be
// asked immediately before each sending of the start's commit.
func (t *Token) Usable() bool {
	if len(t.leases) == 0 {
		return true
	}
	now := t.gate.cfg.Clock()
	for _, one := range t.leases {
		if !one.usable(now) {
			return false
		}
	}
	return true
}

// Return gives the token back: no start was sent with it, or none that took effect.
func (t *Token) Return() {
	if len(t.leases) == 0 {
		return
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	for _, one := range t.leases {
		one.left++
	}
	t.leases = nil
}

// Spend counts the token as used: a start was sent that took effect, or may take effect.
func (t *Token) Spend() {
	if len(t.leases) == 0 {
		return
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	now := t.gate.cfg.Clock().Mono
	for _, one := range t.leases {
		one.limit.spend(now)
		t.gate.cfg.Observe(one.limit.row.Scope, Spent, 1)
	}
	t.leases = nil
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

// want is how many tokens this process wants: as many as it has spent while a token lives, and
// one for each item that claims lack. The lock is held.
func (l *limit) want(now time.Duration) int {
	want := l.missed.places(now)
	for _, s := range l.spent {
		if now-s.at <= l.row.life() {
			want += s.n
		}
	}
	return want
}

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
	now := g.cfg.Clock()
	next = time.Minute
	for scope, l := range g.limits {
		switch {
		case l.leasing || l.missed.places(now.Mono) == 0:
		case l.again > now.Mono:
			next = min(next, l.again-now.Mono)
		default:
			l.leasing = true
			running.Go(func() {
				granted := g.lease(ctx, scope, l)
				g.mu.Lock()
				l.leasing = false
				g.ask() // Claims may have missed tokens since.
				wake := g.wake
				g.mu.Unlock()
				if granted > 0 {
					wake(scope, granted)
				}
			})
		}
	}
	for scope, c := range g.closures {
		if c.unwritten != nil && !c.writing {
			c.writing = true
			running.Go(func() { g.write(ctx, scope, c) })
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
		want := max(l.want(now.Mono), 1)
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
			l.writes++
			l.clock.look(&l.row, written, now, g.cfg.Skew)
			if granted == 0 {
				return 0
			}
			l.missed = missed{}
			// The row holds whole milliseconds, so the life may begin one earlier.
			life := next.life() - time.Millisecond
			l.leases = append(l.leases, &lease{limit: l, left: granted, wall: now.Wall.Add(life), mono: now.Mono + life})
			g.cfg.Observe(scope, Granted, float64(granted))
			return granted
		}
		conflict := errors.Is(err, tablestore.ErrConflict) || errors.Is(err, tablestore.ErrNotFound)
		if conflict {
			g.cfg.Observe(scope, Conflicts, 1)
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
		}
		return false
	case err != nil:
		g.cfg.Logger.WarnContext(ctx, "limit not read", "limit_id", scope.ID(), "error", err)
		return false
	}
	l.writes++ // A refresh that began before is older.
	l.adopt(row, etag, g.cfg.Clock(), g.cfg.Skew)
	return true
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

// write stores a closure of this process.
func (g *Gate) write(ctx context.Context, scope Scope, c *closure) {
	g.mu.Lock()
	fresh, answered := c.unwritten, c.answered
	g.mu.Unlock()
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
	c.row, c.unwritten = stored, nil
	c.changes++
	wake := g.wake
	g.mu.Unlock()
	wake(stored.Scope, -1)
}

// Blocks returns what holds the directive back, by this process's view, or nil: the closure that
// lasts longest, else the limit whose next token comes last. Tokens of other processes count as
// used.
func (g *Gate) Blocks(service, stepType, tenantID string) *statemachine.StartLimit {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock().Wall
	var found *statemachine.StartLimit
	for _, scope := range covering(service, stepType, tenantID) {
		if c := g.closures[scope]; c != nil && now.Before(c.row.Until) {
			if found == nil || !found.Closed || c.row.Until.After(found.Until) {
				found = &statemachine.StartLimit{
					ID: scope.ID(), Actor: c.row.Actor, Reason: c.row.Reason, Closed: true, OfTenant: scope.TenantID != "", Until: c.row.Until,
				}
			}
			continue
		}
		l := g.limits[scope]
		if l == nil || found != nil && found.Closed {
			continue
		}
		if used, leaves := l.row.Used(now, g.cfg.Skew); used >= l.row.Count && (found == nil || leaves.After(found.Until)) {
			found = &statemachine.StartLimit{
				ID: scope.ID(), Actor: l.row.Actor, Reason: l.row.Reason, OfTenant: scope.TenantID != "", Until: leaves,
			}
		}
	}
	return found
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

// Use is how much of a limit is used.
type Use struct {
	Limit

	Used int
}

// Uses returns the limits with their use, by this process's view, in the order of their ids.
func (g *Gate) Uses() []Use {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock().Wall
	uses := make([]Use, 0, len(g.limits))
	for _, l := range g.limits {
		used, _ := l.row.Used(now, g.cfg.Skew)
		uses = append(uses, Use{l.row, used})
	}
	slices.SortFunc(uses, func(a, b Use) int { return cmp.Compare(a.ID(), b.ID()) })
	return uses
}
