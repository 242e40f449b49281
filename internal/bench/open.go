package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// openLoop sends commands at a fixed rate, whether or not earlier ones have been answered, and
// times each from when it was due. It counts the jobs whose commands were due in the window,
// so that it includes slow ones.
func openLoop(ctx context.Context, r *run) error {
	group, ctx := errgroup.WithContext(ctx)
	begin := r.window.start.Add(-r.options.WarmUp)
	for n := 1; ; n++ {
		due := begin.Add(time.Duration(n-1) * time.Second / time.Duration(r.options.Rate))
		if !due.Before(r.window.end) || !sleepUntil(ctx, due) {
			return group.Wait()
		}
		group.Go(func() error {
			answered, ended, err := r.carry(ctx, n, n)
			if err == nil && r.window.holds(due) {
				r.record(due, answered, ended)
			}
			return err
		})
	}
}
