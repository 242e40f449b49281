package projections

import (
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The columns of projected rows that the ledger's rows do not have or name
// differently.
const (
	columnRev       = "rev" // the revision that the row shows
	columnJob       = "jobId"
	columnStep      = "stepId"
	columnPartition = "partition" // the lane
	columnPayload   = "payload"
	columnAttempt   = "attempt_no" // of the row, and so of its payload
)

// jobKey returns the key of a job's row in the Jobs table. The month comes from
// the job's id, so that the id is enough to find its rows.
//
// Source: Ledger and state model, Jobs table.
func (p *Projections) jobKey(job *statemachine.Job) tablestore.Key {
	return tablestore.Key{Table: p.tables.Jobs, Partition: bucket(job), Row: tablestore.Escape(job.ID)}
}

// outboxKey returns the key of a row in the Outbox table.
//
// Source: Ledger and state model, Outbox table.
func (p *Projections) outboxKey(job *statemachine.Job, outboxID string) tablestore.Key {
	return tablestore.Key{Table: p.tables.Outbox, Partition: bucket(job), Row: tablestore.Escape(outboxID)}
}

// outboxOf selects all outbox rows of a job: their ids begin with the job's.
func (p *Projections) outboxOf(job *statemachine.Job) tablestore.Query {
	prefix := tablestore.Escape(job.ID + ".")
	return tablestore.Query{
		Table: p.tables.Outbox, Partition: bucket(job), From: prefix, To: tablestore.PrefixEnd(prefix),
	}
}

// jobOf selects the one row of a job.
func (p *Projections) jobOf(job *statemachine.Job) tablestore.Query {
	key := p.jobKey(job)
	return tablestore.Query{Table: key.Table, Partition: key.Partition, From: key.Row, To: key.Row + "\x00"}
}

// bucket returns a job's partition in the Jobs and the Outbox table.
func bucket(job *statemachine.Job) string {
	return tablestore.Join(job.TenantID, ledger.IDTime(job.ID).UTC().Format("200601"))
}

// revision returns the revision that a row shows, or 0 for an absent row.
func revision(row *tablestore.Row) int64 { return row.Properties.Get(columnRev).Int() }

// outboxColumns returns the properties of an outbox row: the ledger's, with the
// Phase 1 names and the directive. It returns nil if neither row nor stored
// holds the directive.
//
// Source: Ledger and state model, Outbox table.
func outboxColumns(job *statemachine.Job, row *ledger.OutboxRow, stored tablestore.Properties) tablestore.Properties {
	payload := row.Directive
	if payload == nil && stored.Get(columnAttempt).Int() == int64(row.AttemptNo) {
		payload = tablestore.Large(stored, columnPayload)
	}
	if payload == nil {
		return nil
	}
	own := tablestore.Properties{
		{Name: columnRev, Value: tablestore.Int(job.Rev)},
		{Name: columnJob, Value: tablestore.String(job.ID)},
		{Name: columnStep, Value: tablestore.String(row.StepID)},
		{Name: columnPartition, Value: tablestore.Int(int64(row.Routing.Lane))},
	}
	foreign := slices.DeleteFunc(slices.Clone(stored), func(c tablestore.Property) bool {
		return own.Get(c.Name).Kind() != 0 || isPayload(c.Name)
	})
	columns := slices.DeleteFunc(ledger.OutboxColumns(&row.Outbox, foreign), func(c tablestore.Property) bool {
		return c.Name == "step_id" // stepId
	})
	return tablestore.AppendLarge(append(columns, own...), columnPayload, payload)
}

// isPayload reports whether the column holds a part of the payload.
func isPayload(name string) bool {
	return name == columnPayload || strings.HasPrefix(name, columnPayload+"_")
}
