package background_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// dueSchedules are the schedules that are due. That of the id "hangs" hangs until its context ends; work on another takes some time,
// and removes its entry.
type dueSchedules struct {
	mu    sync.Mutex
	ids   []string // sorted; small, since firing one moves those after it
	takes time.Duration
	fails bool
	races error // of each work: another process was faster
	acts  int
	fired map[string]time.Duration // when, since the start
	start time.Time
}

func dueNow(ids ...string) *dueSchedules {
	return &dueSchedules{ids: ids, fired: map[string]time.Duration{}, start: time.Now()}
}

func (*dueSchedules) Shards() int { return 1 }

func (d *dueSchedules) Due(
	_ context.Context, _ ledger.Kind, _ int, _ time.Time, limit int, from string,
) (page []ledger.Entry, next string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, _ := slices.BinarySearch(d.ids, from)
	end := min(at+limit, len(d.ids))
	if end < len(d.ids) {
		next = d.ids[end]
	}
	for _, id := range d.ids[at:end] {
		page = append(page, ledger.Entry{JobID: id})
	}
	return page, next, nil
}

func (d *dueSchedules) Act(ctx context.Context, entry ledger.Entry) (ledger.FireOutcome, error) {
	if entry.JobID == "hangs" {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	time.Sleep(d.takes)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.acts++; d.fails {
		return 0, errors.New("the store is away")
	}
	d.fired[entry.JobID] = time.Since(d.start)
	if at, found := slices.BinarySearch(d.ids, entry.JobID); found {
		d.ids = slices.Delete(d.ids, at, at+1)
	}
	return ledger.Acted, d.races
}

// A schedule that hangs delays no other one. Its deadline is logged, but not that the server stops.
func TestCron_AHangingScheduleDelaysNoOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stop   time.Duration // after the pass
		logged int
	}{"until its deadline": {time.Minute, 1}, "until the server stops": {time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := dueNow("hangs", "next")
				var log bytes.Buffer
				cron := background.NewCron(background.CronConfig{Schedules: d, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				ctx, stop := context.WithTimeout(t.Context(), test.stop)
				defer stop()
				if pass, err := cron.RunOnce(ctx); err != nil || pass.Done != 2 {
					t.Fatalf("the pass has begun %d (%v)", pass.Done, err)
				}
				if again, err := cron.RunOnce(ctx); err != nil || again.Done > 1 {
					t.Errorf("the second pass has begun %d: one hangs (%v)", again.Done, err)
				}
				cron.Wait()
				if at, ok := d.fired["next"]; !ok || at > 0 {
					t.Errorf("the other schedule was fired after %s: %t", at, ok)
				}
				if n := strings.Count(log.String(), "schedule not fired"); n != test.logged {
					t.Errorf("logged %d times: %s", n, &log)
				}
			})
		})
	}
}

// While schedules wait for room, a pass follows as soon as there is some: 10,000 that are due in the same minute fire within it, if
// each takes 50 ms, although some hang.
func TestCron_TenThousandDueAtOnceFireWithinAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const schedules = 10_000
		ids := []string{"hangs"}
		for i := range schedules {
			ids = append(ids, fmt.Sprintf("schedule %05d", i))
		}
		d := dueNow(ids...)
		d.takes = 50 * time.Millisecond
		runFor(t, d, time.Minute)
		if len(d.fired) != schedules {
			t.Errorf("%d of %d schedules were fired within a minute", len(d.fired), schedules)
		}
	})
}

// If all work fails, passes keep their interval: 16 schedules each second.
func TestCron_KeepsItsIntervalWhileWorkFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for i := range 100 {
			ids = append(ids, fmt.Sprintf("schedule %05d", i))
		}
		d := dueNow(ids...)
		d.fails = true
		d.takes = 50 * time.Millisecond // Work that ends before its pass does makes room for more in the same pass.
		runFor(t, d, 4*time.Second-time.Millisecond)
		if d.acts != 4*16 {
			t.Errorf("%d schedules were tried in 4 s, want 64", d.acts)
		}
	})
}

// If another process was faster, nothing is logged, and the next pass follows as after work that succeeds.
func TestCron_ALostRaceIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{tablestore.ErrConflict, ledger.ErrClaimConflict} {
		t.Run(lost.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := dueNow("one", "two")
				d.takes, d.races = 50*time.Millisecond, fmt.Errorf("change schedule: %w", lost)
				var log bytes.Buffer
				cron := background.NewCron(background.CronConfig{
					Schedules: d, Parallel: 1, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				loop := cron.Loop()
				loop.Interval = time.Hour
				if err := loop.Run(ctx); err != nil {
					t.Error(err)
				}
				if d.acts != 2 || log.Len() > 0 {
					t.Errorf("%d of 2 schedules were worked on in the first interval; logged: %s", d.acts, &log)
				}
			})
		})
	}
}

// runFor runs the loop that fires schedules for a time.
func runFor(t *testing.T, d *dueSchedules, length time.Duration) {
	t.Helper()
	cron := background.NewCron(background.CronConfig{Schedules: d})
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	loop := cron.Loop()
	loop.Interval = time.Second
	if err := loop.Run(ctx); err != nil {
		t.Error(err)
	}
}
