package aztablestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// tableMissing is the service's code for a missing table.
const tableMissing = "TableNotFound"

// TableCheck is the result of checking one table.
type TableCheck struct {
	Name string
	// Missing says that the table does not exist.
	Missing bool
	// Err is why an existing table cannot be used, nil if it can.
	Err error
}

// probe is the row that a check writes and deletes.
func probe(table string) tablestore.Key {
	return tablestore.Key{Table: table, Partition: "check", Row: "probe"}
}

// Check reports whether each of the options' tables exists and can be read and
// written with their credential: it writes, reads and deletes a row of its own.
// It creates no tables. The error is about the options or about the account as
// a whole.
func Check(ctx context.Context, options Options) (checks []TableCheck, err error) {
	tables := options.Tables
	options.Tables = nil
	store, err := Open(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for _, table := range tables {
		check := TableCheck{Name: table}
		check.Missing, check.Err = store.checkTable(ctx, table)
		if failed, ok := errors.AsType[*requestError](check.Err); ok && failed.status == 0 {
			return nil, fmt.Errorf("the account does not answer: %w", check.Err)
		}
		checks = append(checks, check)
	}
	return checks, nil
}

// checkTable checks one table.
func (s *Store) checkTable(ctx context.Context, table string) (missing bool, err error) {
	key := probe(table)
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"write a row", func() error {
			_, err := s.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}})
			return err
		}},
		{"read it", func() error {
			_, err := s.Get(ctx, key)
			return err
		}},
		{"delete it", func() error {
			_, err := s.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: key}})
			return err
		}},
	} {
		err := step.do()
		if failed, ok := errors.AsType[*requestError](err); ok && failed.code == tableMissing {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return false, nil
}
