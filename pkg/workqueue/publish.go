package workqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// parallel bounds how many items one call works on side by side.
const parallel = 32

// maxTries bounds how often a publish looks again after a lost race.
const maxTries = 5

// AwaitsClaim reports that a published directive waits for a worker.
func (q *Queue) AwaitsClaim() bool { return true }

// Publish enqueues directives. One that is there already, under the same
// message id, is not enqueued again.
//
// Source: Job lifecycle plan 02, Enqueue and Requeue.
func (q *Queue) Publish(ctx context.Context, messages []ledger.Message) []error {
	outcomes := make([]error, len(messages))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range messages {
		group.Go(func() error {
			outcomes[i] = publishError(q.enqueue(ctx, &messages[i]))
			return nil
		})
	}
	_ = group.Wait() // Each message has an outcome of its own.
	return outcomes
}

// publishError says what a failed enqueue means to the relay.
func publishError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tablestore.ErrTooLarge):
		return &outbox.RejectedError{Reason: err.Error(), Permanent: true}
	case errors.Is(err, tablestore.ErrUnavailable):
		return &outbox.OutageError{Err: err}
	case errors.Is(err, tablestore.ErrUnknown):
		return errors.Join(outbox.ErrUncertain, err)
	}
	return err
}

// enqueue brings one directive into the queue.
func (q *Queue) enqueue(ctx context.Context, m *ledger.Message) error {
	id := workID{JobID: m.JobID, StepIndex: m.StepIndex, FirstAttempt: m.AttemptNo}
	message := messageOf(m)
	if err := q.catalog(ctx, kind{m.Service, m.StepType}); err != nil {
		return err
	}
	if m.AttemptNo == 1 {
		err := q.insert(ctx, id, message, m.Directive, nil)
		if _, conflict := tablestore.IsConflict(err); !conflict {
			return err
		}
	}
	for range maxTries {
		err := q.supersede(ctx, id, message, m.Directive)
		if _, conflict := tablestore.IsConflict(err); !conflict {
			return err
		}
	}
	return fmt.Errorf("enqueue %s: lost %d races: %w", message.MessageID, maxTries, outbox.ErrUncertain)
}

// messageOf is what the queue keeps of a directive.
func messageOf(m *ledger.Message) lifecycle.Message {
	return lifecycle.Message{
		Directive: lifecycle.Directive{MessageID: m.MessageID(), AttemptNo: m.AttemptNo, LeaseID: m.LeaseID},
		DedupeKey: m.MessageID(), JobID: m.JobID, StepID: m.StepID, TenantID: m.TenantID,
		Service: m.Service, StepType: m.StepType,
	}
}

// itemName is the work id of an item.
func itemName(id workID) string {
	return fmt.Sprintf("%s.%d.%d", id.JobID, id.StepIndex, id.FirstAttempt)
}

// supersede enqueues the directive where the step may have items already.
func (q *Queue) supersede(ctx context.Context, id workID, message lifecycle.Message, directive []byte) error {
	items, err := q.storage.items(ctx, id.JobID, id.StepIndex)
	if err != nil {
		return err
	}
	var current *stored
	for _, one := range items {
		if one.item.Covers(message) {
			q.offer(&one.item)
			return nil
		}
		if !one.item.Status.Terminal() {
			current = one
		}
	}
	if current == nil {
		return q.insert(ctx, id, message, directive, nil)
	}
	if current.item.Status == lifecycle.StatusQueued {
		// Nobody took it, so it makes room for the new one.
		gone, err := q.storage.remove(current)
		if err != nil {
			return err
		}
		return q.insert(ctx, id, message, directive, gone)
	}
	return q.requeue(ctx, current, message, directive)
}

// insert makes a new item. The writes of gone drop the one that it replaces.
func (q *Queue) insert(ctx context.Context, id workID, message lifecycle.Message, directive []byte,
	gone []tablestore.Batch,
) error {
	s := q.storage
	change, err := lifecycle.Enqueue(nil, itemName(id), "relay", message, now())
	if err != nil {
		return err
	}
	batch := tablestore.Batch{
		{Verb: tablestore.Insert, Key: s.itemKey(id), Properties: encodeItem(&change.Item, nil)},
		s.messageRow(id, message.AttemptNo, directive),
	}
	batch = append(batch, s.events(id, change.Events)...)
	apply := tablestore.Change{Pre: s.hint(&change.Item), Commit: batch}
	if len(gone) > 0 {
		apply.Commit = append(gone[0], batch...)
		apply.Post = []tablestore.Stage{gone[1:]}
	}
	_, err = tablestore.Apply(ctx, s.store, apply)
	if key, conflict := tablestore.IsConflict(err); conflict && key != s.itemKey(id) && len(gone) == 0 {
		// The directive has been here before, and its item was removed.
		return nil
	}
	if err != nil {
		return fmt.Errorf("enqueue %s: %w", message.MessageID, err)
	}
	q.offer(&change.Item)
	return nil
}

// requeue gives an item that was taken from its worker the new directive, in
// the name of the operator who asked for it, if one did. One that the ledger
// took back but that still shows its owner is stalled first.
func (q *Queue) requeue(ctx context.Context, old *stored, message lifecycle.Message, directive []byte) error {
	s := q.storage
	item, events := old.item, []lifecycle.Event(nil)
	if item.Status != lifecycle.StatusStalled {
		stalled, err := lifecycle.Stall(item, systemRequest(&item), now())
		if err != nil {
			return err
		}
		item, events = stalled.Item, stalled.Events
	}
	request := lifecycle.Request{
		Actor: cmp.Or(old.mark.actor, "relay"), ExpectedRev: item.Rev, ID: cmp.Or(old.mark.id, message.MessageID),
	}
	change, err := lifecycle.Requeue(item, request, message.Directive, now())
	if err != nil {
		return err
	}
	change.Events = append(events, change.Events...)
	batch := append(s.writes(old, change)[0], s.messageRow(old.id, message.AttemptNo, directive))
	apply := tablestore.Change{Pre: s.hint(&change.Item), Commit: batch}
	if _, err := tablestore.Apply(ctx, s.store, apply); err != nil {
		return fmt.Errorf("requeue %s: %w", message.MessageID, err)
	}
	q.offer(&change.Item)
	return nil
}

// messageRow is the insert of an attempt's directive.
func (s *Storage) messageRow(id workID, attemptNo int, directive []byte) tablestore.Op {
	return tablestore.Op{
		Verb: tablestore.Insert, Key: s.messageKey(id, attemptNo),
		Properties: tablestore.AppendLarge(nil, "directive", directive),
	}
}

// offer tells the claims of this process of a queued item.
func (q *Queue) offer(item *lifecycle.Item) {
	if item.Status == lifecycle.StatusQueued {
		q.ready.add(refOf(item))
	}
}

// catalog makes a kind of work findable by processes that start later.
func (q *Queue) catalog(ctx context.Context, k kind) error {
	q.mu.Lock()
	known := q.cataloged[k]
	q.mu.Unlock()
	if known {
		return nil
	}
	key := tablestore.Key{
		Table: q.storage.table, Partition: "catalog", Row: tablestore.Join(k.service, k.stepType),
	}
	if _, err := q.storage.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
		return fmt.Errorf("catalog service %q: %w", k.service, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cataloged[k] = true
	return nil
}
