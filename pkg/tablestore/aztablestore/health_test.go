package aztablestore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// TestOutage_IsNotHammered has many callers use an account that answers only 503 for 40 s,
// as fast as they are answered. The account gets a handful of requests, the callers get
// errors at once, and the outage is logged once. When the account is back, the callers
// succeed.
func TestOutage_IsNotHammered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down atomic.Bool
		var requests, calls, failures atomic.Int64
		store := chosen(t, aztablestore.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))},
			func(*request) answer {
				requests.Add(1)
				if down.Load() {
					return refuses(503, "ServerBusy")
				}
				return row()
			})
		down.Store(true)
		end := time.Now().Add(40 * time.Second)
		var callers sync.WaitGroup
		for i := range 50 {
			key := tablestore.Key{Table: table, Partition: fmt.Sprint(i), Row: "a"}
			callers.Go(func() {
				for time.Now().Before(end) {
					calls.Add(1)
					if _, err := store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrUnavailable) {
						t.Errorf("get: %v", err)
					}
					failures.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		callers.Wait()
		// The 50 in progress when the circuit opened, and 3 probes at a time.
		if n := requests.Load(); n > 100 || calls.Load() < 20_000 {
			t.Errorf("%d calls made %d requests in 40 s", calls.Load(), n)
		}
		if store.Outage() < 30*time.Second {
			t.Errorf("outage of %s", store.Outage())
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "ServerBusy") {
			t.Errorf("%d lines of the log: %s", lines, &log)
		}
		down.Store(false)
		time.Sleep(10 * time.Second) // The longest cool-down.
		if _, err := store.Get(t.Context(), key("a")); err != nil || store.Outage() != 0 {
			t.Errorf("afterwards: %v, outage of %s", err, store.Outage())
		}
	})
}

// TestOutage_OfAMomentIsBridged: callers do not notice if the account is unreachable for
// less than a second, also if they are more than the circuit admits at once after it.
func TestOutage_OfAMomentIsBridged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(500 * time.Millisecond)
		store := chosen(t, aztablestore.Options{}, func(*request) answer {
			if time.Now().Before(back) {
				return unreachable(errNetwork)
			}
			return row()
		})
		var callers sync.WaitGroup
		for range 300 {
			callers.Go(func() {
				if _, err := store.Get(t.Context(), key("a")); err != nil {
					t.Errorf("get: %v", err)
				}
			})
		}
		callers.Wait()
	})
}

// TestOutage_IsNotThatOfOnePartition: while one partition is throttled, requests to others are
// sent.
func TestOutage_IsNotThatOfOnePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := chosen(t, aztablestore.Options{}, func(req *request) answer {
			if strings.Contains(req.URL.Path, "hot") {
				return refuses(503, "ServerBusy")
			}
			return row()
		})
		hot := tablestore.Key{Table: table, Partition: "hot", Row: "a"}
		for range 100 {
			if _, err := store.Get(t.Context(), hot); !errors.Is(err, tablestore.ErrUnavailable) {
				t.Errorf("get of the hot partition: %v", err)
			}
			if _, err := store.Get(t.Context(), key("a")); err != nil || store.Outage() != 0 {
				t.Fatalf("get of another: %v; outage of %s", err, store.Outage())
			}
		}
	})
}

// TestObserve tells each request by its operation and outcome.
func TestObserve(t *testing.T) {
	t.Parallel()
	get := func(ctx context.Context, store *aztablestore.Store) {
		_, _ = store.Get(ctx, key("a")) // Only the outcomes matter.
	}
	commit := func(ctx context.Context, store *aztablestore.Store) {
		_, _ = store.Commit(ctx, tablestore.Batch{insert("a")})
	}
	scan := func(ctx context.Context, store *aztablestore.Store) {
		_, _ = store.Scan(ctx, tablestore.Query{Table: table, Partition: "p"})
	}
	busy := refuses(503, "ServerBusy")
	for name, test := range map[string]struct {
		call    func(context.Context, *aztablestore.Store)
		answers []answer
		want    []string
	}{
		"a read":                       {get, []answer{row()}, []string{"get succeeded"}},
		"a read of no row":             {get, []answer{refuses(404, "ResourceNotFound")}, []string{"get refused"}},
		"a read that was throttled":    {get, []answer{busy, row()}, []string{"get throttled", "get succeeded"}},
		"a read of a slow partition":   {get, []answer{refuses(500, "OperationTimedOut"), row()}, []string{"get throttled", "get succeeded"}},
		"a scan that found no network": {scan, []answer{unreachable(errNetwork), reply(200, `{"value":[]}`)}, []string{"scan unreachable", "scan succeeded"}},
		"a write":                      {commit, []answer{inside(done(one))}, []string{"commit succeeded"}},
		"a write with a conflict":      {commit, []answer{inside(failed(409, "EntityAlreadyExists", "0:There."))}, []string{"commit refused"}},
		"a write that was lost":        {commit, []answer{lost(errNetwork)}, []string{"commit unanswered"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []string
				store, _ := scripted(t, aztablestore.Options{Observe: func(s aztablestore.Sample) {
					got = append(got, s.Operation+" "+string(s.Outcome))
				}}, test.answers...)
				test.call(t.Context(), store)
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("outcomes (-want +got):\n%s", diff)
				}
			})
		})
	}
	t.Run("a caller that gives up, and one that is held back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			counts := map[aztablestore.Outcome]int{}
			store, _ := scripted(t, aztablestore.Options{Observe: func(s aztablestore.Sample) {
				if counts[s.Outcome]++; s.Outcome == aztablestore.Cancelled && s.Took != time.Second {
					t.Errorf("it took %s", s.Took)
				}
			}}, hangs, busy)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			get(ctx, store)
			for range 7 {
				get(t.Context(), store)
			}
			if counts[aztablestore.Cancelled] != 1 || counts[aztablestore.Throttled] < 20 || counts[aztablestore.Held] == 0 {
				t.Errorf("outcomes %v", counts)
			}
		})
	})
}

// TestSkew compares clocks by the dates of answers.
func TestSkew(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		date  string // The bubble begins at midnight of 2000-01-01.
		took  time.Duration
		id    string
		skew  time.Duration
		stale bool // the answer is unusable, so the earlier one counts
	}{
		"the same":              {date: "Sat, 01 Jan 2000 00:00:00 GMT", id: "1"},
		"cut to a second":       {date: "Fri, 31 Dec 1999 23:59:59 GMT", id: "1"},
		"ahead by a minute":     {date: "Fri, 31 Dec 1999 23:58:59 GMT", id: "1", skew: time.Minute},
		"behind by a minute":    {date: "Sat, 01 Jan 2000 00:01:00 GMT", id: "1", skew: -time.Minute},
		"behind, after a while": {date: "Sat, 01 Jan 2000 00:00:10 GMT", took: time.Second, id: "1", skew: -9 * time.Second},
		"ahead, after a while":  {date: "Fri, 31 Dec 1999 23:59:49 GMT", took: time.Second, id: "1", skew: 10 * time.Second},
		"a slow answer":         {date: "Sat, 01 Jan 2000 00:01:00 GMT", took: 1001 * time.Millisecond, id: "1", stale: true},
		"an answer of a proxy":  {date: "Sat, 01 Jan 2000 00:01:00 GMT", stale: true},
		"no date":               {id: "1", stale: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const before = "Fri, 31 Dec 1999 23:59:29 GMT"
				answers := func(date, id string, took time.Duration) answer {
					return func(req *request) (*response, error) {
						time.Sleep(took)
						//nolint:bodyclose // The SDK closes it.
						return reply(200, `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"a"}`, "Date", date, "X-Ms-Request-Id", id)(req)
					}
				}
				store, _ := scripted(t, aztablestore.Options{}, answers(before, "0", 0), answers(test.date, test.id, test.took))
				if store.Skew() != 0 {
					t.Errorf("before the first answer: %s", store.Skew())
				}
				for _, want := range []time.Duration{30 * time.Second, test.skew} {
					if _, err := store.Get(t.Context(), key("a")); err != nil {
						t.Fatal(err)
					}
					if test.stale {
						want = 30 * time.Second
					}
					if got := store.Skew(); got != want {
						t.Errorf("skew %s, want %s", got, want)
					}
				}
			})
		})
	}
}

// TestSkew_OfAClockThatWasSetBack: a request during which the own clock is set back says
// nothing about the difference.
func TestSkew_OfAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	store, _ := scripted(t, aztablestore.Options{})
	sent := time.Now()
	store.ObserveDate(sent, sent.Add(-time.Hour), sent)
	if store.Skew() != 0 {
		t.Errorf("skew %s", store.Skew())
	}
	store.ObserveDate(sent, sent, sent.Add(-time.Hour))
	if store.Skew() < 50*time.Minute {
		t.Errorf("skew %s, want an hour", store.Skew())
	}
}
