package projections

import (
	"encoding/json"
	"fmt"
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
		return own.Get(c.Name).Kind() != 0 || c.Name == columnPayload || strings.HasPrefix(c.Name, columnPayload+"_")
	})
	columns := slices.DeleteFunc(ledger.OutboxColumns(&row.Outbox, foreign), func(c tablestore.Property) bool {
		return c.Name == "step_id" // stepId
	})
	return tablestore.AppendLarge(append(columns, own...), columnPayload, payload)
}

// keyTime is the format of timestamps in keys of the Events table: without
// separators, and sorted by time.
const keyTime = "20060102T150405.000Z"

// event is the payload of an Events row, with the API's field names.
type event struct {
	EventID   string `json:"event_id"`
	Rev       int64  `json:"rev"`
	Type      string `json:"type"`
	At        string `json:"at"`
	Actor     string `json:"actor,omitempty"`
	Object    string `json:"object"`
	ObjectID  string `json:"object_id,omitempty"`
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	AttemptNo int    `json:"attempt_no,omitempty"`
	Cause     string `json:"cause,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

// events returns the inserts of the history in batches. No batch holds entries
// of two changes, so that its rows either all exist or none does.
func (p *Projections) events(r *ledger.Revision) ([]tablestore.Batch, error) {
	var batches []tablestore.Batch
	history := r.History
	for i := range history {
		op, err := p.event(r.Job.ID, &history[i])
		if err != nil {
			return nil, err
		}
		last := len(batches) - 1
		if i == 0 || history[i-1].Rev != history[i].Rev || len(batches[last]) == tablestore.MaxBatchOps {
			batches = append(batches, tablestore.Batch{op})
			continue
		}
		batches[last] = append(batches[last], op)
	}
	return batches, nil
}

// event returns the insert of one entry. The key ends with the event's id, so
// that events of the same instant are in order too.
//
// Source: Ledger and state model, Events table.
func (p *Projections) event(jobID string, entry *ledger.HistoryEntry) (tablestore.Op, error) {
	at := entry.At.UTC()
	e := event{
		EventID: entry.EventID(), Rev: entry.Rev, Type: entry.Type,
		At: at.Format("2006-01-02T15:04:05.000Z"), Actor: entry.Actor, Object: string(entry.Object), ObjectID: entry.ID,
		From: entry.From, To: entry.To, AttemptNo: entry.AttemptNo, Cause: entry.Cause, RequestID: entry.RequestID,
		Detail: entry.Detail,
	}
	payload, err := json.Marshal(e)
	if err != nil {
		return tablestore.Op{}, fmt.Errorf("encode event %s: %w", e.EventID, err)
	}
	columns := tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)},
		{Name: columnJob, Value: tablestore.String(jobID)},
		{Name: "event_id", Value: tablestore.String(e.EventID)},
		{Name: columnRev, Value: tablestore.Int(entry.Rev)},
		{Name: "event_type", Value: tablestore.String(entry.Type)},
		{Name: "created_at", Value: tablestore.Time(at)},
	}
	return tablestore.Op{
		Verb: tablestore.Insert,
		Key: tablestore.Key{
			Table: p.tables.Events, Partition: tablestore.Escape(jobID), Row: tablestore.Join(at.Format(keyTime), e.EventID),
		},
		Properties: tablestore.AppendLarge(columns, columnPayload, payload),
	}, nil
}
