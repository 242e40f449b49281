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

// journalEntry is a transition as the journal row stores it.
type journalEntry struct {
	Object    string `json:"o"`
	ID        string `json:"i,omitempty"`
	Type      string `json:"t"`
	From      string `json:"f,omitempty"`
	To        string `json:"to,omitempty"`
	AttemptNo int    `json:"n,omitempty"`
	Cause     string `json:"c,omitempty"`
	Detail    string `json:"d,omitempty"`
}

func journalEntries(history []statemachine.Transition) []journalEntry {
	entries := make([]journalEntry, len(history))
	for i, t := range history {
		entries[i] = journalEntry{
			Object: string(t.Object), ID: t.ID, Type: t.Type, From: t.From, To: t.To,
			AttemptNo: t.AttemptNo, Cause: t.Cause, Detail: t.Detail,
		}
	}
	return entries
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
	if err := checkVersion(row); err != nil {
		return nil, err
	}
	p := row.Properties
	var stored []journalEntry
	if err := json.Unmarshal(tablestore.Large(p, "entries"), &stored); err != nil {
		return nil, fmt.Errorf("journal row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
	}
	for i, e := range stored {
		entries = append(entries, HistoryEntry{
			Rev: p.Get("rev").Int(), Index: i, At: p.Get("at").Time(), Event: p.Get("event").String(),
			Actor: p.Get("actor").String(), RequestID: p.Get("request_id").String(),
			Transition: statemachine.Transition{
				Object: statemachine.Object(e.Object), ID: e.ID, Type: e.Type, From: e.From, To: e.To,
				AttemptNo: e.AttemptNo, Cause: e.Cause, Detail: e.Detail,
			},
		})
	}
	return entries, nil
}
