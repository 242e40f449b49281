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
	// standstill is how much later than planned a pass must begin to show that the
	// process, or its host, was suspended.
	standstill = time.Second
)

// Pass is what one pass did.
type Pass struct {
	// Done is how many schedule entries, jobs, webhooks or operations it acted on.
	Done int
	// Removed is how many old operations and leftovers of operations it deleted.
	Removed int
	// More says that a limit ended the pass, so that the next one has work at once.
	More bool
}

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
	// Logger logs failed passes. Optional.
	Logger *slog.Logger
	// Observe is called after each pass. Optional.
	Observe func(took time.Duration, err error)
}

// Run makes a pass at once and then at each interval, until the context ends. It
// returns nil.
func (l Loop) Run(ctx context.Context) error {
	interval, random := cmp.Or(l.Interval, time.Second), l.Random
	if random == nil {
		random = rand.Float64
	}
	logger := cmp.Or(l.Logger, slog.New(slog.DiscardHandler))
	if l.Drain != nil {
		defer l.Drain()
	}
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
		// Deadlines use the wall clock; the monotonic one may stop with the host.
		if begin.Round(0).Sub(planned.Round(0)) > standstill && l.Resumed != nil {
			l.Resumed(begin)
		}
		err := l.Pass(ctx)
		end := time.Now()
		if ctx.Err() != nil {
			return nil
		}
		delay := interval
		if err != nil {
			failures++
			logger.ErrorContext(ctx, "pass failed", "loop", l.Name, "failures", failures, "error", err)
			for range failures - 1 {
				delay = max(delay, min(2*delay, maxBackoff))
			}
		} else if failures = 0; l.Rest != nil {
			delay = max(delay, l.Rest())
		}
		delay += time.Duration(float64(delay) * l.Jitter * (random() - 0.5))
		if planned = begin.Add(delay); planned.Before(end) {
			planned = end
		}
		if l.Observe != nil {
			l.Observe(end.Sub(begin), err)
		}
		timer.Reset(time.Until(planned))
	}
}
