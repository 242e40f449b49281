package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// DefaultTable is the name of the queue's table.
const DefaultTable = "luciusqueue"

// Storage is the queue's rows, and what makes them follow the ledger. It is
// safe for concurrent use.
type Storage struct {
	store tablestore.Store
	table string
}

// NewStorage returns the queue's rows in that table of the store, or in
// [DefaultTable] where the name is empty.
func NewStorage(store tablestore.Store, table string) *Storage {
	if table == "" {
		table = DefaultTable
	}
	return &Storage{store: store, table: table}
}

// The rows of a job's partition.
const (
	rowItem    = "ITEM"    // status, small: each move writes it
	rowMessage = "MESSAGE" // the directive's bytes, once per attempt
	rowEvent   = "EVENT"   // one per move
)

// workID is a work item's id in its parts. It is the id of the outbox row under
// which the item was first enqueued, so it says where the item lies.
type workID = ledger.OutboxID

func (s *Storage) key(jobID string, parts ...string) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: tablestore.Escape(jobID), Row: tablestore.Join(parts...)}
}

func (s *Storage) itemKey(id workID) tablestore.Key {
	return s.key(id.JobID, rowItem, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(id.FirstAttempt), 6))
}

func (s *Storage) messageKey(id workID, attemptNo int) tablestore.Key {
	return s.key(id.JobID, rowMessage, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(attemptNo), 6))
}

func (s *Storage) eventKey(id workID, rev int64) tablestore.Key {
	return s.key(id.JobID, rowEvent, tablestore.Pad(int64(id.StepIndex), 4),
		tablestore.Pad(int64(id.FirstAttempt), 6), tablestore.Pad(rev, 8))
}

// hintKey addresses the hint that a queued item is ready: oldest first within
// a tenant.
func (s *Storage) hintKey(item *lifecycle.Item) tablestore.Key {
	return tablestore.Key{
		Table:     s.table,
		Partition: tablestore.Join("ready", item.Service, item.StepType),
		Row:       tablestore.Join(item.TenantID, tablestore.Pad(item.CreatedAt.UnixMilli(), 13), item.WorkID),
	}
}

// stored is an item as it was read.
type stored struct {
	item lifecycle.Item
	id   workID
	row  tablestore.Row
}

// load reads an item. It returns [lifecycle.ErrNotFound], also for text that is
// no work id.
func (s *Storage) load(ctx context.Context, workID string) (*stored, error) {
	id, err := ledger.ParseOutboxID(workID)
	if err != nil {
		return nil, lifecycle.ErrNotFound
	}
	row, err := s.store.Get(ctx, s.itemKey(id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, lifecycle.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read work item %s: %w", workID, err)
	}
	return decodeStored(row, id)
}

// decodeStored reads the row of an item.
func decodeStored(row tablestore.Row, id workID) (*stored, error) {
	item, err := decodeItem(row.Properties)
	if err != nil {
		return nil, fmt.Errorf("row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
	}
	return &stored{item: item, id: id, row: row}, nil
}

// items reads the items of one step, or of all steps where the index is
// negative, oldest first.
func (s *Storage) items(ctx context.Context, jobID string, stepIndex int) ([]*stored, error) {
	prefix := rowItem + ":"
	if stepIndex >= 0 {
		prefix = tablestore.Join(rowItem, tablestore.Pad(int64(stepIndex), 4)) + ":"
	}
	query := tablestore.Query{
		Table: s.table, Partition: tablestore.Escape(jobID), From: prefix, To: tablestore.PrefixEnd(prefix),
	}
	var items []*stored
	for {
		page, err := s.store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the work items of job %s: %w", jobID, err)
		}
		for _, row := range page.Rows {
			id, err := ledger.ParseOutboxID(row.Properties.Get("work_id").String())
			if err != nil {
				return nil, fmt.Errorf("row %s of job %s: %w", row.Key.Row, jobID, err)
			}
			one, err := decodeStored(row, id)
			if err != nil {
				return nil, err
			}
			items = append(items, one)
		}
		if page.Next == "" {
			return items, nil
		}
		query.Continue = page.Next
	}
}

// message reads the directive's bytes of an attempt.
func (s *Storage) message(ctx context.Context, id workID, attemptNo int) ([]byte, error) {
	row, err := s.store.Get(ctx, s.messageKey(id, attemptNo))
	if err != nil {
		return nil, fmt.Errorf("read the directive of job %s: %w", id.JobID, err)
	}
	return tablestore.Large(row.Properties, "directive"), nil
}

// writes are the batches that bring a move of an item to the store: the item
// and its history in one, and the hint where the move makes it ready or takes
// it.
func (s *Storage) writes(old *stored, change lifecycle.Change) []tablestore.Batch {
	item := change.Item
	batch := tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.itemKey(old.id), ETag: old.row.ETag, Properties: encodeItem(&item),
	}}
	batch = append(batch, s.events(old.id, change.Events)...)
	batches := []tablestore.Batch{batch}
	was, is := old.item.Status == lifecycle.StatusQueued, item.Status == lifecycle.StatusQueued
	if was && !is {
		batches = append(batches, tablestore.Batch{{Verb: tablestore.Discard, Key: s.hintKey(&item)}})
	}
	return batches
}

// removal are the batches that drop an item from the queue; its history stays.
func (s *Storage) removal(old *stored, change lifecycle.Change) []tablestore.Batch {
	batch := tablestore.Batch{{Verb: tablestore.Delete, Key: s.itemKey(old.id), ETag: old.row.ETag}}
	batch = append(batch, s.events(old.id, change.Events)...)
	return []tablestore.Batch{batch, {{Verb: tablestore.Discard, Key: s.hintKey(&old.item)}}}
}

// events are the inserts of history rows.
func (s *Storage) events(id workID, events []lifecycle.Event) tablestore.Batch {
	batch := make(tablestore.Batch, 0, len(events))
	for i := range events {
		e := &events[i]
		p := tablestore.Properties{
			{Name: "type", Value: tablestore.String(string(e.Type))},
			{Name: "from_status", Value: tablestore.String(string(e.From))},
			{Name: "to_status", Value: tablestore.String(string(e.To))},
			{Name: "rev", Value: tablestore.Int(e.Rev)},
			{Name: "at", Value: tablestore.Time(e.At)},
			{Name: "actor", Value: tablestore.String(e.Actor)},
			{Name: "request_id", Value: tablestore.String(e.RequestID)},
			{Name: "attempt", Value: tablestore.Int(int64(e.Attempt))},
		}
		batch = append(batch, tablestore.Op{Verb: tablestore.Insert, Key: s.eventKey(id, e.Rev), Properties: p})
	}
	return batch
}

// history reads one page of an item's events with rev > after.
func (s *Storage) history(ctx context.Context, workID string, after int64, limit int) ([]lifecycle.Event, int64, error) {
	id, err := ledger.ParseOutboxID(workID)
	if err != nil {
		return nil, 0, lifecycle.ErrNotFound
	}
	from := s.eventKey(id, after+1)
	prefix := from.Row[:strings.LastIndexByte(from.Row, ':')+1]
	page, err := s.store.Scan(ctx, tablestore.Query{
		Table: s.table, Partition: from.Partition, From: from.Row, To: tablestore.PrefixEnd(prefix), Limit: limit,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the history of work item %s: %w", workID, err)
	}
	events := make([]lifecycle.Event, 0, len(page.Rows))
	for i := range page.Rows {
		events = append(events, decodeEvent(workID, page.Rows[i].Properties))
	}
	if page.Next != "" && len(events) > 0 {
		return events, events[len(events)-1].Rev, nil
	}
	return events, 0, nil
}

func decodeEvent(workID string, p tablestore.Properties) lifecycle.Event {
	return lifecycle.Event{
		WorkID: workID, Type: lifecycle.EventType(p.Get("type").String()),
		From: lifecycle.Status(p.Get("from_status").String()), To: lifecycle.Status(p.Get("to_status").String()),
		Rev: p.Get("rev").Int(), At: p.Get("at").Time(), Actor: p.Get("actor").String(),
		RequestID: p.Get("request_id").String(), Attempt: int(p.Get("attempt").Int()),
	}
}

// now is the time of one change, in the milliseconds that are stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
