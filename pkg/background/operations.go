package background

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// OperationsLedger is what [Operations] needs of the ledger.
type OperationsLedger interface {
	search.Source
	Change(ctx context.Context, jobID string, event statemachine.Event, o ...ledger.Option) (ledger.Result, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
	SupersededBy(ctx context.Context, job *statemachine.Job) (string, error)
	NewJobID() (string, error)
}

// Rerunner makes reruns: a [commands.Service].
type Rerunner interface {
	Rerun(ctx context.Context, r commands.Rerun) (ledger.Accepted, error)
	PlanRerun(ctx context.Context, r commands.Rerun) (commands.RerunPlan, error)
}

// OperationsConfig configures [Operations].
type OperationsConfig struct {
	// Ledger holds the jobs. Required.
	Ledger OperationsLedger
	// Commands makes the reruns. Required.
	Commands Rerunner
	// Store holds the operations. Required.
	Store tablestore.Store
	// Table is the table of the operations. Required.
	Table string
	// Live finds live jobs by their traits. Optional: without it, all live jobs are read.
	Live search.LiveIndex
	// Random returns numbers in [0, 1), for the delays after write conflicts. Optional.
	// Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Operations stores operations on many jobs, which [Bulk] carries out. It is safe for concurrent
// use, by any number of processes on one store.
type Operations struct {
	cfg  OperationsConfig
	find search.Finder
}

// NewOperations returns the service.
func NewOperations(cfg OperationsConfig) *Operations {
	return &Operations{cfg: cfg, find: search.Finder{Source: cfg.Ledger, Live: cfg.Live, MaxLive: maxLiveRead}}
}

// OperationState is the state of an [Operation].
type OperationState string

// The states of an operation.
const (
	OperationRunning   OperationState = "RUNNING"
	OperationDone      OperationState = "DONE"      // every job was tried
	OperationCancelled OperationState = "CANCELLED" // stopped before every job was tried
)

// Counts counts an operation's jobs by outcome.
type Counts struct {
	Applied int `json:"applied,omitempty"` // jobs that are as requested: a retried job has a rerun, a cancelled one is ending
	Skipped int `json:"skipped,omitempty"` // jobs whose state forbids the change, or that no longer match
	Failed  int `json:"failed,omitempty"`  // jobs that could not be changed for another reason
}

// Done returns how many jobs were tried.
func (c *Counts) Done() int { return c.Applied + c.Skipped + c.Failed }

func (c *Counts) add(outcome ItemOutcome) {
	switch outcome {
	case ItemApplied, ItemRepeated:
		c.Applied++
	case ItemSkipped:
		c.Skipped++
	case ItemFailed:
		c.Failed++
	case ItemWaiting:
	}
}

// Operation changes many jobs. [Operations.Create] fixes which ones, so that it includes
// neither jobs that fail later nor its own reruns that fail again.
//
// Its rows are in the schedule's table: a HEAD in the partition "operations", an item for each
// job in a partition of its own, and one schedule entry next to the HEAD, which changes with it
// in one batch:
//
//	entry, in an hour ─► items ─► HEAD, entry at once ─► entry at the end of the lease, or when
//	                                                     the work continues ─► entry in 7 days
//
// So an operation is visible as a whole or not at all. If Create crashes, the first entry leads
// to the items, which are removed then. If two creates use one key, the second finds the
// first's HEAD, removes its own items and returns the first's operation.
type Operation struct {
	ID     string         `json:"operation_id"`
	Kind   Kind           `json:"kind"`
	State  OperationState `json:"state"`
	Named  bool           `json:"named,omitempty"` // the request named the jobs
	Filter search.Filter  `json:"filter"`          // selects the jobs if they are not named; its zero value selects all
	Edits
	Matched   int    `json:"matched"`             // how many jobs it changes
	Truncated bool   `json:"truncated,omitempty"` // more jobs match than its limit, or than Create examines
	Last      string `json:"last,omitempty"`      // [search.Filter.After] of the jobs that follow its own, if it is truncated
	Counts
	RatePerSecond float64   `json:"rate_per_second"`
	Reason        string    `json:"reason,omitempty"`
	Actor         string    `json:"actor,omitempty"`
	Caller        string    `json:"caller,omitempty"` // who created it, see [ledger.WithCaller]
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`

	Digest string `json:"digest"`   // of the request
	Set    string `json:"item_set"` // part of the name of its items' partition
	// Due is the time of its schedule entry, and what a runner's lease is known by: no two
	// runners have set the same one.
	//
	//	invariant: HEAD exists ⇔ there is one entry of (ID, Set), and it is at Due
	Due time.Time `json:"due"`
}

// ItemOutcome is the result of an operation for one job.
type ItemOutcome string

// The outcomes.
const (
	ItemWaiting  ItemOutcome = "waiting"  // not tried yet
	ItemApplied  ItemOutcome = "applied"  // this operation changed the job
	ItemRepeated ItemOutcome = "repeated" // the job already had a rerun, or was as requested
	ItemSkipped  ItemOutcome = "skipped"  // the job's state forbids the change, or it no longer matches
	ItemFailed   ItemOutcome = "failed"   // the job could not be changed for another reason
)

// Item is one job of an operation.
type Item struct {
	JobID    string      `json:"job_id"`
	Outcome  ItemOutcome `json:"outcome"`
	NewJobID string      `json:"new_job_id,omitempty"` // the job's rerun
	Detail   string      `json:"detail,omitempty"`     // why the job was not changed
}

// OperationPage is an operation with one page of its items, in order.
type OperationPage struct {
	Operation
	Items []Item
	Next  string // the token of the next page, empty at the end
}

// Create stores an operation with the jobs that it selects, which a [Bulk] then changes.
// While an operation is kept, a call with the same kind and key returns it; without a key,
// each call creates a new one. The errors are [*apierror.Error]s: invalid_envelope for an
// invalid request, idempotency_mismatch if the key was used for another request. After any
// other error the caller may repeat the request under its key.
func (s *Operations) Create(ctx context.Context, key string, r BulkRequest) (Operation, error) {
	if err := r.complete(); err != nil {
		return Operation{}, err
	}
	fresh, err := s.cfg.Ledger.NewJobID()
	if err != nil {
		return Operation{}, ledger.Problem(err)
	}
	now := tablestore.Now()
	op := &Operation{
		ID: fresh, Kind: r.Kind, State: OperationRunning, Edits: r.Edits, Filter: r.Filter,
		RatePerSecond: r.RatePerSecond, Reason: r.Reason, Actor: r.Actor, Caller: ledger.CallerOf(ctx),
		CreatedAt: now, UpdatedAt: now,
		Digest: r.digest(), Named: len(r.JobIDs) > 0, Set: fresh, Due: now,
	}
	if key != "" {
		op.ID = uuid.NewHash(sha256.New(), uuid.Nil, []byte(string(r.Kind)+" "+key), 8).String()
		if found, err := s.existing(ctx, op); !errors.Is(err, errNoOperation) {
			return found, ledger.Problem(err)
		}
	}
	made, err := s.write(ctx, op, &r)
	return made, ledger.Problem(err)
}

// existing returns the stored operation with the id of op. The error is [errNoOperation] if
// there is none, and idempotency_mismatch if it was made by another request.
func (s *Operations) existing(ctx context.Context, op *Operation) (Operation, error) {
	found, err := s.read(ctx, op.ID)
	if err == nil && found.Digest != op.Digest {
		return Operation{}, apierror.Newf(apierror.IdempotencyMismatch,
			"The idempotency key was used for another operation before.")
	}
	return found, err
}

// itemWriters is how many batches of items are written concurrently.
const itemWriters = 4

// write stores the first entry, the items and the HEAD of an operation.
func (s *Operations) write(ctx context.Context, op *Operation, r *BulkRequest) (Operation, error) {
	made := *op
	items, err := s.selectJobs(ctx, r, &made)
	if err != nil {
		return Operation{}, err
	}
	draft := s.entryKey(op.CreatedAt.Add(draftAge), op.ID, op.Set)
	if _, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: draft}}); err != nil {
		return Operation{}, fmt.Errorf("draft operation %s: %w", op.ID, err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(itemWriters)
	for part := range slices.Chunk(items, tablestore.MaxBatchOps) {
		group.Go(func() error { return s.writeItems(groupCtx, op, part, tablestore.Put) })
	}
	if err := group.Wait(); err != nil {
		return Operation{}, err
	}
	if made.Matched = len(items); made.Matched == 0 {
		made.State, made.Due = OperationDone, made.UpdatedAt.Add(keepOperation)
	}
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{
		{Verb: tablestore.Insert, Key: s.key(rowHead, op.ID), Properties: encode(&made)},
		{Verb: tablestore.Put, Key: s.entryKey(made.Due, op.ID, op.Set)},
		{Verb: tablestore.Discard, Key: draft},
	})
	if err == nil {
		return made, nil
	}
	// There may be a HEAD all the same: ours, if the reply was lost and the store reports a
	// conflict with our own write, or that of another create under the same key.
	found, readErr := s.existing(ctx, op)
	switch {
	case errors.Is(readErr, errNoOperation): // The draft's entry removes the items.
		return Operation{}, fmt.Errorf("begin operation %s: %w", op.ID, err)
	case readErr == nil && found.Set == op.Set:
		return found, nil
	case errors.Is(err, tablestore.ErrConflict):
		_ = s.discard(ctx, op.ID, op.Set, draft, "") // If that fails, the draft's entry does it.
	}
	return found, readErr
}

// selectJobs returns the items of the operation, and notes in it where they end if more jobs may
// match.
func (s *Operations) selectJobs(ctx context.Context, r *BulkRequest, op *Operation) (items []*itemRow, err error) {
	for job, err := range s.selected(ctx, r) {
		more, bounded := errors.AsType[*search.MoreError](err)
		switch {
		case bounded:
			op.Truncated, op.Last = true, more.After
			return items, nil
		case err == nil && len(items) == r.Limit:
			op.Truncated = true
			return items, nil
		case err != nil:
			return nil, err
		}
		op.Last = job.After
		items = append(items, &itemRow{
			Item: Item{JobID: job.JobID, Outcome: ItemWaiting}, Index: len(items), Tenant: job.TenantID,
		})
	}
	op.Last = ""
	return items, nil
}

// itemPage is the most items that are read at once.
const itemPage = 1000

// Get returns an operation with at most limit items: those with the outcome, unless it is
// empty, after the page whose Next is after, unless that is empty. The errors are
// [*apierror.Error]s, not_found if there is no such operation.
func (s *Operations) Get(ctx context.Context, id string, outcome ItemOutcome, limit int, after string) (OperationPage, error) {
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
	last := from
	query := s.itemQuery(op.ID, op.Set, from)
	for {
		query.Limit = itemPage
		if outcome == "" {
			query.Limit = min(itemPage, limit+1-len(page.Items)) // One more tells whether there is a next page.
		}
		stored, err := s.cfg.Store.Scan(ctx, query)
		if err != nil {
			return OperationPage{}, ledger.Problem(fmt.Errorf("read the items of operation %s: %w", op.ID, err))
		}
		for i := range stored.Rows {
			item, err := decodeItem(&stored.Rows[i])
			if err != nil {
				return OperationPage{}, ledger.Problem(err)
			}
			if outcome != "" && item.Outcome != outcome {
				continue
			}
			if len(page.Items) == limit {
				page.Next = strconv.Itoa(last)
				return page, nil
			}
			page.Items, last = append(page.Items, item.Item), item.Index
		}
		if query.Continue = stored.Next; query.Continue == "" {
			return page, nil
		}
	}
}

// Results counts the jobs that an operation changed by their present states. Those of a retry are its
// reruns.
type Results struct {
	Counted                            int // jobs that were read and still exist, at most [MaxResults]
	Succeeded, Failed, Cancelled, Live int
}

// MaxResults bounds the jobs that are read for [Results]. Of more jobs an even sample is read.
const MaxResults = 200

// resultsPage is how many jobs are in memory at a time: a job may be large.
const resultsPage = 16

// Results reads the jobs that an operation has changed so far. The errors are
// [*apierror.Error]s, not_found if there is no such operation.
func (s *Operations) Results(ctx context.Context, id string) (counted Results, err error) {
	op, err := s.read(ctx, id)
	if err != nil {
		return counted, ledger.Problem(err)
	}
	rows, err := tablestore.ScanAll(ctx, s.cfg.Store, s.itemQuery(op.ID, op.Set, 0))
	if err != nil {
		return counted, ledger.Problem(fmt.Errorf("read the items of operation %s: %w", op.ID, err))
	}
	var changed []string
	for i := range rows {
		item, err := decodeItem(&rows[i])
		if err != nil {
			return counted, ledger.Problem(err)
		}
		if item.Outcome == ItemApplied || item.Outcome == ItemRepeated {
			changed = append(changed, cmp.Or(item.NewJobID, item.JobID))
		}
	}
	sample := make([]string, min(len(changed), MaxResults))
	for i := range sample {
		sample[i] = changed[i*len(changed)/len(sample)]
	}
	for part := range slices.Chunk(sample, resultsPage) {
		jobs := search.Named(part)
		if err := s.find.Read(ctx, jobs); err != nil {
			return counted, ledger.Problem(err)
		}
		for _, found := range jobs {
			if found.Job != nil {
				counted.count(found.Job.Job.State)
			}
		}
	}
	return counted, nil
}

func (r *Results) count(state statemachine.JobState) {
	r.Counted++
	switch state {
	case statemachine.JobSucceeded:
		r.Succeeded++
	case statemachine.JobFailedFinal:
		r.Failed++
	case statemachine.JobCancelled:
		r.Cancelled++
	default:
		r.Live++
	}
}

// List returns one page of operations, newest first, and the position to continue after,
// empty at the end. It lists one kind, unless kind is empty, and the operations whose filter
// names the tenant, unless tenantID is empty. The errors are [*apierror.Error]s.
func (s *Operations) List(ctx context.Context, kind Kind, tenantID string, limit int, after string) ([]Operation, string, error) {
	first := s.key(rowHead, "")
	rows, err := tablestore.ScanAll(ctx, s.cfg.Store, tablestore.Query{Table: first.Table, Partition: first.Partition, From: first.Row})
	if err != nil {
		return nil, "", ledger.Problem(fmt.Errorf("read the operations: %w", err))
	}
	var found []Operation
	for i := range rows {
		op, err := decode[Operation](&rows[i])
		if err != nil {
			return nil, "", ledger.Problem(err)
		}
		if (kind == "" || op.Kind == kind) && (tenantID == "" || op.Filter.TenantID == tenantID) &&
			op.sortKey() > after {
			found = append(found, op)
		}
	}
	slices.SortFunc(found, func(a, b Operation) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	if len(found) <= limit {
		return found, "", nil
	}
	return found[:limit], found[limit-1].sortKey(), nil
}

// sortKey sorts operations newest first.
func (o *Operation) sortKey() string {
	return tablestore.Join(tablestore.Pad(math.MaxInt64-o.CreatedAt.UnixMilli(), 19), o.ID)
}

// Cancel stops an operation. Once it has returned, no job is started; those being changed at
// that moment are finished, and nothing is undone. An operation that has ended does not
// change. The errors are [*apierror.Error]s, not_found if there is no such operation.
func (s *Operations) Cancel(ctx context.Context, id string) (Operation, error) {
	op, _, err := s.update(ctx, id, func(op *Operation) (bool, error) {
		if op.State != OperationRunning {
			return false, nil
		}
		op.State, op.UpdatedAt = OperationCancelled, tablestore.Now()
		return true, nil
	})
	return op, ledger.Problem(err)
}
