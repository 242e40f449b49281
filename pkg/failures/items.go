package failures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Outcome is what became of one job of an operation.
type Outcome string

// The outcomes.
const (
	Waiting  Outcome = "waiting"
	Rerun    Outcome = "rerun"    // under a new job, by this operation
	Repeated Outcome = "repeated" // the rerun was there already
	Skipped  Outcome = "skipped"  // it cannot be rerun
	Failed   Outcome = "failed"   // it could not be rerun for another reason
)

// Item is one job of an operation.
type Item struct {
	JobID   string
	Outcome Outcome
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
func (s *Service) itemQuery(op *Operation, from int) tablestore.Query {
	return tablestore.Query{
		Table: s.cfg.Table, Partition: tablestore.Join("retry", op.ID, op.set), From: tablestore.Pad(from, 5),
	}
}

func (s *Service) itemKey(op *Operation, index int) tablestore.Key {
	query := s.itemQuery(op, index)
	return tablestore.Key{Table: query.Table, Partition: query.Partition, Row: query.From}
}

// encode makes an item's row.
func (i *itemRow) encode() tablestore.Properties {
	return over(
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
			JobID: p.Get("job_id").String(), Outcome: Outcome(p.Get("outcome").String()),
			NewJobID: p.Get("new_job_id").String(), Detail: p.Get("detail").String(),
		},
		index: int(p.Get("index").Int()), tenant: p.Get("tenant_id").String(), tag: row.ETag, loaded: p,
	}
}

// writers is how many batches of items are written side by side.
const writers = 4

// putItems writes the items of a new operation. Nobody else writes to its set.
func (s *Service) putItems(ctx context.Context, op *Operation, items []*itemRow) error {
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
func (s *Service) readItems(ctx context.Context, op *Operation, from, limit int) ([]*itemRow, bool, error) {
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

// Page is an operation with a part of its items, in order.
type Page struct {
	Operation
	Items []Item
	// Next is what to continue after, empty at the end.
	Next string
}

// Get returns an operation with at most limit items behind after, which is
// empty or a page's Next. The errors are [*problem.Error]s, not_found where
// there is no such operation.
func (s *Service) Get(ctx context.Context, id string, limit int, after string) (Page, error) {
	from, err := index(after)
	if err != nil {
		return Page{}, invalid("", "page_token is not one that a page has given")
	}
	op, _, err := s.read(ctx, id)
	if err != nil {
		return Page{}, ledger.Problem(err)
	}
	rows, more, err := s.readItems(ctx, &op, from, limit)
	if err != nil {
		return Page{}, ledger.Problem(err)
	}
	page := Page{Operation: op, Items: make([]Item, len(rows))}
	for i, row := range rows {
		page.Items[i] = row.Item
	}
	if more {
		page.Next = strconv.Itoa(rows[len(rows)-1].index)
	}
	return page, nil
}

// index is that of the first item behind after.
func index(after string) (int, error) {
	if after == "" {
		return 0, nil
	}
	last, err := strconv.Atoi(after)
	if err != nil || last < 0 || last >= MaxLimit {
		return 0, errors.New("no index of an item")
	}
	return last + 1, nil
}
