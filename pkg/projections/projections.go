package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Tables are the names of the projected tables: lower-case letters and digits.
type Tables struct {
	Jobs   string // Optional. Defaults to "luciusjobs".
	Outbox string // Optional. Defaults to "luciusoutbox".
	Events string // Optional. Defaults to "luciusevents".
}

// WithDefaults fills in the names that are not set.
func (t Tables) WithDefaults() Tables {
	return Tables{
		Jobs: cmp.Or(t.Jobs, "luciusjobs"), Outbox: cmp.Or(t.Outbox, "luciusoutbox"),
		Events: cmp.Or(t.Events, "luciusevents"),
	}
}

// All returns the names, so that a driver can create the tables.
func (t Tables) All() []string { return []string{t.Jobs, t.Outbox, t.Events} }

// Projections write the projected rows of all jobs. They are safe for
// concurrent use, by any number of processes on one store.
type Projections struct {
	store  tablestore.Store
	tables Tables
	random func() float64
}

var _ ledger.Projector = (*Projections)(nil)

// New returns the projections in those tables of the store. random returns
// numbers in [0, 1) for the delays after lost races; nil stands for
// math/rand/v2.
func New(store tablestore.Store, tables Tables, random func() float64) *Projections {
	return &Projections{store: store, tables: tables.WithDefaults(), random: random}
}

// parallel is how many rows of one job are written concurrently.
const parallel = 8

// Project implements [ledger.Projector]. Its errors are the store's. It writes the
// events and outbox rows of the revision while it reads the job's row, and then
// writes that.
func (p *Projections) Project(ctx context.Context, r *ledger.Revision) (int64, error) {
	batches, err := p.events(r)
	if err != nil {
		return 0, err
	}
	var stored tablestore.Row
	var lacking atomic.Bool // An outbox row needs more than this revision.
	var group errgroup.Group
	group.SetLimit(parallel)
	if r.After > 0 { // A new job has no row; if it has one, the insert conflicts.
		group.Go(func() (err error) {
			stored, err = p.read(ctx, p.jobKey(&r.Job))
			return err
		})
	}
	for _, batch := range batches {
		group.Go(func() error {
			_, err := p.store.Commit(ctx, batch)
			if errors.Is(err, tablestore.ErrConflict) {
				return nil // Events never change: if one of a batch exists, all do.
			}
			return err
		})
	}
	for i := range r.Outbox {
		group.Go(func() error {
			complete, err := p.outbox(ctx, r, &r.Outbox[i])
			if !complete {
				lacking.Store(true)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	at := int64(0) // the revision that the job's row shows
	err = p.forward(ctx, p.jobKey(&r.Job), &stored, func(stored *tablestore.Row) tablestore.Properties {
		at = revision(stored)
		if at >= r.Job.Rev || at < r.After || lacking.Load() {
			return nil
		}
		at = r.Job.Rev
		return ledger.JobColumns(&r.Job, stored.Properties)
	})
	return at, err
}

// Forget implements [ledger.Projector].
func (p *Projections) Forget(ctx context.Context, job *statemachine.Job) error {
	key := p.jobKey(job)
	outboxes := tablestore.Escape(job.ID + ".") // The ids of all outbox rows of the job begin so.
	for _, query := range []tablestore.Query{
		{Table: p.tables.Events, Partition: tablestore.Escape(job.ID)},
		{Table: p.tables.Outbox, Partition: bucket(job), From: outboxes, To: tablestore.PrefixEnd(outboxes)},
		{Table: key.Table, Partition: key.Partition, From: key.Row, To: key.Row + "\x00"},
	} {
		if err := tablestore.DiscardAll(ctx, p.store, query, ""); err != nil {
			return fmt.Errorf("forget the rows in %s: %w", query.Table, err)
		}
	}
	return nil
}

// outbox updates one outbox row to the revision. It returns false if neither the
// revision nor the stored row holds the directive.
func (p *Projections) outbox(ctx context.Context, r *ledger.Revision, row *ledger.OutboxRow) (complete bool, err error) {
	var stored *tablestore.Row
	if row.New {
		stored = &tablestore.Row{}
	}
	key := tablestore.Key{Table: p.tables.Outbox, Partition: bucket(&r.Job), Row: tablestore.Escape(row.ID)}
	complete = true
	err = p.forward(ctx, key, stored, func(stored *tablestore.Row) tablestore.Properties {
		if revision(stored) >= r.Job.Rev {
			return nil
		}
		columns := outboxColumns(&r.Job, row, stored.Properties)
		complete = columns != nil
		return columns
	})
	return complete, err
}

// forward replaces a row by the result of next for the stored row, under its
// version, or ends if next returns nil. stored is the expected row, or nil to
// read it first.
func (p *Projections) forward(ctx context.Context, key tablestore.Key, stored *tablestore.Row,
	next func(stored *tablestore.Row) tablestore.Properties,
) error {
	return tablestore.Retry(ctx, p.random, func() error {
		if stored == nil {
			row, err := p.read(ctx, key)
			if err != nil {
				return err
			}
			stored = &row
		}
		columns := next(stored)
		if columns == nil {
			return nil
		}
		op := tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: columns}
		if stored.ETag != "" {
			op.Verb, op.ETag = tablestore.Replace, stored.ETag
		}
		stored = nil
		_, err := p.store.Commit(ctx, tablestore.Batch{op})
		return err
	})
}

// read returns the row, or the zero row if there is none.
func (p *Projections) read(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	row, err := p.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	return row, err
}
