// Package bench measures a server from outside, over HTTP, the way its clients and
// workers use it.
//
//	submitter 1..N ──POST /v1/commands──▶ ┌────────┐
//	     ▲                                │ server │
//	     │ job ended                      │        │
//	     └──────── puller ◀──work:claim── │        │
//	                  └─work:complete───▶ └────────┘
//
// Each kind of load is measured on a new server with an empty data directory and, if the
// options say so, again on a server that already holds many jobs:
//
//   - closed loop ([One], [Three], [Callbacks]): each submitter sends one command, waits for
//     its job to end, and only then sends the next. This finds the highest rate: there are
//     never more jobs in flight than submitters, so a slow server gets fewer commands
//     instead of being overrun.
//   - open loop ([Open]): commands are sent at a fixed rate, however slow the responses are,
//     and each job is timed from when its command was due. A closed loop would not send
//     while the server stalls, and so would miss most of a stall.
//   - lines ([Lines]): the closed loop of one step, with an order key of its own for each command.
//   - limits ([Limits]): the closed loop of one step, under a limit of the service far above the load.
//   - batches ([Batch]): POST /v1/commands:batch with 100 commands, which no worker takes.
//   - retention ([Retention], only by name and on an empty server): the closed loop of one step
//     on a server that keeps ended jobs for 20 seconds. It takes long, because it shows whether
//     the store stops growing.
//   - bulk ([Bulk], only by name): the closed loop of one step with few workers, in turn on an empty
//     server and on one to which many bulk jobs of the same kind were submitted. It shows how much
//     later normal work is claimed, and whether bulk work gets its share.
//   - schedules ([Schedules], only by name and on an empty server): schedules that are all due at the
//     same time. It shows how long after that their jobs are accepted; no worker takes them.
//
// A job has ended when the server has answered the completion of its last step, because
// that answer follows the commit that makes the job SUCCEEDED. Taking the time there is
// exact and costs no request. As a check, a sample of the jobs is read back afterwards, and
// one that is not SUCCEEDED fails the run.
//
// The same client code measures the ceilings of the machine; see [Ceiling]. The ratio to
// them says more about the server than an absolute figure, which depends on the machine.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// Server is a running server.
type Server struct {
	// URL is the base URL, such as http://127.0.0.1:8080.
	URL string
	// Stop shuts the server down, and returns once it has released its data directory.
	Stop func() error

	dataDir string
}

// Options configures a measurement.
type Options struct {
	// Start starts a server with the data directory, which does not exist yet, and the
	// protocols directory. It keeps ended jobs and their keys for the retention, or if that is
	// 0, as long as a server does by default. Required.
	Start func(ctx context.Context, dataDir, protocolsDir string, retention time.Duration) (Server, error)
	// DiskBytes returns how many bytes the current rows take in the data directory of a
	// stopped server. Required.
	DiskBytes func(ctx context.Context, dataDir string) (int64, error)
	// Dir is a folder on the disk to measure. Measure removes what it writes there.
	// Required.
	Dir string
	// Progress receives lines about the progress of the run. Optional.
	Progress io.Writer
	// Loads are the loads to measure. Optional. Defaults to [Loads].
	Loads []string
	// Submitters is the number of clients, and so of jobs in flight in a closed loop.
	// Optional. Defaults to 64.
	Submitters int
	// Pullers is the number of concurrent claims, each of which may take many items.
	// Optional. Defaults to 4.
	Pullers int
	// PayloadBytes is the size of each command's payload. Optional. Defaults to
	// 256.
	PayloadBytes int
	// Rate is the number of jobs per second of the open loop. Optional. Defaults to 50.
	Rate int
	// Finished, Live, Waiting and InLine are the numbers of jobs on a prefilled server: jobs that
	// have succeeded, jobs with a step that a worker holds, jobs of a service without a
	// worker, and jobs of that service which wait in one line. Optional. If all are 0, no
	// prefilled server is measured.
	Finished, Live, Waiting, InLine int
	// Bulk is the number of bulk jobs of [Bulk]. Optional. Defaults to 20,000.
	Bulk int
	// Rounds is how often [Bulk] measures each of its servers. Optional. Defaults to 5.
	Rounds int
	// Schedules is the number of schedules of [Schedules]. Optional. Defaults to 10,000, as many as a
	// server allows.
	Schedules int
	// Duration is how long each load is measured ([Bulk]: in each round on each server), except [Retention]
	// and [Schedules]. Optional. Defaults to 5s.
	Duration time.Duration
	// CeilingDuration is how long each ceiling is measured. Optional. Defaults to Duration.
	CeilingDuration time.Duration
	// RetentionDuration is how long [Retention] is measured. Optional. Defaults to 20m.
	RetentionDuration time.Duration
	// WarmUp is how long each load runs before that. Optional. Defaults to 1s.
	WarmUp time.Duration
	// Drain bounds the time for the last jobs to end after a run. Optional. Defaults to
	// 30s.
	Drain time.Duration
}

// The limits of the options. The largest payload is the server's default limit.
const (
	maxSubmitters = 4096
	maxPullers    = 64
	maxRate       = 10_000
	maxRounds     = 1000
	maxPrefill    = 100_000_000
	maxInLine     = 1_000_000 // the limit of the server
	maxSchedules  = 10_000    // the limit of the server
	minPayload    = 11        // {"data":""}
	maxPayload    = 128 << 10
)

// validate returns an error that names the first invalid field.
func (o *Options) validate() error {
	for _, field := range []struct {
		name            string
		value, min, max int
	}{
		{"Submitters", o.Submitters, 1, maxSubmitters},
		{"Pullers", o.Pullers, 1, maxPullers},
		{"PayloadBytes", o.PayloadBytes, minPayload, maxPayload},
		{"Rate", o.Rate, 1, maxRate},
		{"Finished", o.Finished, 0, maxPrefill},
		{"Live", o.Live, 0, maxPrefill},
		{"Waiting", o.Waiting, 0, maxPrefill},
		{"InLine", o.InLine, 0, maxInLine},
		{"Bulk", o.Bulk, 1, maxPrefill},
		{"Rounds", o.Rounds, 1, maxRounds},
		{"Schedules", o.Schedules, 1, maxSchedules},
	} {
		if field.value < field.min || field.value > field.max {
			return fmt.Errorf("%s is %d: it must be from %d to %d", field.name, field.value, field.min, field.max)
		}
	}
	switch {
	case o.Start == nil:
		return errors.New("Start is required")
	case o.DiskBytes == nil:
		return errors.New("DiskBytes is required")
	case o.Dir == "":
		return errors.New("Dir is required")
	case o.Duration <= 0:
		return fmt.Errorf("Duration is %s: it must be positive", o.Duration)
	case o.CeilingDuration <= 0:
		return fmt.Errorf("CeilingDuration is %s: it must be positive", o.CeilingDuration)
	case o.RetentionDuration <= 0:
		return fmt.Errorf("RetentionDuration is %s: it must be positive", o.RetentionDuration)
	case o.WarmUp < 0:
		return fmt.Errorf("WarmUp is %s: it must not be negative", o.WarmUp)
	case o.Drain <= 0:
		return fmt.Errorf("Drain is %s: it must be positive", o.Drain)
	}
	for _, name := range o.Loads {
		if loadNamed(name) == nil {
			return fmt.Errorf("Loads has %q: the loads are %s, %s", name, strings.Join(Loads(), ", "), strings.Join(ByName(), ", "))
		}
	}
	return nil
}

// setDefaults fills in the defaults.
func (o *Options) setDefaults() {
	if len(o.Loads) == 0 {
		o.Loads = Loads()
	}
	o.Submitters = cmp.Or(o.Submitters, 64)
	o.Pullers = cmp.Or(o.Pullers, 4)
	o.PayloadBytes = cmp.Or(o.PayloadBytes, 256)
	o.Rate = cmp.Or(o.Rate, 50)
	o.Bulk = cmp.Or(o.Bulk, 20_000)
	o.Rounds = cmp.Or(o.Rounds, 5)
	o.Schedules = cmp.Or(o.Schedules, maxSchedules)
	o.Duration = cmp.Or(o.Duration, 5*time.Second)
	o.CeilingDuration = cmp.Or(o.CeilingDuration, o.Duration)
	o.RetentionDuration = cmp.Or(o.RetentionDuration, 20*time.Minute)
	o.WarmUp = cmp.Or(o.WarmUp, time.Second)
	o.Drain = cmp.Or(o.Drain, 30*time.Second)
	o.Progress = cmp.Or(o.Progress, io.Discard)
}

// ErrUnfinished is returned when accepted jobs have not ended within Drain.
var ErrUnfinished = errors.New("jobs did not end")

// ErrAudit is returned when a job that was counted is not SUCCEEDED when read back.
var ErrAudit = errors.New("a counted job has not succeeded")

// bench is one measurement.
type bench struct {
	options  Options
	progress *progress
}

// Measure measures the machine and the server. It takes WarmUp and CeilingDuration for
// each ceiling, WarmUp and Duration for each load (RetentionDuration for [Retention]), at most
// Drain for each load, and the time to create the jobs of the prefilled server.
//
// It ends at the first failed request; a [*StatusError] holds the server's response. It
// also returns [ErrUnfinished], [ErrReplayed], [ErrAudit] and [ErrLatePlan].
func Measure(ctx context.Context, options Options) (*Report, error) {
	options.setDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b := &bench{options: options, progress: newProgress(options.Progress)}
	report := newReport(&options)
	for _, kind := range ceilings {
		ceiling, err := b.ceiling(ctx, kind)
		if err != nil {
			return nil, fmt.Errorf("bench: ceiling of %s: %w", kind.name, err)
		}
		report.Ceilings = append(report.Ceilings, ceiling)
	}
	for _, name := range options.Loads {
		measure := b.onEmpty
		switch name {
		case Bulk:
			measure = b.onBulk
		case Schedules:
			measure = b.onSchedules
		}
		row, err := measure(ctx, loadNamed(name))
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", name, err)
		}
		report.Rows = append(report.Rows, row)
	}
	if options.Finished+options.Live+options.Waiting+options.InLine > 0 && len(b.prefillable()) > 0 {
		rows, err := b.onPrefilled(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: prefilled: %w", err)
		}
		report.Rows = append(report.Rows, rows...)
	}
	report.compare()
	return report, nil
}

// onEmpty measures a load on a new server, and the disk space of its jobs.
func (b *bench) onEmpty(ctx context.Context, load *load) (row Row, err error) {
	err = b.withServer(ctx, load.retention, func(server Server) error {
		run, err := b.run(ctx, server, load, Empty)
		if err == nil {
			err = server.Stop()
		}
		if err == nil && load.work != nil && load.retention == 0 {
			var bytes int64
			bytes, err = b.options.DiskBytes(ctx, server.dataDir)
			run.row.DiskBytes = float64(bytes) / float64(run.all.Load())
		}
		row = run.row
		return err
	})
	return row, err
}

// prefillable returns the names of the loads that are also measured on a prefilled server.
func (b *bench) prefillable() []string {
	return slices.DeleteFunc(slices.Clone(b.options.Loads), func(name string) bool { return slices.Contains(ByName(), name) })
}

// onPrefilled measures these loads on one server that holds many jobs.
func (b *bench) onPrefilled(ctx context.Context) (rows []Row, err error) {
	err = b.withServer(ctx, 0, func(server Server) error {
		if err := b.prefill(ctx, server); err != nil {
			return err
		}
		for _, name := range b.prefillable() {
			run, err := b.run(ctx, server, loadNamed(name), Prefilled)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, run.row)
		}
		return server.Stop()
	})
	return rows, err
}

// withServer calls use with a server on a new folder. Afterwards it stops the server, unless
// use has, and removes the folder.
func (b *bench) withServer(ctx context.Context, retention time.Duration, use func(server Server) error) (err error) {
	dir, err := os.MkdirTemp(b.options.Dir, "server-")
	if err != nil {
		return fmt.Errorf("create a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	protocols, data := filepath.Join(dir, "protocols"), filepath.Join(dir, "data")
	if err := writeProtocols(protocols); err != nil {
		return err
	}
	server, err := b.options.Start(ctx, data, protocols, retention)
	if err != nil {
		return err
	}
	server.dataDir = data
	stop, stopped := server.Stop, false
	server.Stop = func() error {
		stopped = true
		return stop()
	}
	defer func() {
		if !stopped {
			err = errors.Join(err, stop())
		}
	}()
	return use(server)
}

// window returns a window of that length, which begins after the warm-up.
func (b *bench) window(length time.Duration) window {
	start := time.Now().Add(b.options.WarmUp)
	return window{start, start.Add(length)}
}

// window is the measured time.
type window struct{ start, end time.Time }

// holds reports whether t lies in the window.
func (w window) holds(t time.Time) bool { return !t.Before(w.start) && t.Before(w.end) }

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
func audit(ctx context.Context, client *client, jobIDs []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, jobID := range jobIDs {
		group.Go(func() error {
			var job struct {
				State api.JobState `json:"state"`
			}
			if err := client.send(ctx, http.MethodGet, "/v1/jobs/"+jobID, nil, &job); err != nil {
				return err
			}
			if job.State != api.JobStateSucceeded {
				return fmt.Errorf("%w: job %s is %s", ErrAudit, jobID, job.State)
			}
			return nil
		})
	}
	return group.Wait()
}
