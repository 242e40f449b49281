package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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
	Actor     string // the kind of caller
	Caller    string // the caller's name, see [WithCaller]
	RequestID string
	Report    statemachine.Report // of the callback that caused the change
	statemachine.Transition
}

// maxCaller bounds the name of a caller, in bytes. Package auth makes none that is longer
// than a JWT's subject.
const maxCaller = 512

type callerKey struct{}

// WithCaller returns a context for the requests of a caller, whose name the history of each
// change shows. A name of more than 512 bytes is truncated. Without a caller, or with the
// empty name, the change is attributed to the system.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, strings.ToValidUTF8(name[:min(len(name), maxCaller)], ""))
}

// CallerOf returns the name of the context's caller, empty if there is none.
func CallerOf(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

// EventID is the entry's id: unique in its job, and sorted in the order of the history.
func (e *HistoryEntry) EventID() string {
	return tablestore.Pad(e.Rev, 12) + "-" + tablestore.Pad(int64(e.Index), 3)
}

// journalRow is the content of an EVENT row: the id of the change, and what all its
// entries have in common.
type journalRow struct {
	operation string
	HistoryEntry
}

const (
	columnOperation = "operation"
	columnCaller    = "caller"
)

var journalCodec = newCodec(slices.Concat([]column[journalRow]{
	text(columnOperation, func(r *journalRow) *string { return &r.operation }),
	integer("rev", func(r *journalRow) *int64 { return &r.Rev }),
	instant("at", func(r *journalRow) *time.Time { return &r.At }),
	text("event", func(r *journalRow) *string { return &r.Event }),
	text("actor", func(r *journalRow) *string { return &r.Actor }),
	text(columnCaller, func(r *journalRow) *string { return &r.Caller }),
	text("request_id", func(r *journalRow) *string { return &r.RequestID }),
}, within(func(r *journalRow) *statemachine.Report { return &r.Report }, reportColumns))...)

// journalEntry is the stored form of a transition.
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

// encodeJournal returns an EVENT row's properties.
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

// history returns the entries of the change.
func (r *journalRow) history(transitions []statemachine.Transition) []HistoryEntry {
	entries := make([]HistoryEntry, len(transitions))
	for i, transition := range transitions {
		entries[i] = r.HistoryEntry
		entries[i].Index, entries[i].Transition = i, transition
	}
	return entries
}

// History returns one page of a job's changes with rev > after, oldest first, and
// the rev after which the next page begins, 0 at the end. It never splits a change
// over two pages.
func (l *Ledger) History(ctx context.Context, jobID string, after int64, limit int) ([]HistoryEntry, int64, error) {
	query := rowsOf(l.jobKey(jobID, rowEvent))
	query.From, query.Limit = l.eventKey(jobID, after+1).Row, limit
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, 0, fmt.Errorf("read the history of job %s: %w", jobID, err)
	}
	var entries []HistoryEntry
	next := int64(0)
	for i := range page.Rows {
		row := &page.Rows[i]
		var change journalRow
		if err := journalCodec.decode(row, &change); err != nil {
			return nil, 0, err
		}
		var stored []journalEntry
		if err := json.Unmarshal(tablestore.Large(row.Properties, "entries"), &stored); err != nil {
			return nil, 0, fmt.Errorf("journal row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
		}
		transitions := make([]statemachine.Transition, len(stored))
		for i := range stored {
			transitions[i] = statemachine.Transition(stored[i])
		}
		entries = append(entries, change.history(transitions)...)
		if page.Next != "" {
			next = change.Rev
		}
	}
	return entries, next, nil
}

// historyAfter returns all of a job's changes with rev > after, oldest first.
func (l *Ledger) historyAfter(ctx context.Context, jobID string, after int64) ([]HistoryEntry, error) {
	var all []HistoryEntry
	for {
		page, next, err := l.History(ctx, jobID, after, 1000)
		if all = append(all, page...); err != nil || next == 0 {
			return all, err
		}
		after = next
	}
}

// storedMove is the stored form of a work item's move, in a journal row or in the
// row of a heartbeat.
type storedMove struct {
	WorkID    string `json:"w"`
	Rev       int64  `json:"v"`
	Type      string `json:"t"`
	From      string `json:"f,omitempty"`
	To        string `json:"to,omitempty"`
	AtMS      int64  `json:"at"`
	Actor     string `json:"a"`
	RequestID string `json:"r,omitempty"`
	Reason    string `json:"y,omitempty"`
	Attempt   int    `json:"n"`
}

func encodeMoves(events []statemachine.ItemEvent) ([]byte, error) {
	moves := make([]storedMove, len(events))
	for i, e := range events {
		moves[i] = storedMove{
			WorkID: e.WorkID, Rev: e.Rev, Type: string(e.Type), From: string(e.From), To: string(e.To),
			AtMS: e.At.UnixMilli(), Actor: e.Actor, RequestID: e.RequestID, Reason: e.Reason, Attempt: e.Attempt,
		}
	}
	return json.Marshal(moves)
}

// ItemHistory returns an item's moves in the order of their revs: those in the job's
// journal, and its heartbeats. It is empty for an unknown item; for text that is no
// work id it returns [statemachine.ErrNoItem].
func (l *Ledger) ItemHistory(ctx context.Context, workID string) ([]statemachine.ItemEvent, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return nil, statemachine.ErrNoItem
	}
	var events []statemachine.ItemEvent
	for _, prefix := range []tablestore.Key{l.itemKey(rowBeat, id), l.jobKey(id.JobID, rowEvent)} {
		rows, err := tablestore.ScanAll(ctx, l.store, rowsOf(prefix))
		if err != nil {
			return nil, fmt.Errorf("read the history of work item %s: %w", workID, err)
		}
		for i := range rows {
			data := tablestore.Large(rows[i].Properties, "moves")
			if len(data) == 0 {
				continue
			}
			var moves []storedMove
			if err := json.Unmarshal(data, &moves); err != nil {
				return nil, fmt.Errorf("row %s of job %s: moves of work items: %w", rows[i].Key.Row, rows[i].Key.Partition, err)
			}
			for _, m := range moves {
				if m.WorkID != workID {
					continue
				}
				events = append(events, statemachine.ItemEvent{
					WorkID: m.WorkID, Rev: m.Rev, Type: statemachine.ItemEventType(m.Type), From: statemachine.ItemStatus(m.From),
					To: statemachine.ItemStatus(m.To), At: time.UnixMilli(m.AtMS).UTC(), Actor: m.Actor, RequestID: m.RequestID,
					Reason: m.Reason, Attempt: m.Attempt, Caller: rows[i].Properties.Get(columnCaller).String(),
				})
			}
		}
	}
	slices.SortFunc(events, func(a, b statemachine.ItemEvent) int { return int(a.Rev - b.Rev) })
	return events, nil
}
