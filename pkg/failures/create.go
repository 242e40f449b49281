package failures

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Create begins to rerun jobs: which ones is settled now, and a [Runner] does
// it. The same key is the same operation for as long as that is kept; without a
// key each is a new one. The errors are [*problem.Error]s: invalid_envelope for
// a request that makes no sense, idempotency_mismatch where the key stands for
// another request. After any other error the request may be sent again under
// its key.
func (s *Service) Create(ctx context.Context, key string, r Request) (Operation, error) {
	r, err := r.settled()
	if err != nil {
		return Operation{}, err
	}
	draft, err := s.draft(key, &r)
	if err != nil {
		return Operation{}, ledger.Problem(err)
	}
	if key != "" {
		if found, ok, err := s.existing(ctx, draft); ok || err != nil {
			return found, ledger.Problem(err)
		}
	}
	op, err := s.write(ctx, draft, &r)
	return op, ledger.Problem(err)
}

// draft is the operation to be, with its ids.
func (s *Service) draft(key string, r *Request) (*Operation, error) {
	fresh, err := s.cfg.Ledger.NewJobID()
	if err != nil {
		return nil, err
	}
	created := now()
	op := &Operation{
		ID: fresh, State: drafted, From: r.From, TenantID: r.Filter.TenantID,
		RatePerSecond: r.RatePerSecond, Reason: r.Reason, Actor: r.Actor,
		CreatedAt: created, UpdatedAt: created, leaseUntil: created,
		digest: r.digest(), named: len(r.JobIDs) > 0, set: fresh,
	}
	if key != "" {
		op.ID = keyedID(key)
	}
	return op, nil
}

// existing returns the operation with that id, if there is one.
func (s *Service) existing(ctx context.Context, op *Operation) (Operation, bool, error) {
	found, _, err := s.read(ctx, op.ID)
	switch {
	case errors.Is(err, errNoOperation):
		return Operation{}, false, nil
	case err != nil:
		return Operation{}, false, err
	case found.digest != op.digest:
		return Operation{}, false, problem.Newf(problem.IdempotencyMismatch,
			"The idempotency key was used before, for another retry operation.")
	}
	return found, true, nil
}

// write writes the draft, the items and the HEAD.
func (s *Service) write(ctx context.Context, op *Operation, r *Request) (Operation, error) {
	items, err := s.choose(ctx, r)
	if err != nil {
		return Operation{}, err
	}
	draft := s.draftKey(op)
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: draft, Properties: op.encode()}})
	if err != nil {
		return Operation{}, fmt.Errorf("draft retry operation %s: %w", op.ID, err)
	}
	if err := s.putItems(ctx, op, items); err != nil {
		return Operation{}, err
	}
	made := *op
	made.Matched = len(items)
	if made.State = Running; made.Matched == 0 {
		made.State = Done
	}
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{
		{Verb: tablestore.Insert, Key: s.headKey(op.ID), Properties: made.encode()},
		{Verb: tablestore.Discard, Key: draft},
	})
	if err == nil {
		return made, nil
	}
	return s.settle(ctx, op, fmt.Errorf("begin retry operation %s: %w", op.ID, err))
}

// draftKey addresses the row that stands for items without a HEAD.
func (s *Service) draftKey(op *Operation) tablestore.Key {
	key := s.headKey(op.ID)
	key.Row = tablestore.Join(op.ID, op.set)
	return key
}

// settle clears up a HEAD that was not surely written: it is ours, also where
// the store reports a conflict with our own write, or that of another create
// under the same key, or not there.
func (s *Service) settle(ctx context.Context, op *Operation, cause error) (Operation, error) {
	found, ok, err := s.existing(ctx, op)
	if err == nil && !ok {
		return Operation{}, cause // Nothing began; the draft is found later.
	}
	if err == nil && found.set == op.set {
		return found, nil
	}
	if _, conflict := tablestore.IsConflict(cause); conflict {
		_ = s.discard(ctx, op, s.draftKey(op)) // Where that fails, the draft is found later.
	}
	return found, err
}

// discard removes the items, and then the row by which they are found.
func (s *Service) discard(ctx context.Context, op *Operation, row tablestore.Key) error {
	if err := tablestore.DiscardAll(ctx, s.cfg.Store, s.itemQuery(op, 0), ""); err != nil {
		return fmt.Errorf("remove the items of retry operation %s: %w", op.ID, err)
	}
	if _, err := s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: row}}); err != nil {
		return fmt.Errorf("remove retry operation %s: %w", op.ID, err)
	}
	return nil
}

// choose settles which jobs the operation is for. They are not read: each is
// held against itself when its turn comes.
func (s *Service) choose(ctx context.Context, r *Request) ([]*itemRow, error) {
	var items []*itemRow
	add := func(jobID, tenant string) {
		items = append(items, &itemRow{Item: Item{JobID: jobID, Outcome: Waiting}, index: len(items), tenant: tenant})
	}
	if len(r.JobIDs) > 0 {
		for _, jobID := range r.JobIDs {
			add(jobID, "")
		}
		return items, nil
	}
	walk := &walk{ledger: s.cfg.Ledger, filter: r.Filter}
	for hint, err := range walk.hints(ctx) {
		if err != nil {
			return nil, err
		}
		if add(hint.JobID, hint.TenantID); len(items) == r.Limit {
			break
		}
	}
	return items, nil
}
