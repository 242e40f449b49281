// Package projections copies the jobs of a ledger to the tables of Phase 1: the storage layout
// "table", for readers of those tables.
//
//	Steps table                        Jobs      {tenant}:{YYYYMM} / {jobId}
//	  {jobId} / JOB, STEP:…, OUTBOX:…  Outbox    {tenant}:{YYYYMM} / {outbox id}
//	            EVENT:{rev}, …         Events    {jobId} / {timestamp}:{event id}
//	      │                               ▲
//	      │ commit: rev + 1               │ forwards only
//	      └──────────▶ Ledger ──▶ Projector.Project
//	                     │                ▲
//	       entry, seconds ahead ──▶ sweeper, after a crash
//
// Jobs and Outbox rows carry the revision that they show. A row is written under the
// version that was read, and only if that shows an earlier revision, so the later one
// stays if writers overtake each other. Events are inserted and never change.
//
// The row in Jobs is written last. Invariant: Jobs row at revision n ⇒ the other tables
// show every change of the job up to n. So one read tells whether anything is missing.
// If the row shows a change's predecessor, the change writes only its own rows;
// otherwise the ledger reads what changed since.
package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Tables are the names of the projected tables: lower-case letters and digits, as Azure Tables
// requires.
type Tables struct {
	Jobs   string // Optional. Defaults to "luciusjobs".
	Outbox string // Optional. Defaults to "luciusoutbox".
	Events string // Optional. Defaults to "luciusevents".
}

// Projector implements [ledger.Projector]. It is safe for concurrent use, by any number of
// processes on one store.
//
// Source: Ledger and state model, Data model (Jobs, Steps, Outbox and Events tables);
// '#' is illegal in keys and became ':'.
type Projector struct {
	store  tablestore.Store
	tables Tables
	random func() float64
}

// New returns the projector to these tables of the store. random returns numbers in [0, 1) for the delays after lost races; nil stands
// for math/rand/v2.
func New(store tablestore.Store, tables Tables, random func() float64) *Projector {
	return &Projector{store: store, random: random, tables: Tables{
		Jobs:   cmp.Or(tables.Jobs, "luciusjobs"),
		Outbox: cmp.Or(tables.Outbox, "luciusoutbox"),
		Events: cmp.Or(tables.Events, "luciusevents"),
	}}
}

// projectedAtOnce is how many rows of one job are written concurrently.
const projectedAtOnce = 8

// Project implements [ledger.Projector]. Its errors are the store's. It writes the
// events and outbox rows of the revision while it reads the job's row, and then
// writes that.
func (p *Projector) Project(ctx context.Context, r *ledger.Revision) (int64, error) {
	var stored tablestore.Row
	var lacking atomic.Bool // An outbox row needs more than this revision.
	var group errgroup.Group
	group.SetLimit(projectedAtOnce)
	if r.After > 0 { // A new job has no row; if it has one, the insert conflicts.
		group.Go(func() (err error) {
			stored, err = p.read(ctx, p.jobKey(&r.Job))
			return err
		})
	}
	for _, batch := range p.events(r) {
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
	err := p.forward(ctx, p.jobKey(&r.Job), &stored, func(stored *tablestore.Row) tablestore.Properties {
		at = shownRev(stored)
		if at >= r.Job.Rev || at < r.After || lacking.Load() {
			return nil
		}
		at = r.Job.Rev
		return jobCodec.Encode(&r.Job, stored.Properties)
	})
	return at, err
}

// Forget implements [ledger.Projector].
func (p *Projector) Forget(ctx context.Context, job *statemachine.Job) error {
	key := p.jobKey(job)
	outboxes := tablestore.Escape(job.ID + ".") // The ids of all outbox rows of the job begin so.
	for _, query := range []tablestore.Query{
		{Table: p.tables.Events, Partition: tablestore.Escape(job.ID)},
		{Table: p.tables.Outbox, Partition: monthOf(job), From: outboxes, To: tablestore.PrefixEnd(outboxes)},
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
func (p *Projector) outbox(ctx context.Context, r *ledger.Revision, row *ledger.OutboxRow) (complete bool, err error) {
	var stored *tablestore.Row
	if row.New {
		stored = &tablestore.Row{}
	}
	key := tablestore.Key{Table: p.tables.Outbox, Partition: monthOf(&r.Job), Row: tablestore.Escape(row.ID)}
	complete = true
	err = p.forward(ctx, key, stored, func(stored *tablestore.Row) tablestore.Properties {
		if shownRev(stored) >= r.Job.Rev {
			return nil
		}
		columns := projectedOutbox(&r.Job, row, stored.Properties)
		complete = columns != nil
		return columns
	})
	return complete, err
}

// forward replaces a row by the result of next for the stored row, under its
// version, or ends if next returns nil. stored is the expected row, or nil to
// read it first.
func (p *Projector) forward(ctx context.Context, key tablestore.Key, stored *tablestore.Row,
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
func (p *Projector) read(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	row, err := p.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	return row, err
}

var (
	jobCodec    = tablestore.NewCodec[statemachine.Job]().Without("stage_at") // Phase 1 has no such column.
	outboxCodec = tablestore.NewCodec[statemachine.Outbox]()
	eventCodec  = tablestore.NewCodec[projectedEvent]()
)

// The columns of projected rows that the ledger's rows do not have or name
// differently.
const (
	columnJobID     = "jobId"
	columnStepID    = "stepId"
	columnPartition = "partition" // the lane
	columnPayload   = "payload"
)

// jobKey returns the key of a job's row in the Jobs table. The month comes from
// the job's id, so that the id is enough to find its rows.
//
// Source: Ledger and state model, Jobs table.
func (p *Projector) jobKey(job *statemachine.Job) tablestore.Key {
	return tablestore.Key{Table: p.tables.Jobs, Partition: monthOf(job), Row: tablestore.Escape(job.ID)}
}

// monthOf returns a job's partition in the Jobs and the Outbox table.
func monthOf(job *statemachine.Job) string {
	return tablestore.Join(job.TenantID, ledger.IDTime(job.ID).Format("200601"))
}

// shownRev returns the revision that a row shows, or 0 for an absent row.
func shownRev(row *tablestore.Row) int64 { return row.Properties.Get("rev").Int() }

// projectedOutbox returns the properties of an outbox row: the ledger's, with the
// Phase 1 names and the directive. It returns nil if neither row nor stored
// holds the directive.
//
// Source: Ledger and state model, Outbox table.
func projectedOutbox(job *statemachine.Job, row *ledger.OutboxRow, stored tablestore.Properties) tablestore.Properties {
	payload := row.Directive
	if payload == nil && stored.Get("attempt_no").Int() == int64(row.AttemptNo) {
		payload = tablestore.Large(stored, columnPayload)
	}
	if payload == nil {
		return nil
	}
	own := tablestore.Properties{
		{Name: "rev", Value: tablestore.Int(job.Rev)},
		{Name: columnJobID, Value: tablestore.String(job.ID)},
		{Name: columnStepID, Value: tablestore.String(row.StepID)},
		{Name: columnPartition, Value: tablestore.Int(int64(row.Routing.Lane))},
	}
	foreign := slices.DeleteFunc(slices.Clone(stored), func(c tablestore.Property) bool {
		return own.Get(c.Name).Kind() != 0 || c.Name == columnPayload || strings.HasPrefix(c.Name, columnPayload+"_")
	})
	columns := slices.DeleteFunc(outboxCodec.Encode(&row.Outbox, foreign), func(c tablestore.Property) bool {
		return c.Name == "step_id" // stepId
	})
	return tablestore.AppendLarge(append(columns, own...), columnPayload, payload)
}

// The formats of an event's time: in the row's key, and in its payload.
const (
	eventKeyTime     = "20060102T150405.000Z"
	eventPayloadTime = "2006-01-02T15:04:05.000Z"
)

// projectedEvent is a row of Events.
type projectedEvent struct {
	JobID     string       `column:"jobId"`
	EventID   string       `column:"event_id"`
	Rev       int64        `column:"rev"`
	Type      string       `column:"event_type"`
	CreatedAt time.Time    `column:"created_at"`
	Payload   eventPayload `column:"payload"`
}

// eventPayload has the API's field names.
type eventPayload struct {
	EventID string `json:"event_id"`
	Rev     int64  `json:"rev"`
	At      string `json:"at"`
	Actor   string `json:"actor,omitempty"`
	Caller  string `json:"caller,omitempty"`
	statemachine.Transition
	RequestID string              `json:"request_id,omitempty"`
	Callback  statemachine.Report `json:"callback,omitzero"`
}

// events returns the inserts of the history in batches. No batch holds entries
// of two changes, so that its rows either all exist or none does.
func (p *Projector) events(r *ledger.Revision) []tablestore.Batch {
	var batches []tablestore.Batch
	history := r.History
	for i := range history {
		op := p.event(r.Job.ID, &history[i])
		last := len(batches) - 1
		if i == 0 || history[i-1].Rev != history[i].Rev || len(batches[last]) == tablestore.MaxBatchOps {
			batches = append(batches, tablestore.Batch{op})
			continue
		}
		batches[last] = append(batches[last], op)
	}
	return batches
}

// event returns the insert of one entry. The key ends with the event's id, so
// that events of the same instant are in order too.
//
// Source: Ledger and state model, Events table.
func (p *Projector) event(jobID string, entry *ledger.HistoryEntry) tablestore.Op {
	at, id := entry.At.UTC(), entry.EventID()
	row := projectedEvent{
		JobID: jobID, EventID: id, Rev: entry.Rev, Type: entry.Type, CreatedAt: at,
		Payload: eventPayload{
			EventID: id, Rev: entry.Rev, At: at.Format(eventPayloadTime), Actor: entry.Actor, Caller: entry.Caller,
			Transition: entry.Transition, RequestID: entry.RequestID, Callback: entry.Report,
		},
	}
	return tablestore.Op{
		Verb: tablestore.Insert,
		Key: tablestore.Key{
			Table: p.tables.Events, Partition: tablestore.Escape(jobID), Row: tablestore.Join(at.Format(eventKeyTime), id),
		},
		Properties: eventCodec.Encode(&row, nil),
	}
}
