package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// closedLoop makes each submitter send one command after the other, each after the job of the
// previous one has ended. It counts the jobs that end in the window.
func closedLoop(ctx context.Context, r *run) error {
	group, ctx := errgroup.WithContext(ctx)
	for submitter := range r.options.Submitters {
		group.Go(func() error {
			for n := 1; ; n++ {
				begun := time.Now()
				if !begun.Before(r.window.end) {
					return nil
				}
				answered, ended, err := r.carry(ctx, submitter, n)
				if err != nil {
					return err
				}
				if r.window.holds(ended) {
					r.record(begun, answered, ended)
				}
			}
		})
	}
	return group.Wait()
}
