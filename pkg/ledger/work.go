package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// Verb is what a worker or an operator asks of a work item.
type Verb struct {
	Operation lifecycle.Operation
	Request   lifecycle.Request
	// Event is what the verb is to the job, of the item as it is now. Required.
	Event func(item *lifecycle.Item, now time.Time) statemachine.Event
	// Sees says whether the caller may know of an item of that tenant and service; any
	// other is not there. Optional.
	Sees func(tenantID, service string) bool
}

// Work carries a verb out on an item: on one load of the job, the policy of the
// queue is asked first (owner, rev, status, repeat), then the state machine, and
// both change in one commit. A request that was carried out before is answered
// with the item as it is now, and [statemachine.Duplicate].
//
// The errors are those of [Ledger.Change] and the lifecycle's refusals;
// [lifecycle.ErrNotFound] is returned for an unknown item too.
func (l *Ledger) Work(ctx context.Context, workID string, v Verb) (Result, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return Result{}, lifecycle.ErrNotFound
	}
	result, err := l.change(ctx, id.JobID, nil, nil, &options{
		actor: v.Request.Actor, requestID: v.Request.ID, verb: &verb{Verb: v, workID: workID, id: id},
	})
	if errors.Is(err, ErrJobNotFound) {
		err = lifecycle.ErrNotFound
	}
	return result, err
}

// verb is a verb on one item.
type verb struct {
	Verb

	workID string
	id     OutboxID
	claim  *Claim // nil for any other verb
}

// admit asks the policy of the queue, on the item as the job shows it. repeat says
// that the request was carried out before.
func (l *Ledger) admit(ctx context.Context, s *snapshot, v *verb) (item lifecycle.Item, repeat bool, err error) {
	record := s.open
	if record == nil || record.WorkID != v.workID {
		if record, err = l.endedItem(ctx, v.id); err != nil {
			return item, false, err
		}
	}
	item = workitem.View(&s.agg, record)
	if v.Sees != nil && !v.Sees(item.TenantID, item.Service) {
		return item, false, lifecycle.ErrNotFound
	}
	request := v.request(&item)
	repeat, err = lifecycle.Check(item, v.Operation, request)
	asked := workitem.Requester{Actor: request.Actor, RequestID: request.ID}
	switch {
	case err == nil && v.Operation == lifecycle.OpRequeueStalled && record.RequeuedBy == asked:
		return item, true, nil
	case record.Removed && !repeat:
		return item, false, lifecycle.ErrNotFound
	case err != nil || repeat:
		return item, repeat, err
	}
	return item, false, nil
}

// request is the verb's request. A claim asks for the item at whatever rev it has
// while it is queued under the hint.
func (v *verb) request(item *lifecycle.Item) lifecycle.Request {
	request := v.Request
	if v.claim != nil {
		request.ExpectedRev = item.Rev
	}
	return request
}

// askOf is what a work item has to know of the event that moves its job.
func askOf(event statemachine.Event) workitem.Ask {
	result, ok := event.(statemachine.Result)
	if !ok {
		return workitem.Ask{}
	}
	return workitem.Ask{GaveOutput: len(result.OutputRef) > 0, GaveResult: len(result.ResultRef) > 0}
}

// itemAfter is the item of that id as the change leaves it.
func (p *planner) itemAfter(workID string) lifecycle.Item {
	for _, record := range []*workitem.Record{p.moves.Open, p.moves.Ended} {
		if record != nil && record.WorkID == workID {
			return workitem.View(&p.d.After, record)
		}
	}
	return lifecycle.Item{}
}

// endedItem reads the record of an item that is not open.
func (l *Ledger) endedItem(ctx context.Context, id OutboxID) (*workitem.Record, error) {
	row, err := l.store.Get(ctx, l.itemKey(rowItem, id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, lifecycle.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read a work item of job %s: %w", id.JobID, err)
	}
	var record workitem.Record
	err = itemCodec.decode(&row, &record)
	return &record, err
}

// Item returns a work item. It returns [lifecycle.ErrNotFound], also for an item
// that was removed.
func (l *Ledger) Item(ctx context.Context, workID string) (lifecycle.Item, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return lifecycle.Item{}, lifecycle.ErrNotFound
	}
	s, err := l.load(ctx, id.JobID)
	switch {
	case errors.Is(err, ErrJobNotFound), err == nil && s.head.tombstone:
		return lifecycle.Item{}, lifecycle.ErrNotFound
	case err != nil:
		return lifecycle.Item{}, err
	}
	record := s.open
	if record == nil || record.WorkID != workID {
		if record, err = l.endedItem(ctx, id); err != nil {
			return lifecycle.Item{}, err
		}
	}
	if record.Removed {
		return lifecycle.Item{}, lifecycle.ErrNotFound
	}
	return workitem.View(&s.agg, record), nil
}

// ItemDirective returns the bytes of the directive that an item carries. It returns
// [lifecycle.ErrNotFound] for an item whose job is being purged.
func (l *Ledger) ItemDirective(ctx context.Context, item *lifecycle.Item) ([]byte, error) {
	id, err := ParseOutboxID(item.WorkID)
	if err != nil {
		return nil, lifecycle.ErrNotFound
	}
	directive, err := l.Directive(ctx, id.JobID, id.StepIndex, item.AttemptNo)
	if errors.Is(err, ErrJobNotFound) {
		err = lifecycle.ErrNotFound
	}
	return directive, err
}

// ItemHistory returns an item's moves in the order of their revs: those of the
// job's journal, and its heartbeats. It is empty for an unknown item; for text that
// is no work id it returns [lifecycle.ErrNotFound].
func (l *Ledger) ItemHistory(ctx context.Context, workID string) ([]lifecycle.Event, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return nil, lifecycle.ErrNotFound
	}
	beats, journal := l.itemKey(rowBeat, id), l.jobKey(id.JobID, rowEvent)
	var events []lifecycle.Event
	for _, key := range []tablestore.Key{beats, journal} {
		rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{
			Table: key.Table, Partition: key.Partition, From: key.Row + ":", To: tablestore.PrefixEnd(key.Row + ":"),
		})
		if err != nil {
			return nil, fmt.Errorf("read the history of work item %s: %w", workID, err)
		}
		for i := range rows {
			more, err := decodeMoves(&rows[i], workID)
			if err != nil {
				return nil, err
			}
			events = append(events, more...)
		}
	}
	slices.SortFunc(events, func(a, b lifecycle.Event) int { return int(a.Rev - b.Rev) })
	return events, nil
}
