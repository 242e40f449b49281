package background

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows of the partition "operations", which all operations share. They are few.
const (
	operationsPartition = "operations"
	rowHead             = "head"
	rowDue              = "due"
	columnData          = "data"
)

func (s *Operations) key(parts ...string) tablestore.Key {
	return tablestore.Key{Table: s.cfg.Table, Partition: operationsPartition, Row: tablestore.Join(parts...)}
}

// entryKey is the key of the schedule entry of an operation.
func (s *Operations) entryKey(due time.Time, id, set string) tablestore.Key {
	return s.key(rowDue, tablestore.Pad(due.UnixMilli(), 13), id, set)
}

// Shards is 1: all operations share one shard of the schedule.
func (s *Operations) Shards() int { return 1 }

// Due returns the entries of operations that are due at now, as [ledger.Schedule] requires.
// An entry's job id is that of its operation, and its nonce the set of items.
func (s *Operations) Due(ctx context.Context, kind ledger.Kind, _ int, now time.Time, limit int, from string,
) ([]ledger.Entry, string, error) {
	return ledger.DueEntries(ctx, s.cfg.Store, s.key(rowDue, ""), kind, 0, now, limit, from)
}

// itemQuery selects the items of an operation, starting at index from. Each create writes
// a set of its own, so that the items of two creates under one key never mix.
func (s *Operations) itemQuery(id, set string, from int) tablestore.Query {
	return tablestore.Query{Table: s.cfg.Table, Partition: tablestore.Join("operation", id, set), From: tablestore.Pad(from, 5)}
}

// writeItems writes at most a batch of items.
func (s *Operations) writeItems(ctx context.Context, op *Operation, items []*itemRow, verb tablestore.Verb) error {
	batch := make(tablestore.Batch, len(items))
	for i, item := range items {
		at := s.itemQuery(op.ID, op.Set, item.Index)
		batch[i] = tablestore.Op{
			Verb: verb, Key: tablestore.Key{Table: at.Table, Partition: at.Partition, Row: at.From},
			ETag: item.tag, Properties: encode(item),
		}
	}
	if _, err := s.cfg.Store.Commit(ctx, batch); err != nil {
		return fmt.Errorf("write the items of operation %s: %w", op.ID, err)
	}
	return nil
}

// itemRow is an item as it is stored.
type itemRow struct {
	Item
	Index  int    `json:"index"`
	Tenant string `json:"tenant_id,omitempty"` // empty until the job is read
	tag    tablestore.ETag
	line   string // of the job; empty until the job is read, or if it is in none
}

func (i *itemRow) fields() statemachine.LogFields {
	return statemachine.LogFields{JobID: i.JobID, TenantID: i.Tenant}
}

// encode makes the properties of an operation or an item.
func encode(stored any) tablestore.Properties {
	var data strings.Builder
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false) // Otherwise a patch of many tags of HTML would not fit into the row.
	_ = encoder.Encode(stored)   // Both always encode.
	return tablestore.Properties{{Name: columnData, Value: tablestore.String(strings.TrimSuffix(data.String(), "\n"))}}
}

// decode reads an operation or an item.
func decode[T any](row *tablestore.Row) (T, error) {
	var stored T
	if err := json.Unmarshal([]byte(row.Properties.Get(columnData).String()), &stored); err != nil {
		return stored, fmt.Errorf("row %s: %w", row.Key, err)
	}
	return stored, nil
}

func decodeItem(row *tablestore.Row) (*itemRow, error) {
	item, err := decode[itemRow](row)
	item.tag = row.ETag
	return &item, err
}

// errNoOperation is returned if there is no operation with the id.
var errNoOperation = apierror.Newf(apierror.NotFound, "There is no such operation.")

// read returns the operation, or [errNoOperation].
func (s *Operations) read(ctx context.Context, id string) (Operation, error) {
	op, _, err := s.load(ctx, id)
	return op, err
}

func (s *Operations) load(ctx context.Context, id string) (Operation, tablestore.ETag, error) {
	row, err := s.cfg.Store.Get(ctx, s.key(rowHead, id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return Operation{}, "", errNoOperation
	}
	if err != nil {
		return Operation{}, "", fmt.Errorf("read operation %s: %w", id, err)
	}
	op, err := decode[Operation](&row)
	return op, row.ETag, err
}

// update applies change to an operation and stores it under its ETag, with its entry if Due
// has changed, unless change reports that nothing changed. It may call change several times. The ETag is
// the one that the operation was last read under.
func (s *Operations) update(ctx context.Context, id string, change func(op *Operation) (bool, error),
) (op Operation, tag tablestore.ETag, err error) {
	err = tablestore.Retry(ctx, s.cfg.Random, func() error {
		if op, tag, err = s.load(ctx, id); err != nil {
			return err
		}
		old := s.entryKey(op.Due, id, op.Set)
		if changed, err := change(&op); err != nil || !changed {
			return err
		}
		batch := tablestore.Batch{{Verb: tablestore.Replace, Key: s.key(rowHead, id), ETag: tag, Properties: encode(&op)}}
		if entry := s.entryKey(op.Due, id, op.Set); entry != old {
			batch = append(batch, tablestore.Op{Verb: tablestore.Put, Key: entry}, tablestore.Op{Verb: tablestore.Discard, Key: old})
		}
		if _, err := s.cfg.Store.Commit(ctx, batch); err != nil {
			return fmt.Errorf("write operation %s: %w", id, err)
		}
		return nil
	})
	return op, tag, err
}

// discard removes a set of items, then the entry that leads to them, and the HEAD that has this ETag, if
// any. Another HEAD stays: it is that of a new operation with the same key.
func (s *Operations) discard(ctx context.Context, id, set string, entry tablestore.Key, head tablestore.ETag) error {
	if err := tablestore.DiscardAll(ctx, s.cfg.Store, s.itemQuery(id, set, 0), ""); err != nil {
		return fmt.Errorf("remove the items of operation %s: %w", id, err)
	}
	batch := tablestore.Batch{{Verb: tablestore.Discard, Key: entry}}
	if head != "" {
		batch = append(batch, tablestore.Op{Verb: tablestore.Delete, Key: s.key(rowHead, id), ETag: head})
	}
	_, err := s.cfg.Store.Commit(ctx, batch)
	if errors.Is(err, tablestore.ErrConflict) { // Another runner removed the HEAD.
		_, err = s.cfg.Store.Commit(ctx, batch[:1])
	}
	if err != nil {
		return fmt.Errorf("remove operation %s: %w", id, err)
	}
	return nil
}
