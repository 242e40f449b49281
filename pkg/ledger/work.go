package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Verb is a request by a worker or an operator about a work item.
type Verb struct {
	Operation statemachine.ItemOperation
	Request   statemachine.ItemRequest
	// Event returns the event that the verb is for the job, given the item as it is
	// now. Required.
	Event func(item *statemachine.Item, now time.Time) statemachine.Event
	// Sees reports whether the caller may see an item of that tenant and service. Any
	// other item is not found. Optional.
	Sees func(tenantID, service string) bool
}

// Work applies a verb to an item. It loads the job, consults the policy of the queue
// (owner, rev, status, repeat), then the state machine, and commits both changes together.
// A repeated request returns the current item, and [statemachine.Duplicate].
//
// The errors are those of [Ledger.Change] and the lifecycle's refusals;
// [statemachine.ErrNoItem] is returned for an unknown item too.
func (l *Ledger) Work(ctx context.Context, workID string, v Verb) (Result, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return Result{}, statemachine.ErrNoItem
	}
	actor := v.Request.Actor
	if v.Operation.OwnerOnly() {
		actor = ActorWorker // A worker may have any name, such as "operator".
	}
	result, err := l.change(ctx, id.JobID, nil, nil, &options{
		actor: actor, requestID: v.Request.ID, verb: &verb{Verb: v, workID: workID, id: id},
	})
	if errors.Is(err, ErrJobNotFound) {
		err = statemachine.ErrNoItem
	}
	return result, err
}

// WorkDirective returns the message body of the attempt that the item of a result of
// [Ledger.Work] carries. It reads the store unless the change read or wrote it.
func (l *Ledger) WorkDirective(ctx context.Context, r *Result) ([]byte, error) {
	id, err := ParseOutboxID(r.Item.WorkID)
	if err != nil {
		return nil, err
	}
	return l.directive(ctx, &snapshot{directive: r.remembered}, id.JobID, id.StepIndex, r.Item.AttemptNo)
}

// verb is a verb on one item.
type verb struct {
	Verb

	workID string
	id     OutboxID
	claim  *Claim // nil for any other verb
}

// request returns the verb's request. A claim accepts any rev of the item that is
// queued under the hint.
func (v *verb) request(item *statemachine.Item) statemachine.ItemRequest {
	request := v.Request
	if v.claim != nil {
		request.ExpectedRev = item.Rev
	}
	return request
}

// admit asks the policy of the queue about the item as the job shows it. repeat says
// that the request was executed before.
func (l *Ledger) admit(ctx context.Context, s *snapshot, v *verb) (item statemachine.Item, repeat bool, err error) {
	record, err := l.itemRecord(ctx, s, v.workID, v.id)
	if err != nil {
		return item, false, err
	}
	item = statemachine.ViewItem(&s.agg, record)
	if v.Sees != nil && !v.Sees(item.TenantID, item.Service) {
		return item, false, statemachine.ErrNoItem
	}
	request := v.request(&item)
	repeat, err = statemachine.CheckItem(item, v.Operation, request)
	switch {
	case err == nil && v.Operation == statemachine.OpRequeueStalled && record.RequeuedBy.Sent(request):
		return item, true, nil
	case record.Removed && !repeat:
		return item, false, statemachine.ErrNoItem
	}
	return item, repeat, err
}

// itemRecord returns the item's record: of the open item from the snapshot, of any
// other from its row.
func (l *Ledger) itemRecord(ctx context.Context, s *snapshot, workID string, id OutboxID) (*statemachine.ItemRecord, error) {
	if s.open != nil && s.open.WorkID == workID {
		return s.open, nil
	}
	row, err := l.store.Get(ctx, l.itemKey(rowItem, id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, statemachine.ErrNoItem
	}
	if err != nil {
		return nil, fmt.Errorf("read a work item of job %s: %w", id.JobID, err)
	}
	var record statemachine.ItemRecord
	return &record, itemCodec.Decode(&row, &record)
}

// Item returns a work item. It returns [statemachine.ErrNoItem], also for an item
// that was removed.
func (l *Ledger) Item(ctx context.Context, workID string) (statemachine.Item, error) {
	id, err := ParseOutboxID(workID)
	if err != nil {
		return statemachine.Item{}, statemachine.ErrNoItem
	}
	s, err := l.loadExisting(ctx, id.JobID)
	if errors.Is(err, ErrJobNotFound) {
		return statemachine.Item{}, statemachine.ErrNoItem
	}
	if err != nil {
		return statemachine.Item{}, err
	}
	record, err := l.itemRecord(ctx, s, workID, id)
	if err != nil {
		return statemachine.Item{}, err
	}
	if record.Removed {
		return statemachine.Item{}, statemachine.ErrNoItem
	}
	return statemachine.ViewItem(&s.agg, record), nil
}

// ItemDirective returns the bytes of the directive that an item carries. It returns
// [statemachine.ErrNoItem] for an item whose job is being purged.
func (l *Ledger) ItemDirective(ctx context.Context, item *statemachine.Item) ([]byte, error) {
	id, err := ParseOutboxID(item.WorkID)
	if err != nil {
		return nil, statemachine.ErrNoItem
	}
	directive, err := l.Directive(ctx, id.JobID, id.StepIndex, item.AttemptNo)
	if errors.Is(err, ErrJobNotFound) {
		err = statemachine.ErrNoItem
	}
	return directive, err
}
