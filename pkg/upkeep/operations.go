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
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits and defaults of a [BulkRequest].
const (
	MaxBulkJobIDs   = 1000   // jobs that it names
	MaxBulkJobs     = 10_000 // jobs that its filter selects
	DefaultBulkJobs = 1000   // its Limit if that is 0
	MaxBulkRate     = 1000   // its RatePerSecond
	DefaultBulkRate = 20     // its RatePerSecond if that is 0
)

// BulkRequest says which jobs to rerun, and how.
type BulkRequest struct {
	// JobIDs are the jobs, FAILED_FINAL or CANCELLED, in the order to be rerun in.
	// Without them, the filter selects among the jobs that are FAILED_FINAL, the
	// newest first; it reads at most 100,000 entries of the index.
	JobIDs []string
	Filter FailureFilter
	// From is the starting point. Optional. Defaults to the failed step.
	From ledger.RerunFrom
	// Limit is the most jobs that the filter selects. Optional. Defaults to
	// [DefaultBulkJobs].
	Limit int
	// RatePerSecond is the most reruns that begin in a second. Optional. Defaults
	// to [DefaultBulkRate].
	RatePerSecond float64
	// Reason and Actor are for the history of the new jobs. Optional.
	Reason string
	Actor  string
}

// complete fills in the defaults. The error is the problem of the first invalid field.
func (r *BulkRequest) complete() error {
	r.From = cmp.Or(r.From, ledger.FromFailed)
	r.Limit = cmp.Or(r.Limit, DefaultBulkJobs)
	r.RatePerSecond = cmp.Or(r.RatePerSecond, DefaultBulkRate)
	switch {
	case len(r.JobIDs) > MaxBulkJobIDs:
		return invalidRequest("/job_ids", fmt.Sprintf("must hold at most %d", MaxBulkJobIDs))
	case len(r.JobIDs) > 0 && r.Filter != FailureFilter{}:
		return invalidRequest("/job_ids", "must not be combined with filters")
	case r.From != ledger.FromFailed && r.From != ledger.FromStart:
		return invalidRequest("/from", "must be failed or start")
	case r.Limit < 0 || r.Limit > MaxBulkJobs:
		return invalidRequest("/limit", fmt.Sprintf("must be from 0 to %d", MaxBulkJobs))
	case !(r.RatePerSecond > 0 && r.RatePerSecond <= MaxBulkRate): // This refuses NaN as well.
		return invalidRequest("/rate_per_second", fmt.Sprintf("must be from 0 to %d", MaxBulkRate))
	}
	if first, second := r.Filter.contradiction(); first != "" {
		return invalidRequest("/"+first, "must be before "+second)
	}
	seen := map[string]bool{}
	r.JobIDs = slices.DeleteFunc(slices.Clone(r.JobIDs), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
	return nil
}

// digest identifies what a complete request asks for.
func (r *BulkRequest) digest() string {
	hash := sha256.New()
	for _, text := range []string{
		r.Filter.TenantID, r.Filter.RequestType, r.Filter.StepType, r.Filter.ErrorCode,
		r.Filter.CreatedAfter.UTC().Format(time.RFC3339Nano), r.Filter.CreatedBefore.UTC().Format(time.RFC3339Nano),
		string(r.From), strconv.Itoa(r.Limit), strconv.FormatFloat(r.RatePerSecond, 'g', -1, 64), r.Reason,
	} {
		fmt.Fprintf(hash, "%q\n", text)
	}
	fmt.Fprintf(hash, "%q", r.JobIDs)
	return hex.EncodeToString(hash.Sum(nil))
}

// OperationState is the state of an [Operation].
type OperationState string

// The states of an operation.
const (
	OperationRunning   OperationState = "RUNNING"
	OperationDone      OperationState = "DONE"      // every job was tried
	OperationCancelled OperationState = "CANCELLED" // it was stopped before

	// operationDraft is the state of a row that stands for items without a HEAD.
	operationDraft OperationState = "DRAFT"
)

// Counts counts an operation's jobs by their result.
type Counts struct {
	Rerun   int // have a rerun, a new one or an earlier one
	Skipped int // cannot be rerun
	Failed  int // could not be rerun for another reason
}

// Done is how many jobs were tried.
func (c *Counts) Done() int { return c.Rerun + c.Skipped + c.Failed }

// add counts an outcome.
func (c *Counts) add(outcome ItemOutcome) {
	switch outcome {
	case ItemRerun, ItemRepeated:
		c.Rerun++
	case ItemSkipped:
		c.Skipped++
	case ItemFailed:
		c.Failed++
	case ItemWaiting:
	}
}

// Operation reruns many jobs. Its creation fixes which ones, so that neither
// jobs that fail later nor its own reruns that fail again get into it.
//
// Its rows lie in the schedule's table: one HEAD for each operation in the partition
// "retries", and an item for each job in a partition of its own. The items are written
// before the HEAD, and a draft row before the items: a create that crashes leaves a
// draft, by which its items are found and removed an hour later. One batch replaces the
// draft by the HEAD. So an operation is seen whole or not at all, and of two
// creates under one key the second finds the first's HEAD, removes its own items and
// answers with the first's operation.
type Operation struct {
	ID      string
	State   OperationState
	From    ledger.RerunFrom
	Matched int // jobs that it is for
	Counts
	TenantID      string // of the jobs; empty if they may be of several tenants
	RatePerSecond float64
	Reason        string
	Actor         string
	Caller        string // who asked for it, see [ledger.WithCaller]
	CreatedAt     time.Time
	UpdatedAt     time.Time

	digest     string // of the request
	named      bool   // the request named the jobs
	set        string // names the partition of its items
	owner      string // the runner that works on it until leaseUntil; empty for none
	leaseUntil time.Time
	loaded     tablestore.Properties
}

// ItemOutcome is the result of an operation for one job.
type ItemOutcome string

// The outcomes.
const (
	ItemWaiting  ItemOutcome = "waiting"
	ItemRerun    ItemOutcome = "rerun"    // under a new job, by this operation
	ItemRepeated ItemOutcome = "repeated" // it had a rerun already
	ItemSkipped  ItemOutcome = "skipped"  // it cannot be rerun
	ItemFailed   ItemOutcome = "failed"   // it could not be rerun for another reason
)

// Item is one job of an operation.
type Item struct {
	JobID    string
	Outcome  ItemOutcome
	NewJobID string // its rerun
	Detail   string // why there is no rerun
}

// OperationPage is an operation with a part of its items, in order.
type OperationPage struct {
	Operation
	Items []Item
	Next  string // the token of the next page, empty at the end
}

// Create begins to rerun jobs: it fixes which ones, and a [Bulk] reruns them.
// The same key is the same operation for as long as that is kept; without a key each
// call makes a new one. The errors are [*problem.Error]s: invalid_envelope for an invalid
// request, idempotency_mismatch if the key stands for another request. After any other
// error the request may be sent again under its key.
func (s *Failures) Create(ctx context.Context, key string, r BulkRequest) (Operation, error) {
	if err := r.complete(); err != nil {
		return Operation{}, err
	}
	fresh, err := s.cfg.Ledger.NewJobID()
	if err != nil {
		return Operation{}, ledger.Problem(err)
	}
	now := tablestore.Now()
	op := &Operation{
		ID: fresh, State: operationDraft, From: r.From, TenantID: r.Filter.TenantID,
		RatePerSecond: r.RatePerSecond, Reason: r.Reason, Actor: r.Actor, Caller: ledger.CallerOf(ctx),
		CreatedAt: now, UpdatedAt: now,
		digest: r.digest(), named: len(r.JobIDs) > 0, set: fresh, leaseUntil: now,
	}
	if key != "" {
		op.ID = uuid.NewHash(sha256.New(), uuid.Nil, []byte("retry "+key), 8).String()
		if found, err := s.existing(ctx, op); !errors.Is(err, errNoOperation) {
			return found, ledger.Problem(err)
		}
	}
	made, err := s.write(ctx, op, &r)
	return made, ledger.Problem(err)
}

// existing returns the stored operation with the id of op. It returns [errNoOperation], or
// idempotency_mismatch if that operation is for another request.
func (s *Failures) existing(ctx context.Context, op *Operation) (Operation, error) {
	found, err := s.read(ctx, op.ID)
	if err == nil && found.digest != op.digest {
		return Operation{}, problem.Newf(problem.IdempotencyMismatch,
			"The idempotency key was used before, for another retry operation.")
	}
	return found, err
}

// itemWriters is how many batches of items are written concurrently.
const itemWriters = 4

// write stores the draft, the items and the HEAD of an operation.
func (s *Failures) write(ctx context.Context, op *Operation, r *BulkRequest) (Operation, error) {
	items, err := s.selectJobs(ctx, r)
	if err != nil {
		return Operation{}, err
	}
	draft := s.headKey(op.ID)
	draft.Row = tablestore.Join(op.ID, op.set)
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: draft, Properties: op.encode()}})
	if err != nil {
		return Operation{}, fmt.Errorf("draft retry operation %s: %w", op.ID, err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(itemWriters)
	for part := range slices.Chunk(items, tablestore.MaxBatchOps) {
		group.Go(func() error { return s.writeItems(groupCtx, op, part, tablestore.Put) })
	}
	if err := group.Wait(); err != nil {
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
	// The HEAD may have been written all the same: the store reports a conflict with our
	// own write too. Or it is that of another create under the same key.
	found, readErr := s.existing(ctx, op)
	switch {
	case errors.Is(readErr, errNoOperation): // Nothing began; a Bulk removes the draft.
		return Operation{}, fmt.Errorf("begin retry operation %s: %w", op.ID, err)
	case readErr == nil && found.set == op.set:
		return found, nil
	case errors.Is(err, tablestore.ErrConflict):
		_ = s.discard(ctx, op, draft) // If that fails, a Bulk removes the draft.
	}
	return found, readErr
}

// selectJobs returns the items of the operation. It does not read the jobs: the worker
// checks each when its turn comes.
func (s *Failures) selectJobs(ctx context.Context, r *BulkRequest) ([]*itemRow, error) {
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
	for failed, err := range walk.failures(ctx) {
		if err != nil {
			return nil, err
		}
		if failed.SupersededBy != "" {
			continue
		}
		if add(failed.JobID, failed.TenantID); len(items) == r.Limit {
			break
		}
	}
	return items, nil
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

// Get returns an operation with at most limit items, from the first one or, with a
// page's Next, after that page. The errors are [*problem.Error]s, not_found if
// there is no such operation.
func (s *Failures) Get(ctx context.Context, id string, limit int, after string) (OperationPage, error) {
	from := 0
	if after != "" {
		last, err := strconv.Atoi(after)
		if err != nil || last < 0 || last >= MaxBulkJobs {
			return OperationPage{}, invalidRequest("", "page_token is invalid")
		}
		from = last + 1
	}
	op, err := s.read(ctx, id)
	if err != nil {
		return OperationPage{}, ledger.Problem(err)
	}
	page := OperationPage{Operation: op, Items: []Item{}}
	query := s.itemQuery(&op, from)
	for {
		query.Limit = limit - len(page.Items)
		stored, err := s.cfg.Store.Scan(ctx, query)
		if err != nil {
			return OperationPage{}, ledger.Problem(fmt.Errorf("read the items of retry operation %s: %w", op.ID, err))
		}
		for i := range stored.Rows {
			page.Items = append(page.Items, decodeItem(&stored.Rows[i]).Item)
		}
		if query.Continue = stored.Next; query.Continue == "" {
			return page, nil
		}
		if len(page.Items) >= limit {
			page.Next = strconv.Itoa(from + len(page.Items) - 1)
			return page, nil
		}
	}
}

// Cancel stops an operation: no further rerun begins, except one that is being made at
// this moment, and the new jobs go on. An operation that has ended does not change. The
// errors are [*problem.Error]s, not_found if there is no such operation.
func (s *Failures) Cancel(ctx context.Context, id string) (Operation, error) {
	op, err := s.update(ctx, id, func(op *Operation) (bool, error) {
		if op.State != OperationRunning {
			return false, nil
		}
		op.State, op.UpdatedAt = OperationCancelled, tablestore.Now()
		return true, nil
	})
	return op, ledger.Problem(err)
}

// errNoOperation is returned for an id that names no operation.
var errNoOperation = problem.Newf(problem.NotFound, "There is no such retry operation.")

// read returns the operation. It returns [errNoOperation].
func (s *Failures) read(ctx context.Context, id string) (Operation, error) {
	row, err := s.cfg.Store.Get(ctx, s.headKey(id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return Operation{}, errNoOperation
	}
	if err != nil {
		return Operation{}, fmt.Errorf("read retry operation %s: %w", id, err)
	}
	return decodeOperation(&row)
}

// update changes an operation under its version. change reports whether it
// changed anything.
func (s *Failures) update(ctx context.Context, id string, change func(op *Operation) (bool, error)) (Operation, error) {
	var op Operation
	err := tablestore.Update(ctx, s.cfg.Store, s.headKey(id), s.cfg.Random, func(row *tablestore.Row) (tablestore.Properties, error) {
		if row.ETag == "" {
			return nil, errNoOperation
		}
		var err error
		if op, err = decodeOperation(row); err != nil {
			return nil, err
		}
		if changed, err := change(&op); err != nil || !changed {
			return nil, err
		}
		return op.encode(), nil
	})
	return op, err
}

// operationsPartition holds a HEAD for each operation, and drafts: there are never many.
const operationsPartition = "retries"

func (s *Failures) headKey(id string) tablestore.Key {
	return tablestore.Key{Table: s.cfg.Table, Partition: operationsPartition, Row: tablestore.Escape(id)}
}

// itemQuery selects the items of an operation from that index on. Each create
// has a set of its own, so that two under one key never mix.
func (s *Failures) itemQuery(op *Operation, from int) tablestore.Query {
	return tablestore.Query{
		Table: s.cfg.Table, Partition: tablestore.Join("retry", op.ID, op.set), From: tablestore.Pad(from, 5),
	}
}

// writeItems writes at most a batch of items.
func (s *Failures) writeItems(ctx context.Context, op *Operation, items []*itemRow, verb tablestore.Verb) error {
	batch := make(tablestore.Batch, len(items))
	for i, item := range items {
		at := s.itemQuery(op, item.index)
		batch[i] = tablestore.Op{
			Verb: verb, Key: tablestore.Key{Table: at.Table, Partition: at.Partition, Row: at.From},
			ETag: item.tag, Properties: item.encode(),
		}
	}
	if _, err := s.cfg.Store.Commit(ctx, batch); err != nil {
		return fmt.Errorf("write the items of retry operation %s: %w", op.ID, err)
	}
	return nil
}

// itemRow is an item as it is stored.
type itemRow struct {
	Item
	index  int
	tenant string // empty until the job is read
	tag    tablestore.ETag
	loaded tablestore.Properties
}

func (o *Operation) encode() tablestore.Properties {
	return overlay(o.loaded, tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)},
		{Name: "retry_id", Value: tablestore.String(o.ID)},
		{Name: "state", Value: tablestore.String(string(o.State))},
		{Name: "from", Value: tablestore.String(string(o.From))},
		{Name: "matched", Value: tablestore.Int(int64(o.Matched))},
		{Name: "rerun", Value: tablestore.Int(int64(o.Rerun))},
		{Name: "skipped", Value: tablestore.Int(int64(o.Skipped))},
		{Name: "failed", Value: tablestore.Int(int64(o.Failed))},
		{Name: "rate", Value: tablestore.String(strconv.FormatFloat(o.RatePerSecond, 'g', -1, 64))},
		{Name: "tenant_id", Value: tablestore.String(o.TenantID)},
		{Name: "reason", Value: tablestore.String(o.Reason)},
		{Name: "actor", Value: tablestore.String(o.Actor)},
		{Name: "caller", Value: tablestore.String(o.Caller)},
		{Name: "created_at", Value: tablestore.Time(o.CreatedAt)},
		{Name: "updated_at", Value: tablestore.Time(o.UpdatedAt)},
		{Name: "digest", Value: tablestore.String(o.digest)},
		{Name: "named", Value: tablestore.Bool(o.named)},
		{Name: "item_set", Value: tablestore.String(o.set)},
		{Name: "owner", Value: tablestore.String(o.owner)},
		{Name: "lease_until", Value: tablestore.Time(o.leaseUntil)},
	})
}

// decodeOperation reads a HEAD or a draft.
func decodeOperation(row *tablestore.Row) (Operation, error) {
	p := row.Properties
	rate, err := strconv.ParseFloat(p.Get("rate").String(), 64)
	if err != nil {
		return Operation{}, fmt.Errorf("row %s: rate: %w", row.Key, err)
	}
	return Operation{
		ID: p.Get("retry_id").String(), State: OperationState(p.Get("state").String()),
		From: ledger.RerunFrom(p.Get("from").String()), Matched: int(p.Get("matched").Int()),
		Counts: Counts{
			Rerun: int(p.Get("rerun").Int()), Skipped: int(p.Get("skipped").Int()), Failed: int(p.Get("failed").Int()),
		},
		RatePerSecond: rate, TenantID: p.Get("tenant_id").String(), Reason: p.Get("reason").String(), Actor: p.Get("actor").String(),
		Caller:    p.Get("caller").String(),
		CreatedAt: p.Get("created_at").Time(), UpdatedAt: p.Get("updated_at").Time(),
		digest: p.Get("digest").String(), named: p.Get("named").Bool(), set: p.Get("item_set").String(),
		owner: p.Get("owner").String(), leaseUntil: p.Get("lease_until").Time(), loaded: p,
	}, nil
}

func (i *itemRow) encode() tablestore.Properties {
	return overlay(i.loaded, tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)},
		{Name: "index", Value: tablestore.Int(int64(i.index))},
		{Name: "job_id", Value: tablestore.String(i.JobID)},
		{Name: "tenant_id", Value: tablestore.String(i.tenant)},
		{Name: "outcome", Value: tablestore.String(string(i.Outcome))},
		{Name: "new_job_id", Value: tablestore.String(i.NewJobID)},
		{Name: "detail", Value: tablestore.String(i.Detail)},
	})
}

func decodeItem(row *tablestore.Row) *itemRow {
	p := row.Properties
	return &itemRow{
		Item: Item{
			JobID: p.Get("job_id").String(), Outcome: ItemOutcome(p.Get("outcome").String()),
			NewJobID: p.Get("new_job_id").String(), Detail: p.Get("detail").String(),
		},
		index: int(p.Get("index").Int()), tenant: p.Get("tenant_id").String(), tag: row.ETag, loaded: p,
	}
}

// overlay returns the properties of a loaded row with own ones written over them: what
// a newer version of the program has stored there stays.
func overlay(loaded, own tablestore.Properties) tablestore.Properties {
	rest := slices.DeleteFunc(slices.Clone(loaded), func(old tablestore.Property) bool {
		return slices.ContainsFunc(own, func(p tablestore.Property) bool { return p.Name == old.Name })
	})
	return append(rest, own...)
}
