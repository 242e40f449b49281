package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// refusing is a store that can be read and takes no writes.
type refusing struct {
	tablestore.Store

	why error
}

func (r refusing) Writable() error { return r.why }

// TestReadiness_OfAStoreThatTakesNoWrites: a server whose store answers reads only is
// not ready, and says why without the store's own words, which are for operators.
func TestReadiness_OfAStoreThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		why    error
		detail string
	}{
		"too little space": {
			fmt.Errorf("%w: %w: 63 MiB are free", tablestore.ErrUnavailable, pebblestore.ErrNoSpace),
			"The store takes no writes: less disk space is free than its reserve.",
		},
		"the directory is lost": {
			fmt.Errorf("%w: %w: LOCK is missing", tablestore.ErrUnavailable, pebblestore.ErrLost),
			"The store takes no writes: its data directory was removed or replaced.",
		},
		"a file is damaged": {
			fmt.Errorf("%w: %w: 000007.sst", tablestore.ErrUnavailable, pebblestore.ErrDamaged),
			"The store takes no writes: a file of its data directory is damaged.",
		},
		"another reason": {tablestore.ErrUnavailable, "The store takes no writes."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := refusing{memstore.New(memstore.Options{}), test.why}
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			r := readiness{ledger: l, writable: writableOf(store)}
			_, err = r.Ready(t.Context())
			told, ok := errors.AsType[*problem.Error](err)
			if !ok || told.Code != problem.StoreUnavailable || told.Detail != test.detail || told.RetryAfter <= 0 {
				t.Errorf("Ready: %v, want store_unavailable and %q", err, test.detail)
			}
			if !errors.Is(err, test.why) {
				t.Errorf("the log is not told the cause: %v", err)
			}
		})
	}
}

func TestReadiness_OfAStoreThatDoesNotTellIsNotDoubted(t *testing.T) {
	t.Parallel()
	if err := writableOf(memstore.New(memstore.Options{}))(); err != nil {
		t.Errorf("writable: %v", err)
	}
}

// TestAnswered_IsAskedForOnceASecond: however many callers ask for readyz, the store is
// asked once a second, whatever it answers.
func TestAnswered_IsAskedForOnceASecond(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"it is well": nil, "it is away": tablestore.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			var a cachedAnswer
			asked := 0
			ask := func(context.Context) error {
				asked++
				time.Sleep(100 * time.Millisecond)
				return want
			}
			for second := range 3 {
				var all sync.WaitGroup
				for i := range 100 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * 9 * time.Millisecond)
						if err := a.get(t.Context(), ask); !errors.Is(err, want) {
							t.Errorf("%s: %v", name, err)
						}
					})
				}
				all.Wait()
				if asked != second+1 {
					t.Errorf("%s: in second %d it was asked %d times", name, second, asked)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// TestAnswered_IsNotThatOfOneWhoWentAway asks with a context that has ended: the store's
// answer is kept, and not the context's error.
func TestAnswered_IsNotThatOfOneWhoWentAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a cachedAnswer
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := a.get(gone, func(ctx context.Context) error { return ctx.Err() }); err != nil {
			t.Errorf("the store was asked for the first alone: %v", err)
		}
		time.Sleep(answerAge)
		from := time.Now()
		err := a.get(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(from) != answerTimeout {
			t.Errorf("a store that does not answer: %v after %s", err, time.Since(from))
		}
	})
}

// TestReadiness_ReadsTheStoreOnceASecond asks a server often.
func TestReadiness_ReadsTheStoreOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(memstore.New(memstore.Options{}))
		l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		why := fmt.Errorf("%w: full", tablestore.ErrUnavailable)
		r := readiness{ledger: l, writable: func() error { return why }}
		counter.Reset()
		for range 50 {
			if _, err := r.Ready(t.Context()); !errors.Is(err, why) {
				t.Errorf("Ready: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := counter.Counts(); got.Gets+got.Scans != 1 {
			t.Errorf("in half a second the store was read %+v", got)
		}
	})
}
