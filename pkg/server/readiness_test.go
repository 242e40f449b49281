package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// refusing is a store that can be read but takes no writes.
type refusing struct {
	tablestore.Store

	why error
}

func (r refusing) Writable(context.Context) error { return r.why }

// TestReadiness_OfAStoreThatTakesNoWrites: a server is not ready if its store only answers
// reads. It says why without the store's error text, which is for operators.
func TestReadiness_OfAStoreThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		why    error
		detail string
	}{
		"too little space": {
			fmt.Errorf("%w: %w: 63 MiB are free", tablestore.ErrUnavailable, tablestore.ErrNoSpace),
			"The store takes no writes: less disk space is free than its reserve.",
		},
		"access is denied": {
			fmt.Errorf("%w: %w: GRANT UPDATE ON lucius.rows TO lucius", tablestore.ErrUnavailable, tablestore.ErrDenied),
			"The store takes no writes: it denies the server access until an operator acts; the log says why.",
		},
		"another reason": {tablestore.ErrUnavailable, "The store takes no writes."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := refusing{memstore.New(memstore.Options{}), test.why}
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
			musttest.NoError(t, err)
			r := readiness{ledger: l, store: store}
			_, err = r.Ready(t.Context())
			told, ok := errors.AsType[*apierror.Error](err)
			if !ok || told.Code != apierror.StoreUnavailable || told.Detail != test.detail || told.RetryAfter <= 0 {
				t.Errorf("Ready: %v, want store_unavailable and %q", err, test.detail)
			}
			if !errors.Is(err, test.why) {
				t.Errorf("the log is not told the cause: %v", err)
			}
		})
	}
}

// A disk that fills up: readyz warns ahead of time, and below the reserve retention
// continues while nothing is accepted.
func TestDisk_RetentionGoesOnBelowTheReserve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		open := func(reserve uint64) (*pebblestore.Store, *ledger.Ledger) {
			store := musttest.Make(t, pebblestore.Open, pebblestore.Options{Dir: dir, Reserve: int64(reserve)})
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store, Retention: time.Minute, KeyTTL: time.Minute})
			musttest.NoError(t, err)
			return store, l
		}
		warned := func(store *pebblestore.Store) string {
			return strings.Join((&readiness{store: store}).spaceWarnings(), "")
		}
		command := ledger.Command{
			Job: statemachine.Job{TenantID: "t", IdempotencyHash: "h"}, Steps: []statemachine.Step{{ID: "one"}}, Payload: []byte(`{}`),
		}
		store, l := open(1 << 20)
		free, _ := store.Space()
		accepted, err := l.Accept(t.Context(), command)
		musttest.NoError(t, err)
		if _, err := l.Change(t.Context(), accepted.Job.ID, statemachine.Cancel{}); err != nil {
			t.Fatal(err)
		}
		if got := warned(store); got != "" {
			t.Errorf("with space: %s", got)
		}
		time.Sleep(2 * time.Minute)
		musttest.NoError(t, store.Close())

		store, l = open(2 * free)
		command.Job.IdempotencyHash = "other"
		if _, err := l.Accept(t.Context(), command); !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("accept below the reserve: %v", err)
		} else if told := ledger.Problem(err); !strings.Contains(told.Error(), "less disk space is free than its reserve") {
			t.Errorf("accept below the reserve is answered with %v", told)
		}
		retention := background.NewRetention(background.RetentionConfig{Ledger: l})
		_, err = retention.RunOnce(t.Context())
		musttest.NoError(t, err)
		if _, err := l.Job(t.Context(), accepted.Job.ID); !errors.Is(err, ledger.ErrJobNotFound) {
			t.Errorf("the job is not purged: %v", err)
		}
		musttest.NoError(t, store.Close())

		store, l = open(free / 2)
		if _, err := l.Accept(t.Context(), command); err != nil {
			t.Errorf("accept with space again: %v", err)
		}
		if got := warned(store); !strings.Contains(got, fmt.Sprintf("below %d MiB no writes are taken", free/2>>20)) {
			t.Errorf("ahead of time: %q", got)
		}
		musttest.NoError(t, store.Close())
	})
}

func TestReadiness_OfAStoreThatDoesNotTellIsNotDoubted(t *testing.T) {
	t.Parallel()
	if err := writable(t.Context(), memstore.New(memstore.Options{})); err != nil {
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

// TestAnswered_OutlivesTheContextOfItsCaller asks with a context that has ended: the
// store's answer is kept, not the context's error.
func TestAnswered_OutlivesTheContextOfItsCaller(t *testing.T) {
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
		musttest.NoError(t, err)
		why := fmt.Errorf("%w: full", tablestore.ErrUnavailable)
		r := readiness{ledger: l, store: refusing{store, why}}
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

// slowStore is a store that tells its pace.
type slowStore struct {
	tablestore.Store

	pace tablestore.Pace
}

func (s slowStore) Pace() tablestore.Pace { return s.pace }

// A server on a slow store goes on serving, unless the store answers nothing any more.
func TestReadiness_OfASlowStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answered time.Duration
		ready    bool
	}{
		"that answers some calls": {29 * time.Second, true},
		"that answers none":       {31 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				slow := slowStore{nil, tablestore.Pace{
					Slow: time.Now().Add(-time.Hour), Answered: time.Now().Add(-test.answered), Limit: 8, Deadline: 30 * time.Second,
				}}
				r := readiness{store: slow}
				if got := r.paceWarning(); got != "the store is slow: calls of it take too long since 1999-12-31T23:00:00Z; "+
					"at most 8 are under way, and each may take 30s" {
					t.Errorf("warns: %q", got)
				}
				slow.pace.Limit = 0
				r.store = slow
				if got := r.paceWarning(); got != "the store is slow: calls of it take too long since 1999-12-31T23:00:00Z" {
					t.Errorf("warns of a local store: %q", got)
				}
				if err := r.unlessSlow(fmt.Errorf("read: %w", context.DeadlineExceeded)); (err == nil) != test.ready {
					t.Errorf("after a timeout: %v", err)
				}
				if r.unlessSlow(tablestore.ErrDenied) == nil {
					t.Error("ready without access")
				}
			})
		})
	}
}
