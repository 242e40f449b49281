package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]memstore.Options{"atomic": {}, "split": {Split: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, storetest.Features{Atomic: !options.Split}, func(testing.TB) storetest.Harness {
				return storetest.Harness{Store: pacer.New(memstore.New(options), pacer.Config{})}
			})
		})
	}
}

// remote is a store whose calls take a while. A call that takes longer than its deadline, or
// than the caller waits, has no effect.
type remote struct {
	tablestore.Store

	mu       sync.Mutex
	takes    func(underway int) time.Duration
	underway int
	most     int      // the most calls that were under way at once
	calls    []string // their loops, in the order of their beginning
	deadline []time.Duration
}

func (r *remote) Get(ctx context.Context, _ tablestore.Key) (tablestore.Row, error) {
	deadline := tablestore.Patience(ctx, 0)
	r.mu.Lock()
	r.underway++
	r.most = max(r.most, r.underway)
	r.calls, r.deadline = append(r.calls, tablestore.LoopOf(ctx)), append(r.deadline, deadline)
	took := r.takes(r.underway)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.underway--
	}()
	timer := time.NewTimer(min(took, deadline))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return tablestore.Row{}, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, ctx.Err())
	}
	if took > deadline {
		return tablestore.Row{}, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, context.DeadlineExceeded)
	}
	return tablestore.Row{}, nil
}

// reset forgets the calls so far, and sets how long further ones take.
func (r *remote) reset(takes func(underway int) time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takes, r.most, r.calls, r.deadline = takes, r.underway, nil, nil
}

func always(took time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return took }
}

// setup returns a store with the deadline of 10 s, and the remote one behind it.
func setup(takes func(int) time.Duration) (tablestore.Store, *remote) {
	r := &remote{Store: memstore.New(memstore.Options{Split: true}), takes: takes}
	return pacer.New(r, pacer.Config{}), r
}

func pace(store tablestore.Store) tablestore.Pace {
	return store.(tablestore.Paced).Pace()
}

// get makes n calls at once, waits for them, and returns how many failed.
func get(ctx context.Context, store tablestore.Store, n int) (failed int) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			if _, err := store.Get(ctx, tablestore.Key{}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
			}
		})
	}
	group.Wait()
	return failed
}

func TestAHealthyStoreGetsAllCallsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := setup(always(9 * time.Second))
		if failed := get(t.Context(), store, 1000); failed > 0 || r.most != 1000 {
			t.Errorf("%d calls failed, %d were under way at once", failed, r.most)
		}
		want := tablestore.Pace{Answered: time.Now(), Deadline: 10 * time.Second, Limit: 1024}
		if diff := cmp.Diff(want, pace(store)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestATimeoutHalvesTheCallsAndDoublesTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := setup(always(time.Hour))
		began := time.Now()
		if failed := get(t.Context(), store, 100); failed != 100 || time.Since(began) != 10*time.Second {
			t.Errorf("%d of 100 calls failed in %s", failed, time.Since(began))
		}
		// One burst of timeouts is one sign.
		want := tablestore.Pace{Slow: time.Now(), Deadline: 20 * time.Second, Limit: 50, Timeouts: 100}
		if diff := cmp.Diff(want, pace(store)); diff != "" {
			t.Error(diff)
		}
		for range 5 {
			r.reset(always(time.Hour))
			get(t.Context(), store, 1)
		}
		if p := pace(store); p.Limit != 8 || p.Deadline != 30*time.Second {
			t.Errorf("after more timeouts: %+v", p)
		}
		r.reset(always(time.Second))
		get(t.Context(), store, 100)
		if r.most >= 50 {
			t.Errorf("%d calls were under way at once", r.most)
		}
	})
}

// A caller that gives up says nothing about the store.
func TestCallsAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		observe := func(operation string, took time.Duration, err error) {
			calls = append(calls, fmt.Sprint(operation, " ", took, " ", errors.Is(err, tablestore.ErrUnavailable)))
		}
		r := &remote{Store: memstore.New(memstore.Options{}), takes: always(time.Second)}
		store := pacer.New(r, pacer.Config{Observe: observe})
		get(t.Context(), store, 1)
		r.reset(always(time.Hour))
		get(t.Context(), store, 1)
		given, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		get(given, store, 1)
		atomic := pacer.New(r.Store, pacer.Config{Observe: observe}).(tablestore.AtomicStore)
		_, _ = store.Scan(t.Context(), tablestore.Query{})
		_, _ = store.Commit(t.Context(), tablestore.Batch{})
		_, _ = atomic.GetAll(t.Context(), nil)
		_, _ = atomic.CommitAll(t.Context(), nil, nil)
		want := []string{"get 1s false", "get 10s true", "scan 0s false", "commit 0s false", "get 0s false", "commit 0s false"}
		if diff := cmp.Diff(want, calls); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAFastStoreGetsItsPaceBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := setup(always(time.Hour))
		for range 4 {
			get(t.Context(), store, 1)
		}
		r.reset(always(10 * time.Millisecond))
		for range 100 {
			if failed := get(t.Context(), store, 200); failed > 0 {
				t.Fatalf("%d calls failed", failed)
			}
		}
		time.Sleep(time.Minute)
		if p := pace(store); p.Limit < 100 || p.Deadline != 10*time.Second || !p.Slow.IsZero() {
			t.Errorf("the pace is %+v", p)
		}
	})
}

// A store that serves one call after the other answers none in time if it gets too many at
// once, and all if it gets few.
func TestAStoreThatIsOverloadedAnswersAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, _ := setup(func(underway int) time.Duration { return time.Duration(underway) * 500 * time.Millisecond })
		answered := 0
		var callers sync.WaitGroup
		var mu sync.Mutex
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for range 300 {
			callers.Go(func() {
				for ctx.Err() == nil {
					if _, err := store.Get(ctx, tablestore.Key{}); err == nil {
						mu.Lock()
						answered++
						mu.Unlock()
					}
				}
			})
		}
		callers.Wait()
		// It could have answered 1,200 calls. Without a limit it would answer the first twenty of
		// each deadline.
		if p := pace(store); answered < 600 || p.Limit > 60 {
			t.Errorf("%d calls were answered, and the pace is %+v", answered, p)
		}
	})
}

func TestLoopsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := setup(always(time.Hour))
		for range 4 {
			get(t.Context(), store, 1)
		}
		r.reset(always(time.Second))
		var callers sync.WaitGroup
		call := func(ctx context.Context, n int) {
			for range n {
				callers.Go(func() { get(ctx, store, 1) })
			}
			synctest.Wait()
		}
		call(tablestore.ForLoop(t.Context(), "sweeper"), 40) // It takes all places, and waits for more.
		call(tablestore.ForLoop(t.Context(), "relay"), 4)
		call(t.Context(), 4)
		callers.Wait()
		places := r.calls[8:16] // the next eight; these calls begin at the same time
		slices.Sort(places)
		if diff := cmp.Diff([]string{"", "", "", "", "relay", "relay", "sweeper", "sweeper"}, places); diff != "" {
			t.Error(diff)
		}
	})
}

// With few places, an operation that is given up on the way has wasted what it got.
func TestOperationsThatHaveBegunComeFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := setup(always(time.Second))
		var begun []context.Context
		for range 8 {
			operation := tablestore.ForOperation(t.Context())
			get(operation, store, 1)
			begun = append(begun, operation)
		}
		r.reset(always(time.Hour))
		for range 4 {
			get(t.Context(), store, 1)
		}
		r.reset(always(time.Second)) // Eight at a time.
		var fresh, later atomic.Int64
		var callers sync.WaitGroup
		call := func(operation context.Context, ended *atomic.Int64) {
			callers.Go(func() {
				if get(operation, store, 1) == 0 {
					ended.Add(1)
				}
			})
		}
		for range 24 { // Eight get a place at once.
			call(tablestore.ForOperation(t.Context()), &fresh)
		}
		synctest.Wait()
		for _, operation := range begun {
			call(operation, &later)
		}
		time.Sleep(2500 * time.Millisecond)
		if fresh.Load() != 8 || later.Load() != 8 {
			t.Errorf("after two turns %d calls of new operations and %d of those that had begun have ended, want 8 each", fresh.Load(), later.Load())
		}
		callers.Wait()
		if fresh.Load() != 24 {
			t.Errorf("%d calls of 24 new operations were answered", fresh.Load())
		}
	})
}

// An operation that has begun waits long for a place, and a new one no longer than a call may take.
func TestHowLongACallWaits(t *testing.T) {
	t.Parallel()
	for begun, most := range map[bool]int{true: 0, false: 24} {
		t.Run(fmt.Sprint("begun ", begun), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := setup(always(time.Second))
				var operations []context.Context
				for range 40 {
					operation := tablestore.ForOperation(t.Context())
					if begun {
						get(operation, store, 1)
					}
					operations = append(operations, operation)
				}
				r.reset(always(time.Hour))
				for range 4 {
					get(t.Context(), store, 1)
				}
				r.reset(always(25 * time.Second)) // Eight at a time, and each may take 30 s.
				var failed atomic.Int64
				var callers sync.WaitGroup
				for _, operation := range operations {
					callers.Go(func() { failed.Add(int64(get(operation, store, 1))) })
				}
				callers.Wait()
				if n := int(failed.Load()); n > most || n < most-2 { // The limit grows a little.
					t.Errorf("%d of 40 calls got no place, want %d", n, most)
				}
			})
		})
	}
}

func TestACallThatGetsNoPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ends  time.Duration // of its caller
		cause error
	}{
		"in time":                {time.Hour, nil},
		"before its caller left": {5 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := setup(always(time.Hour))
				for range 4 {
					get(t.Context(), store, 1)
				}
				r.reset(always(25 * time.Second))
				var busy sync.WaitGroup
				for range 24 { // Eight get a place, and eight more after 25 s.
					busy.Go(func() { get(t.Context(), store, 1) })
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), test.ends)
				defer cancel()
				began := time.Now()
				_, err := store.Get(ctx, tablestore.Key{})
				if !errors.Is(err, tablestore.ErrUnavailable) || test.cause != nil && !errors.Is(err, test.cause) {
					t.Errorf("answered %v", err)
				}
				if waited := time.Since(began); waited != min(test.ends, 30*time.Second) {
					t.Errorf("it waited for %s", waited)
				}
				busy.Wait()
				if p := pace(store); p.Waiting != 0 || p.Underway != 0 {
					t.Errorf("the pace is %+v", p)
				}
			})
		})
	}
}
