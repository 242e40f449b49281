package background_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/background"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary records when passes start, as times since the start of the test.
type diary struct {
	start time.Time
	at    []string
}

func (d *diary) pass() { d.at = append(d.at, time.Since(d.start).String()) }

// running runs the loop until the returned function is called.
func running(t testing.TB, loop background.Loop) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var over sync.WaitGroup
	over.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return func() {
		cancel()
		over.Wait()
	}
}

// run runs the loop for that long.
func run(t *testing.T, loop background.Loop, d time.Duration) {
	t.Helper()
	stop := running(t, loop)
	time.Sleep(d)
	synctest.Wait()
	stop()
}

func TestLoop_StartsPassesOnSchedule(t *testing.T) {
	t.Parallel()
	broken := errors.New("away")
	for name, test := range map[string]struct {
		pass func(n int) error // the n-th
		loop background.Loop
		want string
	}{
		"at each interval": {
			func(int) error { return nil },
			background.Loop{Interval: 4 * time.Second}, "0s 4s 8s 12s",
		},
		"a slow pass, and the rest at once": {
			func(n int) error { time.Sleep(time.Duration(max(0, 5-2*n)) * time.Second); return nil },
			background.Loop{}, "0s 5s 8s 9s 10s 11s 12s",
		},
		"after failures later and later": {
			func(n int) error { return map[bool]error{true: broken}[n < 5] },
			background.Loop{}, "0s 1s 3s 7s 12s",
		},
		"after a success as before": {
			func(n int) error { return map[bool]error{true: broken}[n < 3] },
			background.Loop{}, "0s 1s 3s 7s 8s 9s 10s 11s 12s",
		},
		"failures of a slow loop": {
			func(int) error { return broken },
			background.Loop{Interval: 6 * time.Second}, "0s 6s 12s",
		},
		"a rest": {
			func(int) error { return nil },
			background.Loop{Rest: func() time.Duration { return 5 * time.Second }}, "0s 5s 10s",
		},
		"jitter": {
			func(int) error { return nil },
			background.Loop{Interval: 4 * time.Second, Jitter: 0.5, Random: func() float64 { return 0 }}, "0s 3s 6s 9s 12s",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := diary{start: time.Now()}
			test.loop.Pass = func(context.Context) error {
				d.pass()
				return test.pass(len(d.at) - 1)
			}
			test.loop.Resumed = func(time.Time) { t.Errorf("%s: a pass began late", name) }
			run(t, test.loop, 12*time.Second)
			if diff := cmp.Diff(test.want, strings.Join(d.at, " ")); diff != "" {
				t.Errorf("%s: passes (-want +got):\n%s", name, diff)
			}
		})
	}
}

func TestLoop_WakeStartsAPassAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, wake := diary{start: time.Now()}, make(chan struct{}, 1)
		time.AfterFunc(1500*time.Millisecond, func() { wake <- struct{}{} })
		run(t, background.Loop{Wake: wake, Pass: func(context.Context) error { d.pass(); return nil }}, 3*time.Second)
		if diff := cmp.Diff("0s 1s 1.5s 2.5s", strings.Join(d.at, " ")); diff != "" {
			t.Errorf("passes (-want +got):\n%s", diff)
		}
	})
}

// Run waits for the work that passes have started before it returns. A pass that the end
// of the context interrupts does not count as a failure.
func TestLoop_Stops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		drained, observed := false, 0
		run(t, background.Loop{
			Name: "endless", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Pass:    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			Drain:   func() { drained = true },
			Observe: func(time.Duration, error) { observed++ },
		}, time.Second)
		if !drained || observed != 0 || log.Len() != 0 {
			t.Errorf("drained %t, observed %d, log %q", drained, observed, &log)
		}
	})
}

func TestLoop_LogsFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var failures int
		run(t, background.Loop{
			Name: "broken", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Pass: func(context.Context) error { return errors.New("away") },
			Observe: func(_ time.Duration, err error) {
				if err != nil {
					failures++
				}
			},
		}, 2*time.Second)
		if failures != 2 || !strings.Contains(log.String(), "loop=broken failures=2 error=away") {
			t.Errorf("%d failures, log:\n%s", failures, &log)
		}
	})
}
