package workqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// DefaultTable is the name of the queue's table.
const DefaultTable = "luciusqueue"

// Storage is the queue's rows, and what makes them follow the ledger. It is
// safe for concurrent use.
type Storage struct {
	store tablestore.Store
	table string
}

// NewStorage returns the queue's rows in that table of the store, or in
// [DefaultTable] where the name is empty.
func NewStorage(store tablestore.Store, table string) *Storage {
	if table == "" {
		table = DefaultTable
	}
	return &Storage{store: store, table: table}
}

// The rows of a job's partition.
const (
	rowItem    = "ITEM"    // status, small: each move writes it
	rowMessage = "MESSAGE" // the directive's bytes, once per attempt
	rowEvent   = "EVENT"   // one per move
)

// workID is a work item's id in its parts. It is the id of the outbox row under
// which the item was first enqueued, so it says where the item lies.
type workID = ledger.OutboxID

func (s *Storage) key(jobID string, parts ...string) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: tablestore.Escape(jobID), Row: tablestore.Join(parts...)}
}

func (s *Storage) itemKey(id workID) tablestore.Key {
	return s.key(id.JobID, rowItem, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(id.FirstAttempt), 6))
}

func (s *Storage) messageKey(id workID, attemptNo int) tablestore.Key {
	return s.key(id.JobID, rowMessage, tablestore.Pad(int64(id.StepIndex), 4), tablestore.Pad(int64(attemptNo), 6))
}

func (s *Storage) eventKey(id workID, rev int64) tablestore.Key {
	return s.key(id.JobID, rowEvent, tablestore.Pad(int64(id.StepIndex), 4),
		tablestore.Pad(int64(id.FirstAttempt), 6), tablestore.Pad(rev, 8))
}

// stored is an item as it was read.
type stored struct {
	item lifecycle.Item
	id   workID
	row  tablestore.Row
	// mark is the operator's request that the next requeue answers.
	mark mark
}

// load reads an item. It returns [lifecycle.ErrNotFound], also for text that is
// no work id.
func (s *Storage) load(ctx context.Context, workID string) (*stored, error) {
	id, err := ledger.ParseOutboxID(workID)
	if err != nil {
		return nil, lifecycle.ErrNotFound
	}
	row, err := s.store.Get(ctx, s.itemKey(id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, lifecycle.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read work item %s: %w", workID, err)
	}
	return decodeStored(row, id)
}

// decodeStored reads the row of an item.
func decodeStored(row tablestore.Row, id workID) (*stored, error) {
	item, err := decodeItem(row.Properties)
	if err != nil {
		return nil, fmt.Errorf("row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
	}
	return &stored{item: item, id: id, row: row, mark: decodeMark(row.Properties)}, nil
}

// items reads the items of one step, oldest first.
func (s *Storage) items(ctx context.Context, jobID string, stepIndex int) ([]*stored, error) {
	return s.itemsUnder(ctx, jobID, tablestore.Join(rowItem, tablestore.Pad(int64(stepIndex), 4)))
}

// itemsUnder reads the items whose keys begin with that.
func (s *Storage) itemsUnder(ctx context.Context, jobID, prefix string) ([]*stored, error) {
	prefix += ":"
	query := tablestore.Query{
		Table: s.table, Partition: tablestore.Escape(jobID), From: prefix, To: tablestore.PrefixEnd(prefix),
	}
	rows, err := s.rows(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read the work items of job %s: %w", jobID, err)
	}
	items := make([]*stored, 0, len(rows))
	for _, row := range rows {
		id, err := ledger.ParseOutboxID(row.Properties.Get("work_id").String())
		if err != nil {
			return nil, fmt.Errorf("row %s of job %s: %w", row.Key.Row, jobID, err)
		}
		one, err := decodeStored(row, id)
		if err != nil {
			return nil, err
		}
		items = append(items, one)
	}
	return items, nil
}

// rows reads all pages of a query.
func (s *Storage) rows(ctx context.Context, query tablestore.Query) ([]tablestore.Row, error) {
	var rows []tablestore.Row
	for {
		page, err := s.store.Scan(ctx, query)
		if err != nil {
			return nil, err
		}
		if rows = append(rows, page.Rows...); page.Next == "" {
			return rows, nil
		}
		query.Continue = page.Next
	}
}

// message reads the directive's bytes of an attempt. It returns
// [lifecycle.ErrNotFound] where its job is being purged.
func (s *Storage) message(ctx context.Context, id workID, attemptNo int) ([]byte, error) {
	row, err := s.store.Get(ctx, s.messageKey(id, attemptNo))
	if errors.Is(err, tablestore.ErrNotFound) {
		err = lifecycle.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read the directive of job %s: %w", id.JobID, err)
	}
	return tablestore.Large(row.Properties, "directive"), nil
}

// now is the time of one change, in the milliseconds that are stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
