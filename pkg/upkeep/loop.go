package upkeep

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// maxBackoff bounds the delay after failed passes: a loop notices that late
	// that the store is back.
	maxBackoff = 5 * time.Second
	// standstill is how much later than planned a pass has to begin for the process,
	// or its host, to have been suspended in between.
	standstill = time.Second
)

// Loop makes passes in the background.
type Loop struct {
	// Name names the loop in the log. Required.
	Name string
	// Pass does the work of one pass. Required. After an error the next passes come
	// at growing delays, of 5 s at most.
	Pass func(ctx context.Context) error
	// Interval is the time from the beginning of one pass to that of the next; a
	// pass that takes longer is followed by the next at once. Optional. Defaults
	// to 1 s.
	Interval time.Duration
	// Jitter is the share of the interval, from 0 to 1, by which it varies, so that
	// replicas do not work in step. Optional. Defaults to 0.
	Jitter float64
	// Random returns numbers in [0, 1), for the jitter. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Rest returns how long to wait after the pass that just succeeded, if that is
	// longer than the interval. Optional.
	Rest func() time.Duration
	// Wake asks for a pass at once. Optional.
	Wake <-chan struct{}
	// Resumed is called before a pass that begins more than a second later than
	// planned: the process or its host was suspended. Optional.
	Resumed func(now time.Time)
	// Drain waits for the work that passes have started, once the context has ended.
	// Optional.
	Drain func()
	// Logger is told of failed passes. Optional.
	Logger *slog.Logger
	// Observe is told of each pass. Optional.
	Observe func(took time.Duration, err error)
}

// Run makes a pass at once and then at each interval, until the context ends. It
// returns nil.
func (l Loop) Run(ctx context.Context) error {
	l = l.withDefaults()
	defer l.Drain()
	failures := 0
	planned := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.Wake:
		case <-ctx.Done():
			return nil
		}
		begin := time.Now()
		// By the wall clock, as deadlines are: the other one may stand still with the host.
		if begin.Round(0).Sub(planned.Round(0)) > standstill {
			l.Resumed(begin)
		}
		err := l.Pass(ctx)
		end := time.Now()
		if ctx.Err() != nil {
			return nil
		}
		if failures++; err == nil {
			failures = 0
		}
		planned = later(begin.Add(l.delay(failures)), end)
		if err != nil {
			l.Logger.ErrorContext(ctx, "pass failed", "loop", l.Name, "failures", failures, "error", err)
		}
		l.Observe(end.Sub(begin), err)
		timer.Reset(time.Until(planned))
	}
}

// withDefaults fills in the optional fields.
func (l Loop) withDefaults() Loop {
	l.Interval = cmp.Or(l.Interval, time.Second)
	if l.Random == nil {
		l.Random = rand.Float64
	}
	if l.Rest == nil {
		l.Rest = func() time.Duration { return 0 }
	}
	if l.Resumed == nil {
		l.Resumed = func(time.Time) {}
	}
	if l.Drain == nil {
		l.Drain = func() {}
	}
	if l.Logger == nil {
		l.Logger = slog.New(slog.DiscardHandler)
	}
	if l.Observe == nil {
		l.Observe = func(time.Duration, error) {}
	}
	return l
}

// delay is the time from the beginning of a pass to that of the next, after so many
// failures in a row.
func (l Loop) delay(failures int) time.Duration {
	delay := l.Interval
	if failures == 0 {
		delay = max(delay, l.Rest())
	}
	for range failures - 1 {
		delay = max(delay, min(2*delay, maxBackoff))
	}
	if l.Jitter > 0 {
		delay += time.Duration(float64(delay) * l.Jitter * (l.Random() - 0.5))
	}
	return delay
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
