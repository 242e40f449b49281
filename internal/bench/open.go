package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// openLoop sends commands at the fixed rate, whether or not earlier ones are answered, and
// times each from when it was due. It counts the jobs that were due in the window, so that
// slow jobs are not left out.
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
