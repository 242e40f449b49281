package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// HistoryEntry is one entry of a job's history.
//
// Source: Ledger and state model, Events table; job lifecycle plan, Event
// semantics.
type HistoryEntry struct {
	Rev       int64
	Index     int // within the change
	At        time.Time
	Event     string // the event that caused the change
	Actor     string
	RequestID string
	statemachine.Transition
}

// EventID is the entry's id: unique in its job, and ordered as the history is.
func (e *HistoryEntry) EventID() string {
	return tablestore.Pad(e.Rev, 12) + "-" + tablestore.Pad(int64(e.Index), 3)
}

// journalRow is what an EVENT row stores, beside its entries.
type journalRow struct {
	operation string // whose change it is
	rev       int64
	at        time.Time
	event     string
	actor     string
	requestID string
}

const columnOperation = "operation"

var journalCodec = newCodec(
	text(columnOperation, func(r *journalRow) *string { return &r.operation }),
	integer("rev", func(r *journalRow) *int64 { return &r.rev }),
	instant("at", func(r *journalRow) *time.Time { return &r.at }),
	text("event", func(r *journalRow) *string { return &r.event }),
	text("actor", func(r *journalRow) *string { return &r.actor }),
	text("request_id", func(r *journalRow) *string { return &r.requestID }),
)

// journalEntry is a transition as the journal row stores it.
type journalEntry struct {
	Object    statemachine.Object `json:"o"`
	ID        string              `json:"i,omitempty"`
	Type      string              `json:"t"`
	From      string              `json:"f,omitempty"`
	To        string              `json:"to,omitempty"`
	AttemptNo int                 `json:"n,omitempty"`
	Cause     string              `json:"c,omitempty"`
	Detail    string              `json:"d,omitempty"`
}

// encodeJournal makes an EVENT row's properties.
func encodeJournal(row *journalRow, history []statemachine.Transition) (tablestore.Properties, error) {
	entries := make([]journalEntry, len(history))
	for i := range history {
		entries[i] = journalEntry(history[i])
	}
	data, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	return tablestore.AppendLarge(journalCodec.encode(row, nil), "entries", data), nil
}

// History returns one page of a job's changes with rev > after, oldest first,
// and the rev to go on after, 0 where there are no more. A change is never
// split over two pages.
func (l *Ledger) History(ctx context.Context, jobID string, after int64, limit int) ([]HistoryEntry, int64, error) {
	query := tablestore.Query{
		Table: l.tables.Ledger, Partition: tablestore.Escape(jobID),
		From: l.eventKey(jobID, after+1).Row, To: tablestore.PrefixEnd(rowEvent + ":"), Limit: limit,
	}
	var entries []HistoryEntry
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil {
			return nil, 0, fmt.Errorf("read the history of job %s: %w", jobID, err)
		}
		for i := range page.Rows {
			if entries, err = appendHistory(entries, &page.Rows[i]); err != nil {
				return nil, 0, err
			}
		}
		switch {
		case page.Next == "":
			return entries, 0, nil
		case len(entries) > 0:
			return entries, entries[len(entries)-1].Rev, nil
		}
		query.Continue = page.Next
	}
}

// appendHistory adds the entries of one journal row.
func appendHistory(entries []HistoryEntry, row *tablestore.Row) ([]HistoryEntry, error) {
	var r journalRow
	if err := journalCodec.decode(row, &r); err != nil {
		return nil, err
	}
	var stored []journalEntry
	if err := json.Unmarshal(tablestore.Large(row.Properties, "entries"), &stored); err != nil {
		return nil, fmt.Errorf("journal row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
	}
	for i, e := range stored {
		entries = append(entries, HistoryEntry{
			Rev: r.rev, Index: i, At: r.at, Event: r.event, Actor: r.actor, RequestID: r.requestID,
			Transition: statemachine.Transition(e),
		})
	}
	return entries, nil
}
