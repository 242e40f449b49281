package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// prefill creates the jobs of the prefilled server.
func (b *bench) prefill(ctx context.Context, server Server) error {
	for _, kind := range []struct {
		name string
		jobs int
		make func(ctx context.Context, r *run, jobs int) error
	}{
		{"finished", b.options.Finished, makeFinished},
		{"live", b.options.Live, makeLive},
		{"waiting", b.options.Waiting, submitting(waitingType)},
		{"ordered", b.options.InLine, submitting(lineType)},
	} {
		if err := b.make(ctx, server, kind.name, kind.jobs, kind.make); err != nil {
			return err
		}
	}
	return nil
}

// make creates jobs of one kind.
func (b *bench) make(
	ctx context.Context, server Server, name string, jobs int, by func(ctx context.Context, r *run, jobs int) error,
) error {
	r := b.newRun(server, loadNamed(One), Prefilled)
	defer r.client.close()
	defer b.progress.follow(ctx, "making "+name+" jobs", "jobs", window{})()
	if err := by(ctx, r, jobs); err != nil {
		return fmt.Errorf("%s jobs: %w", name, err)
	}
	return nil
}

// makeFinished submits jobs of one step in batches and completes them. Each client sends a
// batch when the jobs of its previous batch have ended.
func makeFinished(whole context.Context, r *run, jobs int) error {
	group, ctx := errgroup.WithContext(whole)
	stop := r.workers().run(ctx, group, r.options.Pullers)
	group.Go(func() error {
		defer stop()
		return r.fill(ctx, jobs, func(ctx context.Context, names []string, client int) error {
			waiting := make([]<-chan time.Time, len(names))
			for i, name := range names {
				waiting[i] = r.tracker.expect(name)
			}
			if err := r.submitBatch(ctx, names, requestType(1), client); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(ctx, r.options.Drain, ErrUnfinished)
			defer cancel()
			for _, ended := range waiting {
				select {
				case <-ended:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return r.awaitIdle(whole)
}

// makeLive submits jobs and starts their steps without completing them.
func makeLive(ctx context.Context, r *run, jobs int) error {
	if err := submitting(liveType)(ctx, r, jobs); err != nil {
		return err
	}
	w := &workers{client: r.client, owner: r.name, service: liveService, start: true}
	for left := jobs; left > 0; {
		items, err := w.claim(ctx, int32(min(left, batchSize)))
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return fmt.Errorf("%w: %d of %d jobs were not dispatched", ErrUnfinished, left, jobs)
		}
		left -= len(items)
	}
	return nil
}

// submitting returns a function that submits jobs of a request type.
func submitting(requestType string) func(ctx context.Context, r *run, jobs int) error {
	return func(ctx context.Context, r *run, jobs int) error {
		return r.fill(ctx, jobs, func(ctx context.Context, names []string, client int) error {
			return r.submitBatch(ctx, names, requestType, client)
		})
	}
}

// fill calls send, from several clients concurrently, with the names of batches for the given
// number of jobs in total.
func (r *run) fill(ctx context.Context, jobs int, send func(ctx context.Context, names []string, client int) error) error {
	var taken atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for client := range batchClients {
		group.Go(func() error {
			for n := 1; ; n++ {
				before := int(taken.Add(batchSize)) - batchSize
				if before >= jobs {
					return nil
				}
				names := r.batchNames(client, n, min(batchSize, jobs-before))
				if err := send(ctx, names, client); err != nil {
					return err
				}
				for range names {
					r.count()
				}
			}
		})
	}
	return group.Wait()
}
