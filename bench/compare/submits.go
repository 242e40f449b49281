package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// submitters is the number of an application's connections, each with one transaction after
// the other.
const submitters = 32

// transactions are the statements of an application's transactions.
var transactions = []struct {
	name       string
	statements []string
}{
	{"an order", []string{insertOrder}},
	{"an order and lucius.submit", []string{insertOrder, submitCommand}},
	{"an order, lucius.submit and NOTIFY", []string{insertOrder, submitCommand, "NOTIFY lucius_compared"}},
}

const (
	insertOrder   = "INSERT INTO orders (total) VALUES (99.50)"
	submitCommand = `SELECT lucius.submit('{"tenant_id": "bench", "request_type": "bench.one", "schema_version": "1",
		"input_ref": {"uri": "s3://in/1"}, "output_ref": {"uri": "s3://out/1"}, "payload": {"words": 100}}')`
)

// measureSubmits measures how many transactions an application commits a second, with and
// without a command in each, and prints a table.
func (c *comparison) measureSubmits(ctx context.Context, out io.Writer) (err error) {
	url, drop, err := c.migrated(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop(context.WithoutCancel(ctx))) }()
	pool, err := newPool(ctx, url, submitters)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, "CREATE TABLE orders (id serial PRIMARY KEY, total numeric); "+
		"INSERT INTO lucius.inbox_rights VALUES (session_user, 'bench')")
	if err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	rates := make([][]float64, len(transactions))
	for round := range c.rounds {
		for i, transaction := range transactions {
			fmt.Fprintf(c.progress, "round %d of %d: %s\n", round+1, c.rounds, transaction.name)
			rate, err := c.load.commits(ctx, pool, transaction.statements)
			if err != nil {
				return fmt.Errorf("%s: %w", transaction.name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	fmt.Fprintf(out, "PostgreSQL %s, %d connections, %d rounds of %s after %s of warm-up; median (minimum–maximum)\n\n"+
		"| transactions of | commits a second |\n| --- | --- |\n", c.postgres.Version, submitters, c.rounds, c.load.duration, c.load.warmUp)
	for i, transaction := range transactions {
		fmt.Fprintf(out, "| %s | %s |\n", transaction.name, summary("%.0f", rates[i]))
	}
	return nil
}

// commits returns how many transactions of these statements are committed a second.
func (l *load) commits(ctx context.Context, pool *pgxpool.Pool, statements []string) (perSecond float64, err error) {
	if _, err := pool.Exec(ctx, "TRUNCATE lucius.inbox, orders"); err != nil {
		return 0, err
	}
	ctx, cancel, window := l.begin(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var committed atomic.Int64
	for range submitters {
		group.Go(func() error {
			for time.Now().Before(window.end) {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					for _, statement := range statements {
						if _, err := tx.Exec(ctx, statement); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return errors.Join(err, context.Cause(ctx))
				}
				if window.holds(time.Now()) {
					committed.Add(1)
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return float64(committed.Load()) / l.duration.Seconds(), err
}
