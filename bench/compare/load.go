package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// openRate is how many jobs a second the open loop sends.
	openRate = 50
	// batchSize is the number of jobs in a batch, the most that Lucius takes, and
	// batchSubmitters how many submitters send batches concurrently.
	batchSize, batchSubmitters = 100, 4
	// drain is how long the last jobs of a load may take to end.
	drain = time.Minute
)

// payload is the payload of each job: 256 bytes as JSON.
var payload = struct {
	Data string `json:"data"`
}{string(slices.Repeat([]byte{'x'}, 256-len(`{"data":""}`)))}

// errUnfinished is returned when jobs have not ended within drain.
var errUnfinished = errors.New("jobs did not end")

// load is the load that is put on each system.
type load struct {
	inFlight         int
	warmUp, duration time.Duration
	names            atomic.Int64
}

// figures is the result of one system in one round.
type figures struct {
	oneStep, threeSteps float64 // jobs a second
	cpu                 float64 // milliseconds for a job of three steps
	p50, p99            float64 // milliseconds, in the open loop
	batched             float64 // jobs a second
}

// run puts all loads on the system, one after the other.
func (l *load) run(ctx context.Context, system system, ends *tracker) (figures, error) {
	var f figures
	var err error
	if f.oneStep, _, err = l.closed(ctx, system, ends, 1); err != nil {
		return f, fmt.Errorf("one step: %w", err)
	}
	if f.threeSteps, f.cpu, err = l.closed(ctx, system, ends, 3); err != nil {
		return f, fmt.Errorf("three steps: %w", err)
	}
	if f.p50, f.p99, err = l.open(ctx, system, ends); err != nil {
		return f, fmt.Errorf("%d jobs a second: %w", openRate, err)
	}
	if f.batched, err = l.batches(ctx, system); err != nil {
		return f, fmt.Errorf("batches: %w", err)
	}
	return f, nil
}

// name returns the name of a new job.
func (l *load) name() string { return fmt.Sprintf("job-%d", l.names.Add(1)) }

// window is the measured time.
type window struct{ start, end time.Time }

// holds reports whether t lies in the window.
func (w window) holds(t time.Time) bool { return !t.Before(w.start) && t.Before(w.end) }

// begin returns the measured time, which follows the warm-up, and a context that ends
// when the last jobs had their time to end.
func (l *load) begin(ctx context.Context) (context.Context, context.CancelFunc, window) {
	start := time.Now().Add(l.warmUp)
	window := window{start, start.Add(l.duration)}
	ctx, cancel := context.WithDeadlineCause(ctx, window.end.Add(drain), errUnfinished)
	return ctx, cancel, window
}

// closed keeps jobs in flight, and returns how many ended a second, and the
// milliseconds of CPU time that each took.
func (l *load) closed(ctx context.Context, system system, ends *tracker, steps int) (perSecond, cpu float64, err error) {
	ctx, cancel, window := l.begin(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var ended atomic.Int64
	for range l.inFlight {
		group.Go(func() error {
			for time.Now().Before(window.end) {
				at, err := l.job(ctx, system, ends, steps)
				if err != nil {
					return err
				}
				if window.holds(at) {
					ended.Add(1)
				}
			}
			return nil
		})
	}
	var used time.Duration
	group.Go(func() (err error) {
		used, err = watchCPU(ctx, window)
		return err
	})
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	jobs := float64(ended.Load())
	if jobs == 0 {
		return 0, math.NaN(), nil
	}
	return jobs / l.duration.Seconds(), milliseconds(used) / jobs, nil
}

// job submits a job, waits for its end and returns the time of the end.
func (l *load) job(ctx context.Context, system system, ends *tracker, steps int) (time.Time, error) {
	name := l.name()
	ended := ends.expect(name)
	if err := system.submit(ctx, name, steps); err != nil {
		return time.Time{}, errors.Join(err, context.Cause(ctx))
	}
	select {
	case at := <-ended:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// open sends jobs of three steps at fixed times, and returns percentiles of the
// milliseconds from such a time until the end of its job. It waits for all jobs, so that
// late ones are not left out.
func (l *load) open(ctx context.Context, system system, ends *tracker) (p50, p99 float64, err error) {
	ctx, cancel, window := l.begin(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	var latencies []time.Duration
	for at := time.Now(); at.Before(window.end) && sleepUntil(ctx, at); at = at.Add(time.Second / openRate) {
		group.Go(func() error {
			end, err := l.job(ctx, system, ends, 3)
			if err == nil && window.holds(at) {
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, end.Sub(at))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	return percentile(latencies, 50), percentile(latencies, 99), nil
}

// batches sends batches, and returns how many jobs a second were accepted.
func (l *load) batches(ctx context.Context, system system) (perSecond float64, err error) {
	ctx, cancel, window := l.begin(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var accepted atomic.Int64
	for range batchSubmitters {
		group.Go(func() error {
			names := make([]string, batchSize)
			for time.Now().Before(window.end) {
				for i := range names {
					names[i] = l.name()
				}
				if err := system.submitBatch(ctx, names); err != nil {
					return errors.Join(err, context.Cause(ctx))
				}
				if window.holds(time.Now()) {
					accepted.Add(batchSize)
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return float64(accepted.Load()) / l.duration.Seconds(), err
}

// watchCPU returns the CPU time used in the window.
func watchCPU(ctx context.Context, window window) (time.Duration, error) {
	if !sleepUntil(ctx, window.start) {
		return 0, context.Cause(ctx)
	}
	before, err := usedCPU()
	if err != nil {
		return 0, err
	}
	if !sleepUntil(ctx, window.end) {
		return 0, context.Cause(ctx)
	}
	after, err := usedCPU()
	return after - before, err
}

// sleepUntil waits for the time. It reports false if the context ends first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// percentile returns the smallest sample, in milliseconds, that at least that share of
// the samples does not exceed.
func percentile(samples []time.Duration, percent float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	slices.Sort(samples)
	rank := int(math.Ceil(percent / 100 * float64(len(samples))))
	return milliseconds(samples[max(rank, 1)-1])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// tracker notifies each submitter when its job has ended. It is safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	waiting map[string]chan time.Time
}

func newTracker() *tracker { return &tracker{waiting: map[string]chan time.Time{}} }

// expect returns a channel that receives the time of the job's end.
func (t *tracker) expect(name string) <-chan time.Time {
	ended := make(chan time.Time, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[name] = ended
	return ended
}

// end records that a job ended just now. It ignores repetitions.
func (t *tracker) end(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended, ok := t.waiting[name]; ok {
		ended <- time.Now() // The channel has room for it, and gets no other.
		delete(t.waiting, name)
	}
}
