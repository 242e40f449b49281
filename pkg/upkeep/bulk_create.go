package upkeep

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of a [BulkRequest], and what it is without them.
const (
	// MaxBulkJobIDs is how many jobs it may name.
	MaxBulkJobIDs = 1000
	// MaxBulkJobs is how many jobs it may be for.
	MaxBulkJobs = 10_000
	// DefaultBulkJobs is its Limit where that is 0.
	DefaultBulkJobs = 1000
	// MaxBulkRate is its largest RatePerSecond.
	MaxBulkRate = 1000
	// DefaultBulkRate is its RatePerSecond where that is 0.
	DefaultBulkRate = 20
)

// BulkRequest says which jobs to rerun, and how.
type BulkRequest struct {
	// JobIDs are the jobs, FAILED_FINAL or CANCELLED, in the order to be rerun in.
	// Where there are none, the filter chooses among those that are FAILED_FINAL,
	// the newest first; of the index it reads 100,000 entries at most.
	JobIDs []string
	Filter FailureFilter
	// From is the starting point. Optional. Defaults to the failed step.
	From ledger.RerunFrom
	// Limit is the most jobs that the filter chooses. Optional. Defaults to
	// [DefaultBulkJobs].
	Limit int
	// RatePerSecond is the most reruns that begin in a second. Optional. Defaults
	// to [DefaultBulkRate].
	RatePerSecond float64
	// Reason and Actor are for the history of the new jobs. Optional.
	Reason string
	Actor  string
}

// settled returns the request with its defaults, or the problem of the first
// field that makes no sense.
func (r *BulkRequest) settled() (BulkRequest, error) {
	out := *r
	out.From = cmp.Or(out.From, ledger.FromFailed)
	out.Limit = cmp.Or(out.Limit, DefaultBulkJobs)
	out.RatePerSecond = cmp.Or(out.RatePerSecond, DefaultBulkRate)
	switch {
	case len(out.JobIDs) > MaxBulkJobIDs:
		return out, invalidRequest("/job_ids", fmt.Sprintf("must hold at most %d", MaxBulkJobIDs))
	case len(out.JobIDs) > 0 && out.Filter != FailureFilter{}:
		return out, invalidRequest("/job_ids", "must not be combined with filters")
	case out.From != ledger.FromFailed && out.From != ledger.FromStart:
		return out, invalidRequest("/from", "must be failed or start")
	case out.Limit < 0 || out.Limit > MaxBulkJobs:
		return out, invalidRequest("/limit", fmt.Sprintf("must be from 0 to %d", MaxBulkJobs))
	case !(out.RatePerSecond > 0 && out.RatePerSecond <= MaxBulkRate): // Not a number is neither.
		return out, invalidRequest("/rate_per_second", fmt.Sprintf("must be from 0 to %d", MaxBulkRate))
	case !out.Filter.possible():
		return out, invalidRequest("/created_after", "must be before created_before")
	}
	out.JobIDs = unique(out.JobIDs)
	return out, nil
}

// unique returns the ids without repetitions, in their order.
func unique(ids []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}

// digest stands for what a settled request asks for.
func (r *BulkRequest) digest() string {
	hash := sha256.New()
	for _, text := range []string{
		r.Filter.TenantID, r.Filter.RequestType, r.Filter.StepType, r.Filter.ErrorCode,
		instant(r.Filter.CreatedAfter), instant(r.Filter.CreatedBefore), string(r.From), strconv.Itoa(r.Limit),
		strconv.FormatFloat(r.RatePerSecond, 'g', -1, 64), r.Reason,
	} {
		fmt.Fprintf(hash, "%q\n", text)
	}
	fmt.Fprintf(hash, "%q", r.JobIDs)
	return hex.EncodeToString(hash.Sum(nil))
}

// instant is a time's text, whatever its zone.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// keyedID is the id of the operation under that key.
func keyedID(key string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte("retry "+key), 8).String()
}

// Create begins to rerun jobs: which ones is settled now, and a [Bulk] does
// it. The same key is the same operation for as long as that is kept; without a
// key each is a new one. The errors are [*problem.Error]s: invalid_envelope for
// a request that makes no sense, idempotency_mismatch where the key stands for
// another request. After any other error the request may be sent again under
// its key.
func (s *Failures) Create(ctx context.Context, key string, r BulkRequest) (Operation, error) {
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
func (s *Failures) draft(key string, r *BulkRequest) (*Operation, error) {
	fresh, err := s.cfg.Ledger.NewJobID()
	if err != nil {
		return nil, err
	}
	created := tablestore.Now()
	op := &Operation{
		ID: fresh, State: operationDraft, From: r.From, TenantID: r.Filter.TenantID,
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
func (s *Failures) existing(ctx context.Context, op *Operation) (Operation, bool, error) {
	found, err := s.read(ctx, op.ID)
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
func (s *Failures) write(ctx context.Context, op *Operation, r *BulkRequest) (Operation, error) {
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
	if made.State = OperationRunning; made.Matched == 0 {
		made.State = OperationDone
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
func (s *Failures) draftKey(op *Operation) tablestore.Key {
	key := s.headKey(op.ID)
	key.Row = tablestore.Join(op.ID, op.set)
	return key
}

// settle clears up a HEAD that was not surely written: it is ours, also where
// the store reports a conflict with our own write, or that of another create
// under the same key, or not there.
func (s *Failures) settle(ctx context.Context, op *Operation, cause error) (Operation, error) {
	found, ok, err := s.existing(ctx, op)
	if err == nil && !ok {
		return Operation{}, cause // Nothing began; the draft is found later.
	}
	if err == nil && found.set == op.set {
		return found, nil
	}
	if errors.Is(cause, tablestore.ErrConflict) {
		_ = s.discard(ctx, op, s.draftKey(op)) // Where that fails, the draft is found later.
	}
	return found, err
}

// discard removes the items, and then the row by which they are found.
func (s *Failures) discard(ctx context.Context, op *Operation, row tablestore.Key) error {
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
func (s *Failures) choose(ctx context.Context, r *BulkRequest) ([]*itemRow, error) {
	var items []*itemRow
	add := func(jobID, tenant string) {
		items = append(items, &itemRow{Item: Item{JobID: jobID, Outcome: ItemWaiting}, index: len(items), tenant: tenant})
	}
	if len(r.JobIDs) > 0 {
		for _, jobID := range r.JobIDs {
			add(jobID, "")
		}
		return items, nil
	}
	walk := &failureWalk{ledger: s.cfg.Ledger, filter: r.Filter}
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
