package tablestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// maxTries bounds a compare-and-swap loop. Each lost race means that another
// writer committed a change.
const maxTries = 50

// Retry is the compare-and-swap loop: it calls try until its result is not
// [ErrConflict]. try reads rows, decides, and writes under the versions that it
// read.
//
// The delays between tries grow from 1 ms to 50 ms, with a jitter of plus or
// minus half by random, which returns numbers in [0, 1); nil stands for
// math/rand/v2. If the tries are used up, or ctx ends between two tries, the
// error wraps [ErrUnavailable]: nothing was written.
func Retry(ctx context.Context, random func() float64, try func() error) error {
	var delays *backoff.ExponentialBackOff
	for range maxTries {
		err := try()
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if delays == nil { // Most changes have no conflict.
			delays = backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(time.Millisecond), backoff.WithMaxInterval(50*time.Millisecond),
				backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
		}
		if random == nil {
			random = rand.Float64
		}
		timer := time.NewTimer(time.Duration(float64(delays.NextBackOff()) * (0.5 + random())))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ErrUnavailable, ctx.Err())
		}
	}
	return fmt.Errorf("lost %d races: %w", maxTries, ErrUnavailable)
}

// Update changes one row by [Retry]. decide gets the stored row, or the zero
// Row if there is none, and returns the properties to write, or nil to leave
// the row unchanged. Errors of decide are returned as they are.
func Update(ctx context.Context, store Store, key Key, random func() float64, decide func(stored *Row) (Properties, error)) error {
	return Retry(ctx, random, func() error {
		row, err := store.Get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("read %s: %w", key, err)
		}
		properties, err := decide(&row)
		if err != nil || properties == nil {
			return err
		}
		op := Op{Verb: Insert, Key: key, Properties: properties}
		if row.ETag != "" {
			op.Verb, op.ETag = Replace, row.ETag
		}
		if _, err := store.Commit(ctx, Batch{op}); err != nil {
			return fmt.Errorf("write %s: %w", key, err)
		}
		return nil
	})
}

// ScanAll returns the rows of all pages of the query. The error is the store's.
func ScanAll(ctx context.Context, store Store, query Query) ([]Row, error) {
	var rows []Row
	for {
		page, err := store.Scan(ctx, query)
		if err != nil {
			return nil, err
		}
		if rows == nil {
			rows = page.Rows
		} else {
			rows = append(rows, page.Rows...)
		}
		if query.Continue = page.Next; query.Continue == "" {
			return rows, nil
		}
	}
}

// DiscardAll deletes the query's rows, whatever they hold, page by page in full
// batches, except the row with the key except. No process may still write these
// rows. The error is the store's; another call continues.
func DiscardAll(ctx context.Context, store Store, query Query, except string) error {
	query.Limit = MaxBatchOps
	for {
		page, err := store.Scan(ctx, query)
		if err != nil {
			return err
		}
		var batch Batch
		for i := range page.Rows {
			if key := page.Rows[i].Key; key.Row != except {
				batch = append(batch, Op{Verb: Discard, Key: key})
			}
		}
		if len(batch) > 0 {
			if _, err := store.Commit(ctx, batch); err != nil {
				return err
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			return nil
		}
	}
}
