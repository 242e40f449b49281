package background_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// dueSchedules are the schedules that are due. That of the id "hangs" hangs until its context ends; work on another removes its entry.
type dueSchedules struct {
	mu      sync.Mutex
	entries []ledger.Entry
	fired   map[string]time.Duration // when, since the start
	start   time.Time
}

func (*dueSchedules) Shards() int { return 1 }

func (d *dueSchedules) Due(context.Context, ledger.Kind, int, time.Time, int, string) ([]ledger.Entry, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]ledger.Entry(nil), d.entries...), "", nil
}

func (d *dueSchedules) Act(ctx context.Context, entry ledger.Entry) (ledger.FireOutcome, error) {
	if entry.JobID == "hangs" {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fired[entry.JobID] = time.Since(d.start)
	d.entries = d.entries[:1]
	return ledger.Acted, nil
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
				d := &dueSchedules{
					entries: []ledger.Entry{{JobID: "hangs"}, {JobID: "next"}}, fired: map[string]time.Duration{}, start: time.Now(),
				}
				var log bytes.Buffer
				cron, err := background.NewCron(background.CronConfig{Schedules: d, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
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
