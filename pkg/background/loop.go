package background

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxBackoff bounds the delay after failed passes, and so how late a loop notices
	// that the store is back.
	maxBackoff = 5 * time.Second
	// suspended is the time between two looks of a [watch] beyond which the process, or its
	// host, must have been suspended; lookEvery is the time that is planned.
	suspended = time.Second
	lookEvery = suspended / 4
)

// Pass is what one pass did.
type Pass struct {
	// Done is how many schedule entries, jobs, webhooks or operations it acted on.
	Done int
	// Removed is how many old operations, and leftovers of failed creates, it deleted.
	Removed int
	// More says that a limit ended the pass, so that the next one has work at once.
	More bool
}

// Loop makes passes in the background.
type Loop struct {
	// Name names the loop in the log. Required.
	Name string
	// Pass does the work of one pass. Required. After an error, Run doubles the
	// interval, up to 5 s, until a pass succeeds.
	Pass func(ctx context.Context) error
	// Interval is the time from the start of one pass to the start of the next; a
	// pass that takes longer is followed by the next at once. Optional. Defaults
	// to 1 s.
	Interval time.Duration
	// Jitter is the width of the range, as a fraction of the interval from 0 to 1, over
	// which the interval varies, so that replicas do not run in step. Optional. Defaults
	// to 0.
	Jitter float64
	// Random returns numbers in [0, 1), for the jitter. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Rest is called after each pass that succeeded. It returns the time until the next
	// one, if that is longer than the interval. Optional.
	Rest func() time.Duration
	// Wake starts a pass at once. Optional.
	Wake <-chan struct{}
	// Resumed is called before the first pass after the process or its host was suspended for
	// more than a second, between two passes or within one. Optional.
	Resumed func(now time.Time)
	// Drain waits for work that passes have started. Run calls it before it returns.
	// Optional.
	Drain func()
	// Logger logs failed passes. Optional.
	Logger *slog.Logger
	// Observe is called after each pass, except one that the end of the context
	// interrupts. Optional.
	Observe func(took time.Duration, err error)
}

// Run makes a pass at once and then one per interval, until the context ends. It returns
// nil.
func (l Loop) Run(ctx context.Context) error {
	ctx = tablestore.ForLoop(ctx, l.Name)
	interval, random := cmp.Or(l.Interval, time.Second), l.Random
	if random == nil {
		random = rand.Float64
	}
	logger := cmp.Or(l.Logger, slog.New(slog.DiscardHandler))
	if l.Drain != nil {
		defer l.Drain()
	}
	failures := 0
	watch := watch{last: time.Now()}
	if l.Resumed != nil {
		defer watch.start()()
	}
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
		if l.Resumed != nil && watch.resumed(begin) {
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
		if l.Observe != nil {
			l.Observe(end.Sub(begin), err)
		}
		timer.Reset(time.Until(begin.Add(delay)))
	}
}

// watch looks at the clock four times a second. If a second passed without a look, the process
// or its host was suspended. The length of a pass does not tell that: it may have waited for a
// slow store. A watch is safe for concurrent use.
type watch struct {
	mu    sync.Mutex
	last  time.Time // the latest look
	found bool      // a suspension, since the last call of resumed
}

// start looks until the function that it returns is called.
func (w *watch) start() (stop func()) {
	ticker, end, ended := time.NewTicker(lookEvery), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.look(time.Now())
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

// look compares wall clocks, because the monotonic clock may stop while the host is suspended.
func (w *watch) look(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = w.found || now.Round(0).Sub(w.last.Round(0)) > suspended
	w.last = now
}

// resumed looks, and reports whether there was a suspension since the last call.
func (w *watch) resumed(now time.Time) bool {
	w.look(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.found
	w.found = false
	return found
}
