package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// ErrUnfinished is returned when accepted jobs have not ended within Drain.
var ErrUnfinished = errors.New("jobs did not end")

// ErrAudit is returned when a job that was counted is not SUCCEEDED when it is
// read back.
var ErrAudit = errors.New("a counted job has not succeeded")

// bench is one measurement.
type bench struct {
	options  Options
	client   *client
	progress *progress
}

// Run measures the server and the ceiling of the machine, and writes the results. It
// takes WarmUp and Duration for each number of steps and once more for the ceiling,
// plus at most Drain for each.
//
// It ends at the first failed request; a [*StatusError] holds the server's answer.
// Its other errors are [ErrUnfinished], [ErrReplayed] and [ErrAudit].
func Run(ctx context.Context, options Options) error {
	report, err := Measure(ctx, options)
	if err != nil {
		return err
	}
	return report.write(options.Out, options.JSON)
}

// Measure does the work of [Run] and returns the results.
func Measure(ctx context.Context, options Options) (*Report, error) {
	options.setDefaults()
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b := &bench{
		options: options, progress: newProgress(options.Progress),
		client: newClient(options.BaseURL, 2*options.Submitters+options.Pullers),
	}
	defer b.client.close()
	report := &Report{
		Submitters: options.Submitters, Pullers: options.Pullers, PayloadBytes: options.PayloadBytes,
		WarmUpSeconds: options.WarmUp.Seconds(), DurationSeconds: options.Duration.Seconds(),
	}
	for _, steps := range options.Steps {
		result, err := b.jobs(ctx, steps)
		if err != nil {
			return nil, fmt.Errorf("bench: jobs of %d steps: %w", steps, err)
		}
		report.Jobs = append(report.Jobs, result)
	}
	var err error
	if report.Ceiling, err = b.ceiling(ctx); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	report.compare()
	return report, nil
}

// window returns the measured time, which begins after the warm-up.
func (b *bench) window() window {
	start := time.Now().Add(b.options.WarmUp)
	return window{start, start.Add(b.options.Duration)}
}

// jobs measures jobs of that many steps.
func (b *bench) jobs(ctx context.Context, steps int) (JobResult, error) {
	window := b.window()
	limited, cancel := context.WithDeadlineCause(ctx, window.end.Add(b.options.Drain), ErrUnfinished)
	defer cancel()
	stop := b.progress.follow(limited, title(steps), "jobs", window)
	taken, used, err := b.load(limited, steps, window)
	stop()
	if err != nil {
		return JobResult{}, err
	}
	result := JobResult{Steps: steps}
	var endToEnd, submit [][]time.Duration
	var audited []string
	for i := range taken {
		endToEnd, submit = append(endToEnd, taken[i].endToEnd), append(submit, taken[i].submit)
		audited = append(audited, taken[i].jobs...)
	}
	if err := b.audit(ctx, audited); err != nil {
		return JobResult{}, err
	}
	all := merge(endToEnd)
	result.Jobs, result.Audited = len(all), len(audited)
	result.PerSecond = float64(len(all)) / b.options.Duration.Seconds()
	result.EndToEnd, result.Submit = percentiles(all), percentiles(merge(submit))
	result.charge(used)
	return result, nil
}

// load runs submitters and pullers, and returns the samples of each submitter and the
// CPU time used in the window.
func (b *bench) load(ctx context.Context, steps int, window window) ([]samples, cpu, error) {
	run := "bench-" + uuid.NewString()
	tracker := newTracker()
	submit := &submitting{
		client: b.client, tracker: tracker, window: window, run: run, steps: steps,
		payload: payloadOf(b.options.PayloadBytes), count: b.progress.count,
	}
	pull := &pulling{client: b.client, tracker: tracker, owner: run, last: stepID(steps)}

	group, ctx := errgroup.WithContext(ctx)
	claims, stopClaims := context.WithCancel(ctx)
	defer stopClaims()
	taken := make([]samples, b.options.Submitters)
	var submitters sync.WaitGroup
	submitters.Add(len(taken))
	for i := range taken {
		group.Go(func() (err error) {
			defer submitters.Done()
			taken[i], err = submit.loop(ctx, i)
			return err
		})
	}
	for range b.options.Pullers {
		group.Go(func() error { return pull.loop(claims, ctx, group) })
	}
	var used cpu
	group.Go(func() (err error) {
		used, err = b.watchCPU(ctx, window)
		return err
	})
	submitters.Wait()
	stopClaims()
	err := group.Wait()
	return taken, used, err
}

// watchCPU returns the CPU time used in the window.
func (b *bench) watchCPU(ctx context.Context, window window) (cpu, error) {
	if !sleepUntil(ctx, window.start) {
		return cpu{}, nil
	}
	before, err := usedCPU(b.options.ServerPID)
	if err != nil || !sleepUntil(ctx, window.end) {
		return cpu{}, err
	}
	after, err := usedCPU(b.options.ServerPID)
	return after.sub(before), err
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

// audit reads back jobs that were counted as ended, a few concurrently.
func (b *bench) audit(ctx context.Context, jobIDs []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for chunk := range slices.Chunk(jobIDs, 16) {
		group.Go(func() error {
			for _, jobID := range chunk {
				var job struct {
					State api.JobState `json:"state"`
				}
				if err := b.client.get(ctx, "/v1/jobs/"+jobID, &job); err != nil {
					return err
				}
				if job.State != api.JobStateSucceeded {
					return fmt.Errorf("%w: job %s is %s", ErrAudit, jobID, job.State)
				}
			}
			return nil
		})
	}
	return group.Wait()
}
