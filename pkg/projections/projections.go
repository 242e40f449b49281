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

// Project implements [ledger.Projector]. Its errors are the store's.
func (p *Projections) Project(ctx context.Context, r *ledger.Revision) (int64, error) {
	run := &projection{Projections: p, r: r}
	if err := run.details(ctx); err != nil {
		return 0, err
	}
	return run.job(ctx)
}

// Forget implements [ledger.Projector].
func (p *Projections) Forget(ctx context.Context, job *statemachine.Job) error {
	for _, query := range []tablestore.Query{
		{Table: p.tables.Events, Partition: tablestore.Escape(job.ID)}, p.outboxOf(job), p.jobOf(job),
	} {
		if err := tablestore.DiscardAll(ctx, p.store, query, ""); err != nil {
			return fmt.Errorf("forget the rows in %s: %w", query.Table, err)
		}
	}
	return nil
}

// projection is one call of Project.
type projection struct {
	*Projections
	r *ledger.Revision
	// stored is the job's row, which details reads concurrently with its
	// writes.
	stored tablestore.Row
	// lacking says that an outbox row needs more than this revision.
	lacking atomic.Bool
}

// details writes the events and outbox rows of the revision, and reads the
// job's row, all concurrently.
func (p *projection) details(ctx context.Context) error {
	batches, err := p.events()
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	if p.r.After > 0 { // A new job has no row; if it has one, the insert conflicts.
		group.Go(func() (err error) {
			p.stored, err = p.read(ctx, p.jobKey(&p.r.Job))
			return err
		})
	}
	for _, batch := range batches {
		group.Go(func() error { return p.insert(ctx, batch) })
	}
	for i := range p.r.Outbox {
		group.Go(func() error { return p.outbox(ctx, &p.r.Outbox[i]) })
	}
	return group.Wait()
}

// job writes the job's row, unless the row already shows the revision or misses
// one before it. It returns the revision that the row then shows.
func (p *projection) job(ctx context.Context) (int64, error) {
	at := int64(0)
	err := p.forward(ctx, p.jobKey(&p.r.Job), &p.stored, func(stored *tablestore.Row) tablestore.Properties {
		at = revision(stored)
		if at >= p.r.Job.Rev || at < p.r.After || p.lacking.Load() {
			return nil
		}
		at = p.r.Job.Rev
		return ledger.JobColumns(&p.r.Job, stored.Properties)
	})
	return at, err
}

// outbox updates one outbox row to the revision.
func (p *projection) outbox(ctx context.Context, row *ledger.OutboxRow) error {
	key := p.outboxKey(&p.r.Job, row.ID)
	var stored *tablestore.Row
	if row.New {
		stored = &tablestore.Row{}
	}
	return p.forward(ctx, key, stored, func(stored *tablestore.Row) tablestore.Properties {
		if revision(stored) >= p.r.Job.Rev {
			return nil
		}
		columns := outboxColumns(&p.r.Job, row, stored.Properties)
		if columns == nil {
			p.lacking.Store(true)
		}
		return columns
	})
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

// insert writes a batch of rows that never change: if one exists, all do.
func (p *Projections) insert(ctx context.Context, batch tablestore.Batch) error {
	_, err := p.store.Commit(ctx, batch)
	if errors.Is(err, tablestore.ErrConflict) {
		return nil
	}
	return err
}

// read returns the row, or the zero row if there is none.
func (p *Projections) read(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	row, err := p.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	return row, err
}
