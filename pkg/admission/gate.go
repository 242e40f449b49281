package admission

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

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
	// Bus says that directives are published to Service Bus, where closures hold back their publication:
	// otherwise they hold back claims.
	Bus bool
	// Expired is called after the gate resumed a pause at its time. Optional.
	Expired func(context.Context, Pause)
	// Skew is by how much the clocks of two processes may differ; 0 if there is one process.
	Skew time.Duration
	// Runs holds the rows of what runs at once. Optional; without it no such limit is kept.
	Runs Runs
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
	// Observe is told of each change of a limit's or closure's figures, and of how many run now. Optional. It must not
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
	Reclaimed Figure = "reclaimed" // run slots that a crash had left
	Running   Figure = "running"   // how many attempts run now
	Closed    Figure = "closed"    // seconds for which a scope was closed
	Deleted   Figure = "deleted"   // nothing: the limit is gone, and with it its figures
)

// Gate says whether a directive may be dispatched or started now, by this process's view of the rows,
// and spends the tokens that this process has leased. It is safe for concurrent use.
// It calls the store only in its [Gate.Refresh], [Gate.RefreshRuns] and [Gate.Run]. A nil gate holds no claim back.
//
// It is asked at four points: by the ledger when it makes a directive ([Gate.HoldsNew]), by the relay before
// it publishes one ([Gate.Admit]), and by the pull queue before it hands out what was published
// earlier ([Gate.HoldsQueued]) and when it starts an attempt ([Gate.Take]).
type Gate struct {
	cfg   Config
	asked chan struct{} // full if a limit wants tokens, or a closure is to be written

	mu       sync.Mutex // Guards all below. Not held during a request of the store.
	holds    map[statemachine.Scope]*hold
	limits   map[Scope]*limit
	closures map[Scope]*closure
	read     Reading // when the refresh began that made the view
	changes  int     // number of changes of rows by this process
	// changed is the number of the last change of each row, unless the view was read after it.
	changed map[tablestore.Key]int
	leased  chan struct{} // closed, and replaced, when a lease ends
	// wake is told that so many tokens of the scope can be used now.
	wake func(scope Scope, tokens int)
}

// maxAge is how old a view may be: beyond it the process does not know what is paused, closed or
// limited, and neither makes directives ready nor hands them out.
const maxAge = 5 * time.Second

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
	if cfg.Expired == nil {
		cfg.Expired = func(context.Context, Pause) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gate{
		cfg: cfg, asked: make(chan struct{}, 1), changed: map[tablestore.Key]int{}, wake: func(Scope, int) {},
		holds: map[statemachine.Scope]*hold{}, limits: map[Scope]*limit{}, closures: map[Scope]*closure{},
		leased: make(chan struct{}),
	}
	err := g.Refresh(ctx)
	if err == nil {
		err = g.RefreshRuns(ctx)
	}
	return g, err
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

// Refresh reads the rows, resumes the pauses whose time is over, and deletes what no longer holds anything
// back. It is to be called every second. What it has read of a row is dropped if this process has changed the row
// since: it may be older. After an error the view is unchanged.
func (g *Gate) Refresh(ctx context.Context) error {
	if err := g.refresh(ctx); err != nil {
		return fmt.Errorf("refresh the gate: %w", err)
	}
	return nil
}

func (g *Gate) refresh(ctx context.Context) error {
	g.mu.Lock()
	mark := g.changes
	g.mu.Unlock()
	began := g.cfg.Clock()
	found, err := g.cfg.Service.scan(ctx)
	if err != nil {
		return err
	}
	over := g.adopt(&found, mark, began)
	for _, key := range over[:min(len(over), maxForgotten)] {
		if err := g.cfg.Service.forget(ctx, key, found.etags[key]); err != nil {
			return err
		}
	}
	return g.resumeExpired(ctx, found.pauses, began.Wall)
}

// maxForgotten bounds the rows that one refresh deletes: the view ages meanwhile.
const maxForgotten = 10

// change notes that this process has changed a row. The lock is held.
func (g *Gate) change(key tablestore.Key) {
	g.changes++
	g.changed[key] = g.changes
}

// changedSince reports whether this process has changed the row after so many changes. The lock is held.
func (g *Gate) changedSince(key tablestore.Key, mark int) bool { return g.changed[key] > mark }

// adopt makes the rows the view that were read after so many changes of this process, unless a refresh that began
// later has made it already. It returns the keys of rows that hold nothing back any more.
func (g *Gate) adopt(found *rows, mark int, began Reading) (over []tablestore.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if began.Mono < g.read.Mono {
		return nil
	}
	over = append(g.adoptPauses(found, mark, began.Wall), g.adoptClosures(found, mark, began)...)
	g.adoptLimits(found, mark, began)
	maps.DeleteFunc(g.changed, func(_ tablestore.Key, change int) bool { return change <= mark })
	g.read = began
	return over
}

// adoptLimits makes the rows the view of limits, except those that this process has written
// since the reading began. The lock is held.
func (g *Gate) adoptLimits(found *rows, mark int, began Reading) {
	known, ran := g.limits, []Scope{}
	for scope, l := range known {
		if l.row.MaxRunning > 0 {
			ran = append(ran, scope)
		}
	}
	g.limits = make(map[Scope]*limit, len(found.limits))
	for _, row := range found.limits {
		l, key := known[row.Scope], g.cfg.Service.key(kindLimit, row.Scope)
		if !g.changedSince(key, mark) {
			if l == nil {
				l = &limit{}
			}
			l.adopt(row, found.etags[key], g.cfg.Clock(), g.cfg.Skew)
		}
		if l != nil { // Otherwise this process has found that it was deleted.
			g.limits[row.Scope] = l
		}
	}
	for scope := range known {
		if g.limits[scope] == nil {
			g.cfg.Observe(scope, Deleted, 0)
		}
	}
	for _, scope := range ran {
		if l := g.limits[scope]; l != nil && l.row.MaxRunning == 0 {
			g.cfg.Observe(scope, Running, 0)
		}
	}
	for scope, l := range g.limits {
		if l.row.MaxRunning > 0 {
			g.cfg.Observe(scope, Running, float64(len(l.slots.taken)))
		}
		if lapsed := l.dropLapsed(began); lapsed > 0 {
			g.cfg.Observe(scope, Lapsed, float64(lapsed))
		}
	}
}

// dropLapsed forgets the leases that are no longer usable and returns how many tokens were left in them.
func (l *limit) dropLapsed(now Reading) (lapsed int) {
	l.leases = slices.DeleteFunc(l.leases, func(one *lease) bool {
		if one.usable(now) {
			return false
		}
		lapsed += one.left
		one.left = 0
		return true
	})
	return lapsed
}

// observe tells of a change of a limit's figures, unless the limit is gone, and with it its figures. The lock is held.
func (g *Gate) observe(l *limit, figure Figure, n float64) {
	if scope := l.row.Scope; g.limits[scope] == l {
		g.cfg.Observe(scope, figure, n)
	}
}

// adopt takes over a row that was read. Another configuration may have tokens at once.
func (l *limit) adopt(row Limit, etag tablestore.ETag, now Reading, skew time.Duration) {
	if !l.row.CreatedAt.Equal(row.CreatedAt) { // It was made again: what is known of the deleted one does not concern it.
		*l = limit{leasing: l.leasing}
	}
	if row.MaxRunning == 0 {
		l.slots = slots{}
	}
	if row.Count != l.row.Count || row.Window != l.row.Window {
		l.again = 0
	}
	if row.Window < l.row.Window {
		l.leases = nil // They live for longer than the new window takes them into account.
	}
	l.row, l.etag = row, etag
	l.clock.look(&row, etag, now, skew)
}

// Stale reports whether the view is too old to go by, so that nothing is dispatched or started.
func (g *Gate) Stale() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stale(g.cfg.Clock())
}

// stale is [Gate.Stale]. By the wall clock a host that was suspended sees that the view is old; after that clock
// was set, one refresh corrects it. The lock is held.
func (g *Gate) stale(now Reading) bool {
	return now.Mono-g.read.Mono > maxAge || now.Wall.Sub(g.read.Wall).Abs() > maxAge
}

// Used returns how many tokens of a limit count now, those included that are leased and not spent.
func (g *Gate) Used(l *Limit) int {
	used, _ := l.Used(g.cfg.Clock().Wall, g.cfg.Skew)
	return used
}

// Token is the right to start one directive. The zero token is that of a directive without
// limits. It belongs to one claim, and is not safe for concurrent use.
type Token struct {
	gate   *Gate
	leases []*lease
	runs   []run
}

// Limited reports whether the directive has a limit.
func (t *Token) Limited() bool { return len(t.leases)+len(t.runs) > 0 }

// Take takes a token and a run slot of each limit of the directive, or none of them. ok is false if a closure
// or a limit holds the directive back, and by is its scope, or the directive's own if the view is
// too old. The limit that lacks tokens is asked to lease some for that many places of the claim, but
// for no more items than ready says are ready under it; nil means that there are enough.
func (g *Gate) Take(
	service, stepType, tenantID string, places int, ready func(Scope) int,
) (token Token, by Scope, ok bool) {
	if g == nil {
		return Token{}, Scope{}, true
	}
	for {
		token, by, lacks, ok := g.take(covering(service, stepType, tenantID))
		if !lacks {
			return token, by, ok
		}
		most := math.MaxInt
		if ready != nil {
			most = ready(by) // It may ask this gate, so the lock is not held.
		}
		if g.Ask(by, places, most) {
			return token, by, ok
		}
	}
}

// Ask asks for tokens of a limit for that many places of a claim, but for no more than so many
// items. It reports false, and asks for none, if the limit has tokens now: more would lapse.
func (g *Gate) Ask(scope Scope, places, most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, l := g.cfg.Clock(), g.limits[scope]
	switch {
	case l == nil:
		return true
	case l.first(now) != nil:
		return false
	}
	l.missed.add(places, most, now.Mono)
	g.ask()
	return true
}

// take is [Gate.Take] without the request for tokens: lacks says that the limit of that scope has
// none.
func (g *Gate) take(scopes [4]Scope) (token Token, by Scope, lacks, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock()
	switch {
	case g.stale(now):
		return Token{}, scopes[0], false, false
	case len(g.limits)+len(g.closures) == 0:
		return Token{}, Scope{}, false, true
	}
	ramps, by, open := g.ramps(scopes[:], now.Wall)
	if !open {
		return Token{}, by, false, false
	}
	if by, full := g.full(scopes, now); full {
		return Token{}, by, false, false
	}
	leases, missed, by := g.firsts(scopes, now)
	if missed != nil {
		return Token{}, by, true, false
	}
	for _, one := range leases {
		one.left--
	}
	for _, ramp := range ramps {
		ramp.Take(1)
	}
	runs := g.reserve(scopes)
	if len(leases)+len(runs) == 0 {
		return Token{}, Scope{}, false, true
	}
	return Token{gate: g, leases: leases, runs: runs}, Scope{}, false, true
}

// Leasing reports whether tokens of the limit may come soon: they are being leased, or asked for
// and no window has to pass.
func (g *Gate) Leasing(scope Scope) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, now := g.limits[scope], g.cfg.Clock()
	return l != nil && (l.leasing || l.again <= now.Mono && l.missed.places(now.Mono) > 0)
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

// firsts returns a lease with a token of each of the limits, or the limit that lacks one: the
// narrowest, so that a tenant at its own limit leases no tokens of the service, but before it one
// that cannot lease any now, or tokens of the others would lapse meanwhile. The lock is held.
func (g *Gate) firsts(scopes [4]Scope, now Reading) (leases []*lease, missed *limit, by Scope) {
	for _, scope := range scopes {
		l := g.limits[scope]
		if l == nil || l.row.Count == 0 {
			continue
		}
		one := l.first(now)
		switch {
		case one != nil:
			leases = append(leases, one)
		case missed == nil, missed.again <= now.Mono && l.again > now.Mono:
			missed, by = l, scope
		}
	}
	return leases, missed, by
}

// Leasable reports whether a directive could be started now, or lacks only tokens for which no
// window has to pass, so that it is worth waking a claim for it. It asks for none: a claim that is woken asks
// for as many as it has places.
func (g *Gate) Leasable(service, stepType, tenantID string) bool {
	_, _, ok := g.Lacks(service, stepType, tenantID)
	return ok
}

// Lacks is [Gate.Leasable]; tokens says that the directive lacks those of that scope.
func (g *Gate) Lacks(service, stepType, tenantID string) (of Scope, tokens, ok bool) {
	if g == nil {
		return Scope{}, false, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	missed, now, ok := g.lacks(service, stepType, tenantID)
	if missed == nil {
		return Scope{}, false, ok
	}
	return missed.row.Scope, true, missed.again <= now.Mono
}

// Leased returns a channel that is closed when the next lease of tokens ends, nil if there is no limit.
func (g *Gate) Leased() <-chan struct{} {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.limits) == 0 {
		return nil
	}
	return g.leased
}

// lacks returns the limit that lacks a token for a start, nil if none does, and the time. ok is false if
// something else holds the start back. The lock is held.
func (g *Gate) lacks(service, stepType, tenantID string) (missed *limit, now Reading, ok bool) {
	now = g.cfg.Clock()
	switch {
	case g.stale(now):
		return nil, now, false
	case len(g.limits)+len(g.closures) == 0:
		return nil, now, true
	}
	scopes := covering(service, stepType, tenantID)
	if _, _, open := g.ramps(scopes[:], now.Wall); !open {
		return nil, now, false
	}
	if _, full := g.full(scopes, now); full {
		return nil, now, false
	}
	_, missed, _ = g.firsts(scopes, now)
	return missed, now, true
}

// Covers reports whether a limit or a closure covers the directive, whether or not it holds it
// back now.
func (g *Gate) Covers(service, stepType, tenantID string) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, scopes := g.cfg.Clock(), covering(service, stepType, tenantID)
	limited := func(scope Scope) bool { return g.limits[scope] != nil }
	return g.stale(now) || g.closed(scopes[:], now.Wall) || slices.ContainsFunc(scopes[:], limited)
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
	if !t.Limited() {
		return
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	for _, one := range t.leases {
		one.left++
	}
	for _, one := range t.runs {
		one.limit.slots.giveBack(one.no)
	}
	t.leases, t.runs = nil, nil
}

// Spend counts the token as used: a start was sent that took effect, or may take effect.
func (t *Token) Spend() {
	if !t.Limited() {
		return
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	now := t.gate.cfg.Clock().Mono
	for _, one := range t.leases {
		one.limit.spend(now)
		t.gate.observe(one.limit, Spent, 1)
	}
	for _, one := range t.runs {
		one.limit.slots.keep(one.no, now)
	}
	t.leases, t.runs = nil, nil
}

// Blocks returns what holds the directive back, by this process's view, or nil: the closure that
// lasts longest, else the limit whose next token comes last, else the narrowest under which as many
// attempts run as it allows. Tokens of other processes count as used.
func (g *Gate) Blocks(service, stepType, tenantID string) *statemachine.StartLimit {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock().Wall
	var found *statemachine.StartLimit
	for _, scope := range covering(service, stepType, tenantID) {
		if c := g.closures[scope]; c != nil && now.Before(c.row.Until) {
			if found == nil || !found.Closed || c.row.Until.After(found.Until) {
				found = &statemachine.StartLimit{
					ID: scope.ID(), Actor: c.row.Actor, Reason: c.row.Reason,
					Closed: true, OfTenant: scope.TenantID != "", Until: c.row.Until,
				}
			}
			continue
		}
		l := g.limits[scope]
		if l == nil || found != nil && found.Closed {
			continue
		}
		of := statemachine.StartLimit{ID: scope.ID(), Actor: l.row.Actor, Reason: l.row.Reason, OfTenant: scope.TenantID != ""}
		used, leaves := l.row.Used(now, g.cfg.Skew)
		switch {
		case l.row.Count > 0 && used >= l.row.Count && (found == nil || leaves.After(found.Until)):
			of.Until = leaves
			found = &of
		case found == nil && l.row.MaxRunning > 0 && l.slots.full(l.row.MaxRunning):
			of.MaxRunning = l.row.MaxRunning
			found = &of
		}
	}
	return found
}
