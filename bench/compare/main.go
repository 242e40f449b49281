// Command compare measures Lucius beside River and DBOS Transact for Go, which keep
// their jobs in PostgreSQL, with one load driver, on one machine, in one sitting:
//
//	make bench-compare
//	go -C bench/compare run . -h
//
// PostgreSQL is the one that POSTGRES_URL names, on a loopback address, in which databases
// are created and removed; else one from npm, which is started and stopped.
//
// Each round starts the systems one after the other, each on an empty store, puts the
// same loads on it and stops it. Only the one that is measured runs, apart from an idle
// PostgreSQL. The table at the end shows median, minimum and maximum over the rounds.
//
// # What is compared
//
//	            driver process                        other processes
//	Lucius      submitters, workers ──── HTTP ─────▶  lucius serve (Pebble on disk)
//	River       submitters, workers = River ── pgx ▶  PostgreSQL
//	DBOS        submitters, workflows = DBOS ─ pgx ▶  PostgreSQL
//
// Lucius is a server: its callers and its workers pay for HTTP and JSON. River and DBOS
// are libraries: they run in the driver's process, and their rows go over PostgreSQL's
// protocol. So the CPU of a job is summed over all processes: driver, server, database.
// Nothing is summed up for a PostgreSQL that this program did not start.
//
// All are durable: a job was accepted, and a step ended, only after an fsync that
// covers it. Lucius always syncs; PostgreSQL must have fsync, full_page_writes and
// synchronous_commit on, or the program refuses it. Handlers do nothing, so only the
// carrying of jobs is measured. They differ in what they keep of a job:
//
//   - Lucius keeps the job, a journal event for each transition, the idempotency key of
//     the command, and entries of lists and of deadlines. A worker claims each step and
//     completes it under a lease; a completion that is answered is durable. The driver's
//     workers claim up to 32 steps at once, and complete them in one request.
//   - River keeps a row for each job, without a key against duplicates. Of one step: the
//     worker returns, and River records that later, for many jobs at once; the job has
//     ended when River says that this was recorded. Of three steps: three jobs, the next
//     inserted in the transaction that completes the one before (JobCompleteTx); the last
//     has ended with its commit. The client has its defaults, so that it looks for jobs
//     at most every 100 ms, and without a notification every second; the column "tuned"
//     is the same with 10 ms (FetchCooldown) and 20 ms (FetchPollInterval).
//   - DBOS keeps a row for each workflow, under an id that the caller chooses, and one for
//     each step. The workflow runs at once, in the process that submits it: that is its
//     quickest way, without a queue, but no other process shares the work. It has ended
//     when its result was recorded.
//
// # Loads
//
// One step and three steps are closed loops: as many jobs in flight as -in-flight says,
// each ended before its submitter sends the next. With few, the waits that River has
// between fetches and between recordings would bound it, not its work. At 50 jobs a
// second, jobs are sent at fixed times whether or not earlier ones have ended, and
// latency counts from those times, so that a system cannot hide a stall by delaying its
// own load. Batches are sent by four submitters, 100 jobs each, to a queue that has no
// worker: POST /v1/commands:batch, InsertMany, and for DBOS, which has no call for many,
// 100 times Enqueue in one transaction.
//
// # Commits that submit commands
//
//	make bench-compare COMPARE=-submits
//
// measures something else: how many transactions a second an application commits, on 32
// connections, if each inserts an order, if each also submits a command with lucius.submit,
// and if each notifies besides. No server runs, so only the commits are measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lucius-project/lucius/internal/postgres"
)

// logger receives the warnings of both libraries.
var logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv("POSTGRES_URL"), os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// comparison is one run of the program.
type comparison struct {
	load   load
	rounds int
	// module is the folder of the Lucius module, and dir one for everything that is
	// written.
	module, dir string
	postgres    *postgres.Server
	lucius      string // the binary
	progress    io.Writer
}

// run makes the comparison that the arguments describe, on the PostgreSQL of the URL, or
// on one that it starts and stops if the URL is empty.
func run(ctx context.Context, args []string, postgresURL string, out, progress io.Writer) (err error) {
	c := comparison{progress: progress}
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.IntVar(&c.rounds, "rounds", 3, "how often each system is measured")
	flags.DurationVar(&c.load.duration, "duration", 5*time.Second, "how long each load is measured")
	flags.DurationVar(&c.load.warmUp, "warm-up", 2*time.Second, "how long each load lasts before that")
	flags.IntVar(&c.load.inFlight, "in-flight", 256, "jobs in flight in a closed loop")
	submits := flags.Bool("submits", false, "measure the commits of an application that submits commands in its transactions instead")
	flags.StringVar(&c.module, "module", "../..", "folder of the Lucius module, which is built from there")
	flags.StringVar(&c.dir, "dir", os.TempDir(), "folder, of the disk to measure, for the stores; they are removed afterwards")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.rounds < 1 || c.load.inFlight < 1 || c.load.duration <= 0 || c.load.warmUp < 0 || flags.NArg() > 0 {
		return errors.New("rounds, in-flight and duration must be more than 0, warm-up not negative, and no argument may follow")
	}
	// The processes are started in folders of their own.
	if c.dir, err = filepath.Abs(c.dir); err == nil {
		c.dir, err = os.MkdirTemp(c.dir, "lucius-compare-")
	}
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	c.lucius = filepath.Join(c.dir, "lucius")
	if err := buildLucius(ctx, c.module, c.lucius); err != nil {
		return err
	}
	if c.postgres, err = postgres.Open(ctx, c.dir, postgresURL); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.postgres.Stop()) }()
	if *submits {
		return c.measureSubmits(ctx, out)
	}
	results, err := c.measure(ctx)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, c.describe()+results.table())
	return err
}

// system is one of the systems, running on an empty store. It reports the end of each
// job to the tracker that it was started with.
type system interface {
	// submit starts a job of one or three steps, and returns once that is durable.
	submit(ctx context.Context, name string, steps int) error
	// submitBatch starts jobs of one step that no worker serves, at once.
	submitBatch(ctx context.Context, names []string) error
	// stop stops it, and removes its store.
	stop(ctx context.Context) error
}

// contender is a system that can be started. It calls fail if it can no longer work.
type contender struct {
	name string
	// onPostgres says that PostgreSQL does a part of the work.
	onPostgres bool
	start      func(ctx context.Context, c *comparison, ends *tracker, fail func(error)) (system, error)
}

// contenders are measured in this order in each round.
var contenders = []contender{
	{"River", true, startRiver(0, 0)},
	{"River, tuned", true, startRiver(10*time.Millisecond, 20*time.Millisecond)},
	{"Lucius", false, startLucius(false)},
	{"Lucius on PostgreSQL", true, startLucius(true)},
	{"DBOS", true, startDBOS},
}

// measure measures all systems in all rounds.
func (c *comparison) measure(ctx context.Context) (results, error) {
	measured := results{}
	for round := range c.rounds {
		for _, contender := range contenders {
			fmt.Fprintf(c.progress, "round %d of %d: %s\n", round+1, c.rounds, contender.name)
			figures, err := c.turn(ctx, contender)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", contender.name, err)
			}
			measured[contender.name] = append(measured[contender.name], figures)
		}
	}
	return measured, nil
}

// stopTimeout is how long a system may take to stop.
const stopTimeout = 30 * time.Second

// turn starts a system, puts all loads on it, and stops it.
func (c *comparison) turn(ctx context.Context, contender contender) (f figures, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ends := newTracker()
	system, err := contender.start(ctx, c, ends, fail)
	if err != nil {
		return figures{}, err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, system.stop(stopping))
	}()
	f, err = c.load.run(ctx, system, ends)
	if contender.onPostgres && c.postgres.Owned() == nil {
		f.cpu = math.NaN() // PostgreSQL's CPU time is not known.
	}
	return f, err
}
