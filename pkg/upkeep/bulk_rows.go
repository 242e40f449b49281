package upkeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// OperationState is the state of an [Operation].
type OperationState string

// The states of an operation.
const (
	OperationRunning   OperationState = "RUNNING"
	OperationDone      OperationState = "DONE"      // every job was tried
	OperationCancelled OperationState = "CANCELLED" // it was stopped before

	// operationDraft is that of a row which stands for items without a HEAD.
	operationDraft OperationState = "DRAFT"
)

// Counts is what became of an operation's jobs.
type Counts struct {
	Rerun   int // have a rerun, a new one or one that was there already
	Skipped int // cannot be rerun
	Failed  int // could not be rerun for another reason
}

// Done is how many were tried.
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

// Operation reruns many jobs. Which ones is settled when it is made, so that neither
// jobs that fail later nor its own reruns that fail again get into it.
//
// Its rows lie in the schedule's table: one HEAD for each operation in the partition
// "retries", and an item for each job in a partition of its own. The items are written
// before the HEAD, and a draft row before the items: a create that crashes leaves a
// draft, by which its items are found and removed an hour later. The HEAD takes the
// draft's place in one batch. So an operation is seen whole or not at all, and of two
// creates under one key the second finds the first's HEAD, removes its own items and
// answers with that.
type Operation struct {
	ID    string
	State OperationState
	From  ledger.RerunFrom
	// Matched is how many jobs it is for.
	Matched int
	Counts
	// TenantID is whose jobs it is for, empty where they may be of several tenants.
	TenantID      string
	RatePerSecond float64
	Reason        string
	Actor         string
	CreatedAt     time.Time
	UpdatedAt     time.Time

	digest string // of the request
	named  bool   // the request named the jobs
	set    string // which items are its own

	// owner is the runner that works on it, until then; empty for none.
	owner      string
	leaseUntil time.Time

	loaded tablestore.Properties
}

// operationsPartition holds a HEAD for each operation, and drafts: there are never many.
const operationsPartition = "retries"

func (s *Failures) headKey(id string) tablestore.Key {
	return tablestore.Key{Table: s.cfg.Table, Partition: operationsPartition, Row: tablestore.Escape(id)}
}

// encode makes an operation's HEAD.
func (o *Operation) encode() tablestore.Properties {
	return overlay(
		o.loaded,
		tablestore.Property{Name: "v", Value: tablestore.Int(1)},
		tablestore.Property{Name: "retry_id", Value: tablestore.String(o.ID)},
		tablestore.Property{Name: "state", Value: tablestore.String(string(o.State))},
		tablestore.Property{Name: "from", Value: tablestore.String(string(o.From))},
		tablestore.Property{Name: "matched", Value: tablestore.Int(int64(o.Matched))},
		tablestore.Property{Name: "rerun", Value: tablestore.Int(int64(o.Rerun))},
		tablestore.Property{Name: "skipped", Value: tablestore.Int(int64(o.Skipped))},
		tablestore.Property{Name: "failed", Value: tablestore.Int(int64(o.Failed))},
		tablestore.Property{Name: "rate", Value: tablestore.String(strconv.FormatFloat(o.RatePerSecond, 'g', -1, 64))},
		tablestore.Property{Name: "tenant_id", Value: tablestore.String(o.TenantID)},
		tablestore.Property{Name: "reason", Value: tablestore.String(o.Reason)},
		tablestore.Property{Name: "actor", Value: tablestore.String(o.Actor)},
		tablestore.Property{Name: "created_at", Value: tablestore.Time(o.CreatedAt)},
		tablestore.Property{Name: "updated_at", Value: tablestore.Time(o.UpdatedAt)},
		tablestore.Property{Name: "digest", Value: tablestore.String(o.digest)},
		tablestore.Property{Name: "named", Value: tablestore.Bool(o.named)},
		tablestore.Property{Name: "item_set", Value: tablestore.String(o.set)},
		tablestore.Property{Name: "owner", Value: tablestore.String(o.owner)},
		tablestore.Property{Name: "lease_until", Value: tablestore.Time(o.leaseUntil)},
	)
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
		CreatedAt: p.Get("created_at").Time(), UpdatedAt: p.Get("updated_at").Time(),
		digest: p.Get("digest").String(), named: p.Get("named").Bool(), set: p.Get("item_set").String(),
		owner: p.Get("owner").String(), leaseUntil: p.Get("lease_until").Time(), loaded: p,
	}, nil
}

// overlay returns the properties of a row that was loaded, with others written
// over them, so that what a newer version has put there stays.
func overlay(loaded tablestore.Properties, own ...tablestore.Property) tablestore.Properties {
	rest := slices.DeleteFunc(slices.Clone(loaded), func(old tablestore.Property) bool {
		return slices.ContainsFunc(own, func(p tablestore.Property) bool { return p.Name == old.Name })
	})
	return append(rest, own...)
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

// move changes an operation under its version. change reports whether it
// changed anything.
func (s *Failures) move(ctx context.Context, id string, change func(op *Operation) (bool, error)) (Operation, error) {
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

// Cancel stops an operation: what was rerun goes on, and nothing more is rerun
// but what is under way at this moment. One that is over stays as it is. The
// errors are [*problem.Error]s, not_found where there is no such operation.
func (s *Failures) Cancel(ctx context.Context, id string) (Operation, error) {
	op, err := s.move(ctx, id, func(op *Operation) (bool, error) {
		if op.State != OperationRunning {
			return false, nil
		}
		op.State, op.UpdatedAt = OperationCancelled, tablestore.Now()
		return true, nil
	})
	return op, ledger.Problem(err)
}

// ItemOutcome is what became of one job of an operation.
type ItemOutcome string

// The outcomes.
const (
	ItemWaiting  ItemOutcome = "waiting"
	ItemRerun    ItemOutcome = "rerun"    // under a new job, by this operation
	ItemRepeated ItemOutcome = "repeated" // the rerun was there already
	ItemSkipped  ItemOutcome = "skipped"  // it cannot be rerun
	ItemFailed   ItemOutcome = "failed"   // it could not be rerun for another reason
)

// Item is one job of an operation.
type Item struct {
	JobID   string
	Outcome ItemOutcome
	// NewJobID is its rerun, and Detail why there is none.
	NewJobID string
	Detail   string
}

// itemRow is an item as it is stored.
type itemRow struct {
	Item
	index  int
	tenant string // empty where it is not known
	tag    tablestore.ETag
	loaded tablestore.Properties
}

// itemQuery selects the items of an operation from that index on. Each create
// has a set of its own, so that two under one key never mix.
func (s *Failures) itemQuery(op *Operation, from int) tablestore.Query {
	return tablestore.Query{
		Table: s.cfg.Table, Partition: tablestore.Join("retry", op.ID, op.set), From: tablestore.Pad(from, 5),
	}
}

func (s *Failures) itemKey(op *Operation, index int) tablestore.Key {
	query := s.itemQuery(op, index)
	return tablestore.Key{Table: query.Table, Partition: query.Partition, Row: query.From}
}

// encode makes an item's row.
func (i *itemRow) encode() tablestore.Properties {
	return overlay(
		i.loaded,
		tablestore.Property{Name: "v", Value: tablestore.Int(1)},
		tablestore.Property{Name: "index", Value: tablestore.Int(int64(i.index))},
		tablestore.Property{Name: "job_id", Value: tablestore.String(i.JobID)},
		tablestore.Property{Name: "tenant_id", Value: tablestore.String(i.tenant)},
		tablestore.Property{Name: "outcome", Value: tablestore.String(string(i.Outcome))},
		tablestore.Property{Name: "new_job_id", Value: tablestore.String(i.NewJobID)},
		tablestore.Property{Name: "detail", Value: tablestore.String(i.Detail)},
	)
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

// writers is how many batches of items are written side by side.
const writers = 4

// putItems writes the items of a new operation. Nobody else writes to its set.
func (s *Failures) putItems(ctx context.Context, op *Operation, items []*itemRow) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for part := range slices.Chunk(items, tablestore.MaxBatchOps) {
		batch := make(tablestore.Batch, len(part))
		for i, item := range part {
			batch[i] = tablestore.Op{Verb: tablestore.Put, Key: s.itemKey(op, item.index), Properties: item.encode()}
		}
		group.Go(func() error {
			_, err := s.cfg.Store.Commit(ctx, batch)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("write the items of retry operation %s: %w", op.ID, err)
	}
	return nil
}

// readItems returns at most limit items from that index on, 0 for all, and
// whether there are more.
func (s *Failures) readItems(ctx context.Context, op *Operation, from, limit int) ([]*itemRow, bool, error) {
	query := s.itemQuery(op, from)
	query.Limit = limit
	var items []*itemRow
	for {
		page, err := s.cfg.Store.Scan(ctx, query)
		if err != nil {
			return nil, false, fmt.Errorf("read the items of retry operation %s: %w", op.ID, err)
		}
		for i := range page.Rows {
			items = append(items, decodeItem(&page.Rows[i]))
		}
		query.Continue = page.Next
		if full := limit > 0 && len(items) >= limit; full || page.Next == "" {
			return items, full && page.Next != "", nil
		}
		if limit > 0 {
			query.Limit = limit - len(items)
		}
	}
}

// OperationPage is an operation with a part of its items, in order.
type OperationPage struct {
	Operation
	Items []Item
	// Next is what to continue after, empty at the end.
	Next string
}

// Get returns an operation with at most limit items behind after, which is
// empty or a page's Next. The errors are [*problem.Error]s, not_found where
// there is no such operation.
func (s *Failures) Get(ctx context.Context, id string, limit int, after string) (OperationPage, error) {
	from, err := itemIndex(after)
	if err != nil {
		return OperationPage{}, invalidRequest("", "page_token is invalid")
	}
	op, err := s.read(ctx, id)
	if err != nil {
		return OperationPage{}, ledger.Problem(err)
	}
	rows, more, err := s.readItems(ctx, &op, from, limit)
	if err != nil {
		return OperationPage{}, ledger.Problem(err)
	}
	page := OperationPage{Operation: op, Items: make([]Item, len(rows))}
	for i, row := range rows {
		page.Items[i] = row.Item
	}
	if more {
		page.Next = strconv.Itoa(rows[len(rows)-1].index)
	}
	return page, nil
}

// itemIndex is that of the first item behind after.
func itemIndex(after string) (int, error) {
	if after == "" {
		return 0, nil
	}
	last, err := strconv.Atoi(after)
	if err != nil || last < 0 || last >= MaxBulkJobs {
		return 0, errors.New("no index of an item")
	}
	return last + 1, nil
}
