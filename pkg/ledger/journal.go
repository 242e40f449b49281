package ledger

import (
	"context"
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
	Rev       int64               `column:"rev"`
	Index     int                 // within the change
	At        time.Time           `column:"at"`
	Event     string              `column:"event"`  // the event that caused the change
	Actor     string              `column:"actor"`  // the kind of caller
	Caller    string              `column:"caller"` // the caller's name, see [WithCaller]
	RequestID string              `column:"request_id"`
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
	width := 3
	if e.Index >= FirstRejected {
		width = 9
	}
	return tablestore.Pad(e.Rev, 12) + "-" + tablestore.Pad(int64(e.Index), width)
}

// journalRow is the content of an EVENT row: the id of the change, what all its entries
// have in common, and what happened.
type journalRow struct {
	Operation string `column:"operation"`
	HistoryEntry
	Entries []statemachine.Transition `column:"entries"`
	Moves   []statemachine.ItemEvent  `column:"moves"`
}

// beatRow is the content of the row of a heartbeat.
type beatRow struct {
	Moves  []statemachine.ItemEvent `column:"moves"`
	At     time.Time                `column:"at"`
	Caller string                   `column:"caller"` // of an EVENT row
}

const columnOperation = "operation"

var (
	journalCodec = tablestore.NewCodec[journalRow]()
	beatCodec    = tablestore.NewCodec[beatRow]()
)

// history returns the entries of the change.
func (r *journalRow) history() []HistoryEntry {
	entries := make([]HistoryEntry, len(r.Entries))
	for i := range entries {
		entries[i] = r.HistoryEntry
		entries[i].Index, entries[i].Transition = i, r.Entries[i]
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
		var change journalRow
		if err := journalCodec.Decode(&page.Rows[i], &change); err != nil {
			return nil, 0, err
		}
		entries = append(entries, change.history()...)
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
		rows, err := beatCodec.ScanAll(ctx, l.store, rowsOf(prefix))
		if err != nil {
			return nil, fmt.Errorf("read the history of work item %s: %w", workID, err)
		}
		for _, row := range rows {
			for _, m := range row.Moves {
				if m.WorkID == workID {
					m.At, m.Caller = row.At, row.Caller
					events = append(events, m)
				}
			}
		}
	}
	slices.SortFunc(events, func(a, b statemachine.ItemEvent) int { return int(a.Rev - b.Rev) })
	return events, nil
}
