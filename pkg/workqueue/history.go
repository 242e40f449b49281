package workqueue

import (
	"context"
	"fmt"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

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
