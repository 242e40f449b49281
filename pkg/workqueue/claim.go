package workqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// pollInterval is how often waiting claims look for items that another process
// enqueued.
const pollInterval = time.Second

// ClaimRequest is one claim.
type ClaimRequest struct {
	// Owner is the worker that asks. Required.
	Owner string
	// RequestID is remembered per owner, so that a repeat answers with the items
	// of the first that the owner still holds. Required.
	RequestID string
	// Services and StepTypes narrow what is claimed.
	Services  []string
	StepTypes []string
	// Max is the most items, at least 1.
	Max int
	// Wait is how long to wait for a first item.
	Wait time.Duration
	// Lease replaces the step's ACK timeout until the start, where it is not 0.
	Lease time.Duration
	// Start says that the items are started in the same step.
	Start bool
	// Ended ends the wait early; nil never does.
	Ended <-chan struct{}
}

// Claim gives ready items to a worker: as soon as there are any, or none when
// the wait is over. No item is handed out whose attempt is not current. The
// errors are [*problem.Error]s.
//
// Source: Job lifecycle plan 02, Claim.
func (q *Queue) Claim(ctx context.Context, r ClaimRequest) ([]View, error) {
	if err := r.check(); err != nil {
		return nil, asProblem(err)
	}
	views, known, err := q.repeat(ctx, &r)
	if err != nil || known {
		return views, asProblem(err)
	}
	filter := Filter{Services: r.Services, StepTypes: r.StepTypes}
	deadline := time.NewTimer(r.Wait)
	defer deadline.Stop()
	signal, leave := q.ready.wait(filter)
	defer leave()
	for {
		views, err := q.claimReady(ctx, &r, &filter)
		if err != nil || len(views) > 0 {
			return views, asProblem(err)
		}
		poll := time.NewTimer(pollInterval)
		select {
		case <-signal:
		case <-poll.C:
		case <-deadline.C:
			return nil, nil
		case <-r.Ended:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
		poll.Stop()
	}
}

// check names the field that is missing.
func (r *ClaimRequest) check() error {
	switch {
	case r.Owner == "":
		return &lifecycle.RequestError{Field: "owner", Reason: "is required"}
	case r.RequestID == "":
		return &lifecycle.RequestError{Field: "request_id", Reason: "is required"}
	case r.Max < 1:
		return &lifecycle.RequestError{Field: "max", Reason: "must be at least 1"}
	}
	return nil
}

// claimReady claims what is ready now, and remembers it.
func (q *Queue) claimReady(ctx context.Context, r *ClaimRequest, filter *Filter) ([]View, error) {
	picked := q.ready.pick(filter, r.Max)
	if len(picked) == 0 {
		if err := q.refill(ctx, filter); err != nil {
			return nil, err
		}
		picked = q.ready.pick(filter, r.Max)
	}
	if len(picked) == 0 {
		return nil, nil
	}
	slots := make([]*View, len(picked))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, item := range picked {
		group.Go(func() (err error) {
			slots[i], err = q.claimOne(ctx, r, item)
			return err
		})
	}
	err := group.Wait()
	views := make([]View, 0, len(slots))
	for _, view := range slots {
		if view != nil {
			views = append(views, *view)
		}
	}
	if len(views) == 0 {
		return nil, err
	}
	if err != nil {
		q.logger.WarnContext(ctx, "some items were not claimed", "owner", r.Owner, "error", err)
	}
	if err := q.rememberClaim(ctx, r, views); err != nil {
		// The worker holds the items all the same, and had better get them.
		q.logger.WarnContext(ctx, "claim not remembered", "owner", r.Owner, "error", err)
	}
	return views, nil
}

// claimOne claims one item: the ledger decides, and the item follows in the
// same change. It returns nil for an item that cannot be had.
func (q *Queue) claimOne(ctx context.Context, r *ClaimRequest, item ref) (*View, error) {
	one, directive, err := q.claimable(ctx, item)
	if err != nil {
		q.ready.putBack(item)
		return nil, err
	}
	defer q.ready.settle(item)
	if one == nil {
		return nil, nil
	}
	var event statemachine.Event
	pair := statemachine.Pair{AttemptNo: one.item.AttemptNo, LeaseID: one.item.LeaseID}
	event = statemachine.Claimed{StepID: one.item.StepID, Pair: pair, By: claimEnd(r.Lease)}
	move := lifecycle.Claim
	if r.Start {
		event = statemachine.Ack{StepID: one.item.StepID, Pair: pair}
		move = lifecycle.ClaimAndStart
	}
	request := lifecycle.Request{Actor: r.Owner, ExpectedRev: one.item.Rev, ID: r.RequestID}
	m := &mover{q: q, one: one, request: request, move: func(
		item lifecycle.Item, request lifecycle.Request, lease time.Time,
	) (lifecycle.Change, error) {
		return move(item, request, lease, now())
	}}
	result, err := q.ledger.Change(ctx, one.item.JobID, event, ledger.By(r.Owner, r.RequestID), ledger.With(m.post, m.again))
	switch {
	case errors.Is(err, lifecycle.ErrIllegalTransition), errors.Is(err, lifecycle.ErrRevConflict),
		errors.Is(err, lifecycle.ErrNotFound), errors.Is(err, ledger.ErrJobNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case result.Outcome != statemachine.Applied:
		return nil, q.drop(ctx, one, &result)
	case result.PostErr != nil:
		return nil, fmt.Errorf("claim %s: %w", one.item.WorkID, result.PostErr)
	}
	return &View{Item: m.moved, Directive: directive}, nil
}

// claimEnd is the end of a lease that the claim asks for, the zero time where
// it leaves that to the step.
func claimEnd(lease time.Duration) time.Time {
	if lease <= 0 {
		return time.Time{}
	}
	return now().Add(lease)
}

// claimable reads an item and its directive, nil where it is not queued.
func (q *Queue) claimable(ctx context.Context, item ref) (*stored, []byte, error) {
	one, err := q.storage.load(ctx, item.workID)
	if errors.Is(err, lifecycle.ErrNotFound) {
		return nil, nil, q.dropHint(ctx, item)
	}
	if err != nil || one.item.Status != lifecycle.StatusQueued {
		return nil, nil, err
	}
	directive, err := q.storage.message(ctx, one.id, one.item.AttemptNo)
	return one, directive, err
}

// hintGrace is how long a hint to nothing is taken for one whose item is still
// being written.
const hintGrace = time.Minute

// dropHint deletes a hint to an item that is not there any more.
func (q *Queue) dropHint(ctx context.Context, item ref) error {
	if time.Since(item.created) < hintGrace {
		return nil
	}
	key := q.storage.hintKey(&lifecycle.Item{
		WorkID: item.workID, TenantID: item.tenant, Service: item.kind.service, StepType: item.kind.stepType,
		CreatedAt: item.created,
	})
	if _, err := q.storage.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
		return fmt.Errorf("delete a hint: %w", err)
	}
	return nil
}

// drop removes an item whose attempt the ledger does not know any more. One
// that is in somebody's hands, after a crash between ledger and item, is left
// until its deadline.
func (q *Queue) drop(ctx context.Context, one *stored, result *ledger.Result) error {
	if result.Code != statemachine.CodeStaleAttempt {
		return nil
	}
	batches, err := q.storage.remove(one)
	if err != nil {
		return err
	}
	return q.storage.commitEach(ctx, batches)
}

// commitEach applies batches one after the other. A lost race is no error:
// somebody else moved the item.
func (s *Storage) commitEach(ctx context.Context, batches []tablestore.Batch) error {
	for _, batch := range batches {
		_, err := s.store.Commit(ctx, batch)
		if _, conflict := tablestore.IsConflict(err); conflict {
			return nil
		}
		if err != nil {
			return fmt.Errorf("move a work item: %w", err)
		}
	}
	return nil
}

// memoryKey addresses what is remembered of a claim.
func (q *Queue) memoryKey(r *ClaimRequest) tablestore.Key {
	return tablestore.Key{
		Table: q.storage.table, Partition: tablestore.Join("claims", r.Owner), Row: tablestore.Join(r.RequestID),
	}
}

// repeat answers a claim whose request was answered before, with those of its
// items that the owner still holds under it. It reports whether the request is
// known.
func (q *Queue) repeat(ctx context.Context, r *ClaimRequest) ([]View, bool, error) {
	row, err := q.storage.store.Get(ctx, q.memoryKey(r))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look for the claim: %w", err)
	}
	var views []View
	for _, workID := range splitIDs(row.Properties.Get("work_ids").Bytes()) {
		one, err := q.storage.load(ctx, workID)
		if errors.Is(err, lifecycle.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if !one.item.HeldUnder(r.Owner, r.RequestID) {
			continue
		}
		directive, err := q.storage.message(ctx, one.id, one.item.AttemptNo)
		if err != nil {
			return nil, false, err
		}
		views = append(views, View{Item: one.item, Directive: directive})
	}
	return views, true, nil
}

// rememberClaim writes what was claimed before it is answered, and drops the
// owner's memories that are past their time.
func (q *Queue) rememberClaim(ctx context.Context, r *ClaimRequest, views []View) error {
	until := now().Add(lifecycle.MinMemory)
	ids := make([]string, len(views))
	for i := range views {
		ids[i] = views[i].Item.WorkID
		if lease := views[i].Item.LeaseExpiresAt; lease.After(until) {
			until = lease
		}
	}
	key := q.memoryKey(r)
	batch := tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: tablestore.Properties{
		{Name: "work_ids", Value: tablestore.Bytes(joinIDs(ids))},
		{Name: "expires_at", Value: tablestore.Time(until)},
	}}}
	page, err := q.storage.store.Scan(ctx, tablestore.Query{Table: key.Table, Partition: key.Partition, Limit: 32})
	if err != nil {
		return fmt.Errorf("remember a claim: %w", err)
	}
	for i := range page.Rows {
		old := &page.Rows[i]
		if old.Key != key && old.Properties.Get("expires_at").Time().Before(now()) {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: old.Key})
		}
	}
	if _, err := q.storage.store.Commit(ctx, batch); err != nil {
		return fmt.Errorf("remember a claim: %w", err)
	}
	return nil
}
