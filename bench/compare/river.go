package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSystem is River in this process, on a separate database.
type riverSystem struct {
	client   *river.Client[pgx.Tx]
	pool     *pgxpool.Pool
	ends     *tracker
	reading  sync.WaitGroup
	stopRead func()
	drop     func(context.Context) error
}

// riverArgs are the arguments of a River job, which is one step.
type riverArgs struct {
	Name    string `json:"name"`
	Payload any    `json:"payload"`
	// Left is the number of steps that follow; the last of Chained steps ends the job.
	Left    int  `json:"left"`
	Chained bool `json:"chained"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "step" }

// riverConnections is the size of River's pool, for which River has no default. With 20
// connections, its workers and fetches waited for each other.
const riverConnections = 50

// parked is a queue that no worker serves.
const parked = "parked"

// startRiver returns a function that starts River with that FetchCooldown and
// FetchPollInterval; 0 is River's default.
func startRiver(cooldown, poll time.Duration) func(context.Context, *comparison, *tracker, func(error)) (system, error) {
	return func(ctx context.Context, c *comparison, ends *tracker, fail func(error)) (system, error) {
		url, drop, err := c.postgres.CreateDatabase(ctx)
		if err != nil {
			return nil, err
		}
		s := &riverSystem{ends: ends, drop: drop, stopRead: func() {}}
		config := river.Config{
			FetchCooldown: cooldown, FetchPollInterval: poll, Logger: logger,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: c.load.inFlight}},
		}
		if err := s.start(ctx, url, &config, fail); err != nil {
			return nil, errors.Join(err, s.stop(context.WithoutCancel(ctx)))
		}
		return s, nil
	}
}

// start migrates the database, and starts the workers.
func (s *riverSystem) start(ctx context.Context, url string, config *river.Config, fail func(error)) (err error) {
	if s.pool, err = newPool(ctx, url, riverConnections); err != nil {
		return err
	}
	driver := riverpgxv5.New(s.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: logger})
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, river.WorkFunc(s.work))
	client, err := river.NewClient(driver, config)
	if err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	// River drops events that find the channel full: a job would never end.
	events, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: 1 << 16, Kinds: []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed},
	})
	s.stopRead = unsubscribe
	s.reading.Go(func() { s.read(events, fail) })
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start the client: %w", err)
	}
	s.client = client
	return nil
}

// read ends the one-step jobs that River has recorded as completed.
func (s *riverSystem) read(events <-chan *river.Event, fail func(error)) {
	for event := range events {
		var args riverArgs
		if err := json.Unmarshal(event.Job.EncodedArgs, &args); err != nil {
			fail(fmt.Errorf("read the arguments of a job: %w", err))
			return
		}
		if event.Kind == river.EventKindJobFailed {
			fail(fmt.Errorf("job %s failed: %v", args.Name, event.Job.Errors))
			return
		}
		if !args.Chained {
			s.ends.end(args.Name)
		}
	}
}

// work does one step. A step of a chain is completed in the transaction that inserts the
// next one.
func (s *riverSystem) work(ctx context.Context, job *river.Job[riverArgs]) error {
	args := job.Args
	if !args.Chained {
		return nil
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // It does nothing after a commit.
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	last := args.Left == 0
	if !last {
		args.Left--
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, args, nil); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if last {
		s.ends.end(args.Name)
	}
	return nil
}

func (s *riverSystem) submit(ctx context.Context, name string, steps int) error {
	_, err := s.client.Insert(ctx, riverArgs{Name: name, Payload: payload, Left: steps - 1, Chained: steps > 1}, nil)
	return err
}

func (s *riverSystem) submitBatch(ctx context.Context, names []string) error {
	jobs := make([]river.InsertManyParams, len(names))
	for i, name := range names {
		jobs[i] = river.InsertManyParams{
			Args:       riverArgs{Name: name, Payload: payload},
			InsertOpts: &river.InsertOpts{Queue: parked},
		}
	}
	_, err := s.client.InsertMany(ctx, jobs)
	return err
}

func (s *riverSystem) stop(ctx context.Context) error {
	var err error
	if s.client != nil {
		err = s.client.StopAndCancel(ctx)
	}
	s.stopRead()
	s.reading.Wait()
	if s.pool != nil {
		s.pool.Close()
	}
	return errors.Join(err, s.drop(ctx))
}

// newPool returns a pool of at most that many connections to the database.
func newPool(ctx context.Context, databaseURL string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, config)
}
