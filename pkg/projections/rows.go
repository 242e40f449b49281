package projections

import (
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The columns that projected rows have beside the ledger's own, or in place of
// them.
const (
	columnRev     = "rev" // the revision that the row shows
	columnJob     = "jobId"
	columnStep    = "stepId"
	columnPayload = "payload"
	columnAttempt = "attempt_no" // of the row, and so of its payload
)

// jobKey addresses a row of the Jobs table. The month is the one in the job's id,
// so that whoever knows the job finds its rows.
//
// Source: Ledger and state model, Jobs table.
func (p *Projections) jobKey(job *statemachine.Job) tablestore.Key {
	return tablestore.Key{Table: p.tables.Jobs, Partition: bucket(job), Row: tablestore.Escape(job.ID)}
}

// outboxKey addresses a row of the Outbox table.
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

// bucket is a job's partition in the Jobs and the Outbox table.
func bucket(job *statemachine.Job) string {
	return tablestore.Join(job.TenantID, ledger.IDTime(job.ID).UTC().Format("200601"))
}

// revision is the revision that a row shows, 0 for one that is not there.
func revision(row *tablestore.Row) int64 { return row.Properties.Get(columnRev).Int() }

// outboxColumns are the properties of an outbox row: the ledger's, with the names
// and the directive that the seeds give it. They are nil where the directive is
// neither at hand nor in the stored row.
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
	foreign := slices.DeleteFunc(slices.Clone(stored), func(c tablestore.Property) bool {
		return c.Name == columnRev || c.Name == columnJob || c.Name == columnStep || isPayload(c.Name)
	})
	columns := slices.DeleteFunc(ledger.OutboxColumns(&row.Outbox, foreign), func(c tablestore.Property) bool {
		return c.Name == "step_id"
	})
	columns = append(columns,
		tablestore.Property{Name: columnRev, Value: tablestore.Int(job.Rev)},
		tablestore.Property{Name: columnJob, Value: tablestore.String(job.ID)},
		tablestore.Property{Name: columnStep, Value: tablestore.String(row.StepID)},
	)
	return tablestore.AppendLarge(columns, columnPayload, payload)
}

// isPayload reports whether the column holds a part of the payload.
func isPayload(name string) bool {
	return name == columnPayload || strings.HasPrefix(name, columnPayload+"_")
}
