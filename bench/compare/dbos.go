package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dbosSystem is DBOS in this process, on a separate database.
type dbosSystem struct {
	root    dbos.Context
	pool    *pgxpool.Pool // for batches; DBOS has a separate pool of 20 connections
	ends    *tracker
	fail    func(error)
	waiting sync.WaitGroup
	drop    func(context.Context) error
}

// dbosInput is the input of a workflow.
type dbosInput struct {
	Payload any `json:"payload"`
	Steps   int `json:"steps"`
}

// dbosWorkflow is a job.
func dbosWorkflow(ctx dbos.Context, input dbosInput) (string, error) {
	var result string
	for range input.Steps {
		var err error
		if result, err = dbos.RunAsStep(ctx, dbosStep); err != nil {
			return "", err
		}
	}
	return result, nil
}

// dbosStep does one step.
func dbosStep(context.Context) (string, error) { return "bench://result", nil }

// workflowName is the name of the workflow in the database.
const workflowName = "job"

func startDBOS(ctx context.Context, c *comparison, ends *tracker, fail func(error)) (system, error) {
	url, drop, err := c.postgres.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	s := &dbosSystem{ends: ends, fail: fail, drop: drop}
	if err := s.start(ctx, url); err != nil {
		return nil, errors.Join(err, s.stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// start migrates the database, and starts the library.
func (s *dbosSystem) start(ctx context.Context, url string) (err error) {
	if s.pool, err = newPool(ctx, url, batchSubmitters); err != nil {
		return err
	}
	root, err := dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{
		AppName: "lucius-compare", DatabaseURL: url, Logger: logger,
		// Without a version it would hash this program.
		ApplicationVersion: "1", ExecutorID: "compare",
	})
	if err != nil {
		return fmt.Errorf("make the context: %w", err)
	}
	s.root = root
	dbos.RegisterWorkflow(root, dbosWorkflow, dbos.WithWorkflowName(workflowName))
	if err := dbos.Launch(root); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return nil
}

// submit returns once the workflow's row was committed; the workflow runs in a
// goroutine of DBOS.
func (s *dbosSystem) submit(_ context.Context, name string, steps int) error {
	handle, err := dbos.RunWorkflow(s.root, dbosWorkflow, dbosInput{payload, steps}, dbos.WithWorkflowID(name))
	if err != nil {
		return err
	}
	s.waiting.Go(func() {
		if _, err := handle.GetResult(); err != nil {
			s.fail(fmt.Errorf("workflow %s: %w", name, err))
			return
		}
		s.ends.end(name)
	})
	return nil
}

func (s *dbosSystem) submitBatch(ctx context.Context, names []string) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // It does nothing after a commit.
	for _, name := range names {
		_, err := dbos.Enqueue[string](s.root, parked, workflowName, dbosInput{payload, 1},
			dbos.WithEnqueueWorkflowID(name), dbos.WithEnqueueTransaction(tx))
		if err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

func (s *dbosSystem) stop(ctx context.Context) error {
	var err error
	if s.root != nil {
		err = dbos.Shutdown(s.root, stopTimeout)
	}
	s.waiting.Wait()
	if s.pool != nil {
		s.pool.Close()
	}
	return errors.Join(err, s.drop(ctx))
}
