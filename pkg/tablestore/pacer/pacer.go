package pacer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// leastCalls is the smallest limit: a slow store still gets some calls at once.
	leastCalls = 8
	// mostCalls is the limit at first, which a healthy store never reaches.
	mostCalls = 1024
	// slowFor is how long after a timeout the store counts as slow.
	slowFor = time.Minute
)

// Config configures a [Store].
type Config struct {
	// Deadline is how long a call may take at first. Optional. Defaults to 10 s.
	Deadline time.Duration
	// MaxDeadline is how long a call may take while calls time out. Optional. Defaults to
	// three times Deadline.
	MaxDeadline time.Duration
	// Observe is told of each get, scan and commit of the store that its caller did not give up:
	// how long it took, and its error. Optional. It must be safe for concurrent use.
	Observe func(operation string, took time.Duration, err error)
}

// Store is a table store with a pace. It is safe for concurrent use.
type Store struct {
	tablestore.Store

	cfg Config

	mu       sync.Mutex // Guards all below. Not held during a call.
	limit    float64    // how many calls may be under way
	deadline time.Duration
	underway int
	// lines holds the calls that wait, by loop, in the order of their arrival, but those of
	// operations that have begun come first. turns holds the loops in the order in which they get
	// the next places; the requests, whose loop is "", get every second one.
	//
	//	invariant: len(turns) > 0 ⇒ underway ≥ limit
	lines    map[string][]call
	turns    []string
	looped   bool // a loop got the last place
	waiting  int
	timeouts int64
	slowedAt time.Time // when a timeout last changed the pace
	timedOut time.Time // when a call last timed out
	answered time.Time // when one was last answered
	slow     time.Time // when the store became slow
}

// call is a call that waits for a place.
type call struct {
	place chan struct{} // closed when the call has a place
	begun bool          // its operation has made a call
}

// New returns the store with a pace. The result is a [tablestore.AtomicStore] if the store is
// one.
func New(store tablestore.Store, cfg Config) tablestore.Store {
	cfg.Deadline = cmp.Or(cfg.Deadline, 10*time.Second)
	cfg.MaxDeadline = max(cmp.Or(cfg.MaxDeadline, 3*cfg.Deadline), cfg.Deadline)
	if cfg.Observe == nil {
		cfg.Observe = func(string, time.Duration, error) {}
	}
	paced := &Store{Store: store, cfg: cfg, limit: mostCalls, deadline: cfg.Deadline, lines: map[string][]call{}}
	if atomic, ok := store.(tablestore.AtomicStore); ok {
		return &atomicStore{paced, atomic}
	}
	return paced
}

// Unwrap implements [tablestore.Wrapper].
func (s *Store) Unwrap() tablestore.Store { return s.Store }

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	return paced(ctx, s, "get", func(ctx context.Context) (tablestore.Row, error) { return s.Store.Get(ctx, key) })
}

// Scan implements [tablestore.Store].
func (s *Store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	return paced(ctx, s, "scan", func(ctx context.Context) (tablestore.Page, error) { return s.Store.Scan(ctx, query) })
}

// Commit implements [tablestore.Store].
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	return paced(ctx, s, "commit", func(ctx context.Context) ([]tablestore.ETag, error) { return s.Store.Commit(ctx, batch) })
}

// atomicStore is a Store on a [tablestore.AtomicStore].
type atomicStore struct {
	*Store

	atomic tablestore.AtomicStore
}

var _ tablestore.AtomicStore = (*atomicStore)(nil)

// GetAll implements [tablestore.AtomicStore].
func (s *atomicStore) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	return paced(ctx, s.Store, "get", func(ctx context.Context) ([]tablestore.Row, error) { return s.atomic.GetAll(ctx, keys) })
}

// CommitAll implements [tablestore.AtomicStore].
func (s *atomicStore) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	return paced(ctx, s.Store, "commit", func(ctx context.Context) ([][]tablestore.ETag, error) {
		return s.atomic.CommitAll(ctx, batches, applied)
	})
}

// paced makes one call, once there is a place for it.
func paced[T any](ctx context.Context, s *Store, operation string, do func(context.Context) (T, error)) (T, error) {
	deadline, err := s.enter(ctx)
	if err != nil {
		var none T
		return none, err
	}
	tablestore.Begin(ctx)
	began := time.Now()
	result, err := do(tablestore.WithPatience(ctx, deadline))
	ended := time.Now()
	s.leave(began, ended, err)
	if ctx.Err() == nil { // Otherwise the error may be the caller's.
		s.cfg.Observe(operation, ended.Sub(began), err)
	}
	return result, err
}

// errSlow is the cause of the error of a call that got no place in time.
var errSlow = fmt.Errorf("the store is slow, and too many calls wait for it: %w", context.DeadlineExceeded)

// enter waits for a place, and returns the deadline of the call. A call waits no longer than
// one may take, and that of an operation that has begun four times as long.
func (s *Store) enter(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	deadline := s.deadline
	if s.underway < int(s.limit) {
		s.underway++
		s.mu.Unlock()
		return deadline, nil
	}
	loop, place, begun, wait := tablestore.LoopOf(ctx), make(chan struct{}), tablestore.Begun(ctx), deadline
	line := s.lines[loop]
	if len(line) == 0 {
		s.turns = append(s.turns, loop)
	}
	at := len(line)
	if begun {
		wait = 4 * deadline
		if fresh := slices.IndexFunc(line, func(c call) bool { return !c.begun }); fresh >= 0 {
			at = fresh
		}
	}
	s.lines[loop] = slices.Insert(line, at, call{place, begun})
	s.waiting++
	s.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-place:
		return s.patience(), nil
	case <-timer.C:
		err = errSlow
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !s.withdraw(loop, place) {
		return s.patience(), nil // It got its place at the same time.
	}
	return 0, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
}

// patience returns how long a call may take now.
func (s *Store) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

// withdraw removes a call that waits. It returns false if the call has a place.
func (s *Store) withdraw(loop string, place chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.lines[loop]
	at := slices.IndexFunc(line, func(c call) bool { return c.place == place })
	if at < 0 {
		return false
	}
	s.waiting--
	if s.lines[loop] = slices.Delete(line, at, at+1); len(s.lines[loop]) == 0 {
		s.turns = slices.DeleteFunc(s.turns, func(other string) bool { return other == loop })
	}
	return true
}

// leave frees the place of a call, and sets the pace by its outcome.
func (s *Store) leave(began, ended time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := ended.Sub(began)
	answered := !errors.Is(err, tablestore.ErrUnknown) && !errors.Is(err, tablestore.ErrUnavailable)
	switch {
	case answered:
		s.answered = ended
		s.limit = min(mostCalls, s.limit+1/s.limit)
		if took < s.cfg.Deadline/2 {
			s.deadline = max(s.cfg.Deadline, s.deadline-s.deadline/16)
		}
	case took >= s.cfg.Deadline:
		if ended.Sub(s.timedOut) > slowFor {
			s.slow = ended
		}
		s.timedOut = ended
		s.timeouts++
		if began.After(s.slowedAt) { // A call that began earlier says nothing about the present pace.
			s.slowedAt = ended
			s.limit = max(leastCalls, min(s.limit, float64(s.underway))/2)
			s.deadline = min(2*s.deadline, s.cfg.MaxDeadline)
		}
	}
	s.underway--
	for s.underway < int(s.limit) && len(s.turns) > 0 {
		loop := s.nextTurn()
		close(s.lines[loop][0].place)
		if s.lines[loop] = s.lines[loop][1:]; len(s.lines[loop]) > 0 {
			s.turns = append(s.turns, loop)
		}
		s.waiting--
		s.underway++
	}
}

// nextTurn takes the loop that gets the next place: the requests after a loop, and the first other
// loop after them. The caller holds mu.
func (s *Store) nextTurn() string {
	turn := max(0, slices.IndexFunc(s.turns, func(loop string) bool { return (loop == "") == s.looped }))
	loop := s.turns[turn]
	s.turns = slices.Delete(s.turns, turn, turn+1)
	s.looped = loop != ""
	return loop
}

// Pace implements [tablestore.Paced].
func (s *Store) Pace() tablestore.Pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := tablestore.Pace{
		Answered: s.answered, Deadline: s.deadline, Limit: int(s.limit),
		Underway: s.underway, Waiting: s.waiting, Timeouts: s.timeouts,
	}
	if time.Since(s.timedOut) <= slowFor {
		p.Slow = s.slow
	}
	return p
}
