// Package bench measures a running server from outside, over HTTP, the way its
// clients and workers use it.
//
//	submitter 1..N ──POST /v1/commands──▶ ┌────────┐
//	     ▲                                │ server │
//	     │ job ended                      │        │
//	     └──────── puller ◀──work:claim── │        │
//	                  └────:complete────▶ └────────┘
//
// The loop is closed: each submitter sends one command, waits for its job to
// end, and only then sends the next. So there are never more jobs in flight
// than submitters, and a slow server gets fewer commands instead of being overrun.
//
// A job has ended when the server has answered the completion of its last
// step: that answer follows the commit that made the job SUCCEEDED. Taking the
// time there is exact and costs no request; waiting for every job with
// GET /v1/jobs would measure the polling as well. As a check, a sample of the jobs
// is read back afterwards, and one that is not SUCCEEDED fails the run.
//
// The same client code then measures the ceiling: a bare net/http server, in this
// process, that answers each request once its bytes are on disk, with one fdatasync
// for all waiting requests. No durable service on this machine answers more requests
// than that, and the ratio to it says more about the server than an absolute figure,
// which depends on the machine.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// Options configures a measurement.
type Options struct {
	// BaseURL is the URL of the server, such as http://127.0.0.1:8080. The server must
	// have been started with the protocols of [WriteProtocols]. Required.
	BaseURL string
	// Dir is a folder on the disk that holds the server's data. The ceiling is
	// measured there, in a file that is removed afterwards. Required.
	Dir string
	// Out receives the results. Required.
	Out io.Writer
	// Progress receives lines about the progress of the run. Optional.
	Progress io.Writer
	// ServerPID is the server's process id, for measuring its CPU time. Optional. 0
	// omits that.
	ServerPID int
	// Steps are the numbers of steps to measure jobs with, each in a run of its
	// own; see [ParseSteps]. Optional. Defaults to 1 and 3.
	Steps []int
	// Submitters is the number of clients, and so of jobs in flight. Optional.
	// Defaults to 64.
	Submitters int
	// Pullers is the number of claims that wait for work at the same time; each
	// may take many items at once. Optional. Defaults to 4.
	Pullers int
	// PayloadBytes is the size of each command's payload. Optional. Defaults to
	// 256.
	PayloadBytes int
	// Duration is how long each run is measured. Optional. Defaults to 10s.
	Duration time.Duration
	// WarmUp is how long each run lasts before that. Optional. Defaults to 2s.
	WarmUp time.Duration
	// Drain is how long the last jobs may take to end after a run. Optional.
	// Defaults to 30s.
	Drain time.Duration
	// JSON writes the results as one JSON document instead of a table. Optional.
	JSON bool
}

// The limits of the options. The largest payload is the server's default limit.
const (
	maxSubmitters = 4096
	maxPullers    = 64
	minPayload    = 11 // {"data":""}
	maxPayload    = 128 << 10
)

// validate returns an error that names the first invalid field.
func (o *Options) validate() error {
	base, err := url.Parse(o.BaseURL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return fmt.Errorf("BaseURL is %q, it must be an http or https URL", o.BaseURL)
	case o.Dir == "":
		return errors.New("Dir is required")
	case o.Out == nil:
		return errors.New("Out is required")
	case o.Submitters < 1 || o.Submitters > maxSubmitters:
		return fmt.Errorf("Submitters is %d, it must be from 1 to %d", o.Submitters, maxSubmitters)
	case o.Pullers < 1 || o.Pullers > maxPullers:
		return fmt.Errorf("Pullers is %d, it must be from 1 to %d", o.Pullers, maxPullers)
	case o.PayloadBytes < minPayload || o.PayloadBytes > maxPayload:
		return fmt.Errorf("PayloadBytes is %d, it must be from %d to %d", o.PayloadBytes, minPayload, maxPayload)
	case o.Duration <= 0:
		return fmt.Errorf("Duration is %s, it must be more than 0", o.Duration)
	case o.WarmUp < 0:
		return fmt.Errorf("WarmUp is %s, it must not be negative", o.WarmUp)
	case o.Drain <= 0:
		return fmt.Errorf("Drain is %s, it must be more than 0", o.Drain)
	case o.ServerPID < 0:
		return fmt.Errorf("ServerPID is %d, it must be a process", o.ServerPID)
	}
	for _, steps := range o.Steps {
		if stepWords[steps] == "" {
			return fmt.Errorf("Steps is %d, it must be 1 or 3", steps)
		}
	}
	return nil
}

// setDefaults fills in the defaults.
func (o *Options) setDefaults() {
	if len(o.Steps) == 0 {
		o.Steps = []int{1, 3}
	}
	o.Submitters = cmp.Or(o.Submitters, 64)
	o.Pullers = cmp.Or(o.Pullers, 4)
	o.PayloadBytes = cmp.Or(o.PayloadBytes, 256)
	o.Duration = cmp.Or(o.Duration, 10*time.Second)
	o.WarmUp = cmp.Or(o.WarmUp, 2*time.Second)
	o.Drain = cmp.Or(o.Drain, 30*time.Second)
	o.Progress = cmp.Or(o.Progress, io.Discard)
}

// ParseSteps parses the command line's "1", "3" or "both".
func ParseSteps(text string) ([]int, error) {
	switch text {
	case "1":
		return []int{1}, nil
	case "3":
		return []int{3}, nil
	case "both":
		return []int{1, 3}, nil
	}
	return nil, fmt.Errorf("steps is %q, it must be 1, 3 or both", text)
}

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
	if err := options.validate(); err != nil {
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
	all := slices.Concat(endToEnd...)
	result.Jobs, result.Audited = len(all), len(audited)
	result.PerSecond = float64(len(all)) / b.options.Duration.Seconds()
	result.EndToEnd, result.Submit = percentiles(all), percentiles(slices.Concat(submit...))
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
	return cpu{after.server - before.server, after.client - before.client}, err
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
				if err := b.client.send(ctx, http.MethodGet, "/v1/jobs/"+jobID, nil, &job); err != nil {
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
