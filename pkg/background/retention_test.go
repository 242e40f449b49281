package background_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestRetention_BoundsAPassAndContinues(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{{"a", "b", "c"}, {"d", "e"}}, bad: []string{"b"}}
	observed := 0
	p := background.NewRetention(background.RetentionConfig{
		Ledger: b, PassLimit: 2, Observe: func(ledger.Purged) { observed++ },
	})
	for range 4 {
		if pass, err := p.RunOnce(t.Context()); err != nil || pass.Done > 2 {
			t.Errorf("a pass purged %d, %v", pass.Done, err)
		}
	}
	if slices.Sort(b.purged); !slices.Equal(b.purged, []string{"a", "c", "d", "e"}) || observed != 4 {
		t.Errorf("purged %v, observed %d", b.purged, observed)
	}
}

// The jobs that fail fill a whole pass.
func TestRetention_JobsThatFailDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{{"a", "b", "c"}, {"d", "e"}}, bad: []string{"a", "b"}}
	passes := 0
	p := background.NewRetention(background.RetentionConfig{Ledger: b, PassLimit: 2, Random: func() float64 {
		passes++
		return float64((passes-1)%2) / 2 // The shards take turns at being the first.
	}})
	for range 4 {
		if _, err := p.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Sort(b.purged); !slices.Equal(b.purged, []string{"c", "d", "e"}) {
		t.Errorf("purged %v", b.purged)
	}
}

func TestRetention_BeginsAtARandomShard(t *testing.T) {
	t.Parallel()
	for random, want := range map[float64][]string{0: {"a", "b", "c", "d"}, 0.5: {"c", "d", "a", "b"}} {
		b := &backlog{shards: [2][]string{{"a", "b"}, {"c", "d"}}}
		p := background.NewRetention(background.RetentionConfig{Ledger: b, Random: func() float64 { return random }})
		if _, err := p.RunOnce(t.Context()); err != nil || !slices.Equal(b.purged, want) {
			t.Errorf("at %g purged %v, %v, want %v", random, b.purged, err, want)
		}
	}
}

func TestRetention_ContinuesAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{slices.Repeat([]string{"x"}, 1)}, down: errors.New("away")}
		p := newRetention(t, b)
		stop := running(t, p.Loop())
		time.Sleep(10 * time.Second)
		b.mu.Lock()
		b.down = nil
		b.mu.Unlock()
		time.Sleep(6 * time.Second)
		if stop(); len(b.purged) != 1 {
			t.Errorf("purged %v", b.purged)
		}
	})
}

// A store that refuses purges gets one page of them, and then one purge from time to time: each
// try archives its job again.
func TestRetention_RestsWhileTheStoreRefusesPurges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := fmt.Errorf("%w: %w", tablestore.ErrUnavailable, tablestore.ErrNoSpace)
		b := &backlog{shards: [2][]string{numbered(3000), numbered(2000)}, full: full}
		var logged bytes.Buffer
		p := background.NewRetention(background.RetentionConfig{
			Ledger: b, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		})
		if _, err := p.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrNoSpace) || b.tried != 256 {
			t.Errorf("%d purges were tried: %v, want 256 and ErrNoSpace", b.tried, err)
		}
		stop := running(t, p.Loop())
		time.Sleep(10 * time.Second)
		if synctest.Wait(); b.tried > 256+10 || logged.Len() > 0 {
			t.Errorf("%d purges were tried; logged:\n%.500s", b.tried, &logged)
		}
		b.mu.Lock()
		b.full = nil
		b.mu.Unlock()
		time.Sleep(6 * time.Second)
		if stop(); len(b.purged) != 5000 {
			t.Errorf("purged %d jobs once the store takes purges again, want 5000", len(b.purged))
		}
	})
}

// One job may be unavailable by itself, as one whose line is busy: the store is tried with another.
func TestRetention_OneUnavailableJobDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{{"busy"}, {"a", "b", "c"}}}
	if _, err := newRetention(t, b).RunOnce(t.Context()); err != nil || !slices.Equal(b.purged, []string{"a", "b", "c"}) {
		t.Errorf("purged %v, %v", b.purged, err)
	}
}

// If jobs that fail for other reasons fill a pass, the next one waits for its interval.
func TestRetention_RestsAfterAPassThatPurgedNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{numbered(3000)}, bad: numbered(3000)}
		run(t, newRetention(t, b).Loop(), 1500*time.Millisecond)
		if b.tried != 2*1024 {
			t.Errorf("%d purges were tried in two passes", b.tried)
		}
	})
}

// numbered are n names of jobs in order.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%05d", i))
	}
	return names
}

func newRetention(t *testing.T, b *backlog) *background.Retention {
	t.Helper()
	return background.NewRetention(background.RetentionConfig{Ledger: b, Random: func() float64 { return 0 }})
}

// A backlog does not wait for the next interval after each pass.
func TestRetention_PassesFollowAtOnceWhileThereIsMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{numbered(5000), numbered(3000)}}
		run(t, newRetention(t, b).Loop(), time.Millisecond)
		if purged := len(b.purged); purged != 8000 {
			t.Errorf("purged %d of 8000 jobs before the interval had passed", purged)
		}
	})
}

// Nor if the schedule has a row that cannot be read.
func TestRetention_ABadRowDoesNotSlowABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{numbered(5000), nil}, unreadable: errors.New("bad row")}
		run(t, newRetention(t, b).Loop(), time.Millisecond)
		if purged := len(b.purged); purged < 4096 { // Only the last pass is not full.
			t.Errorf("purged %d of 5000 jobs before the interval had passed", purged)
		}
	})
}

// While jobs are purged, the store is left to other work for half of the time; for less once
// purging is late.
func TestRetention_RestsAfterEachPage(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]time.Duration{
		0: 40 * time.Millisecond, 9 * time.Second: 40 * time.Millisecond, time.Minute: 30 * time.Millisecond,
	} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &backlog{shards: [2][]string{numbered(512), nil}, takes: 10 * time.Millisecond, due: time.Now().Add(-late)}
				began := time.Now()
				if pass, err := newRetention(t, b).RunOnce(t.Context()); err != nil || pass.Done != 512 || pass.More {
					t.Errorf("%+v, %v", pass, err)
				}
				if took := time.Since(began); took != want {
					t.Errorf("two pages of 10 ms took %s, want %s", took, want)
				}
			})
		})
	}
}

// A stop does not wait for the rest.
func TestRetention_AStopEndsTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backlog{shards: [2][]string{numbered(512), nil}, takes: time.Hour, due: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
		defer cancel()
		began := time.Now()
		if pass, _ := newRetention(t, b).RunOnce(ctx); pass.Done != 256 || time.Since(began) != 90*time.Minute {
			t.Errorf("%+v after %s", pass, time.Since(began))
		}
	})
}

// Replicas that meet at a shard part: one of them goes on with other shards.
func TestRetention_LeavesAShardThatAnotherProcessPurges(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{numbered(392), {"x", "y"}}, taken: []string{"00003"}}
	var observed []ledger.Purged
	r := background.NewRetention(background.RetentionConfig{
		Ledger: b, Random: func() float64 { return 0 }, Observe: func(p ledger.Purged) { observed = append(observed, p) },
	})
	if pass, err := r.RunOnce(t.Context()); err != nil || pass.Done != 258 {
		t.Errorf("%+v, %v", pass, err)
	}
	if got := b.purged[len(b.purged)-2:]; !slices.Equal(got, []string{"x", "y"}) || observed[3] != ledger.PurgeElsewhere {
		t.Errorf("at last purged %v, observed %v", got, observed[:4])
	}
	if pass, err := r.RunOnce(t.Context()); err != nil || pass.Done != 136 || len(b.purged) != 394 {
		t.Errorf("the next pass: %+v, %v", pass, err)
	}
}

func TestRetention_SurveyCountsWhatIsDue(t *testing.T) {
	t.Parallel()
	b := &backlog{shards: [2][]string{numbered(6000), {"x"}}, due: time.Unix(1000, 0)}
	r := newRetention(t, b)
	if got := r.Overdue(); got != (background.Overdue{}) {
		t.Errorf("before the first survey: %+v", got)
	}
	if err := r.Survey(t.Context()); err != nil || r.Overdue() != (background.Overdue{Jobs: 5001, Oldest: b.due}) {
		t.Errorf("%+v, %v", r.Overdue(), err)
	}
	b.down = errors.New("away")
	if err := r.Survey(t.Context()); !errors.Is(err, b.down) || r.Overdue().Jobs != 5001 {
		t.Errorf("without the store: %+v, %v", r.Overdue(), err)
	}
}
