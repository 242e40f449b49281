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

// All lists the names, so that a driver can create them.
func (t Tables) All() []string { return []string{t.Jobs, t.Outbox, t.Events} }

// Projections are the projected rows of all jobs. They are safe for concurrent
// use, by any number of processes on one store.
type Projections struct {
	store  tablestore.Store
	tables Tables
}

var _ ledger.Projector = (*Projections)(nil)

// New returns the projections in those tables of the store.
func New(store tablestore.Store, tables Tables) *Projections {
	return &Projections{store: store, tables: tables.WithDefaults()}
}

// parallel is how many rows of one job are written side by side.
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
	// stored is the job's row, as it was read beside the other writes.
	stored tablestore.Row
	// lacking says that an outbox row could not be made of this revision alone.
	lacking atomic.Bool
}

// details writes what the revision alone decides, and reads how far the job's
// row is, all side by side.
func (p *projection) details(ctx context.Context) error {
	batches, err := p.events()
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	if p.r.After > 0 { // A job that is new has no row, or the insert finds it.
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

// job writes the job's row, unless it is as far already or too far behind. It
// returns the revision that the row shows then.
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

// outbox brings one outbox row up to the revision.
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

// forward writes a row as next makes it of the stored one, under its version,
// until nobody else was faster; it ends where next returns nil. stored is the row
// as it is thought to be, nil where it is to be read.
func (p *Projections) forward(ctx context.Context, key tablestore.Key, stored *tablestore.Row,
	next func(stored *tablestore.Row) tablestore.Properties,
) error {
	for {
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
		_, err := p.store.Commit(ctx, tablestore.Batch{op})
		if _, conflict := tablestore.IsConflict(err); !conflict {
			return err
		}
		stored = nil // Somebody else was faster, and so further on.
	}
}

// insert writes rows that never change: where one is there already, all are.
func (p *Projections) insert(ctx context.Context, batch tablestore.Batch) error {
	_, err := p.store.Commit(ctx, batch)
	if _, conflict := tablestore.IsConflict(err); conflict {
		return nil
	}
	return err
}

// read returns the row, the zero row where there is none.
func (p *Projections) read(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	row, err := p.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	return row, err
}
