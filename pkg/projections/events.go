package projections

import (
	"encoding/json"
	"fmt"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
func (p *projection) events() ([]tablestore.Batch, error) {
	var batches []tablestore.Batch
	history := p.r.History
	for i := range history {
		op, err := p.event(&history[i])
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
func (p *projection) event(entry *ledger.HistoryEntry) (tablestore.Op, error) {
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
		{Name: columnJob, Value: tablestore.String(p.r.Job.ID)},
		{Name: "event_id", Value: tablestore.String(e.EventID)},
		{Name: columnRev, Value: tablestore.Int(entry.Rev)},
		{Name: "event_type", Value: tablestore.String(entry.Type)},
		{Name: "created_at", Value: tablestore.Time(at)},
	}
	return tablestore.Op{
		Verb: tablestore.Insert,
		Key: tablestore.Key{
			Table: p.tables.Events, Partition: tablestore.Escape(p.r.Job.ID), Row: tablestore.Join(at.Format(keyTime), e.EventID),
		},
		Properties: tablestore.AppendLarge(columns, columnPayload, payload),
	}, nil
}
