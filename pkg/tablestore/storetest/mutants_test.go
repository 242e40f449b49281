package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// mutant is a store with one defect. A method whose function is nil works.
type mutant struct {
	tablestore.Store
	get    func(ctx context.Context, key tablestore.Key) (tablestore.Row, error)
	scan   func(ctx context.Context, query tablestore.Query) (tablestore.Page, error)
	commit func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error)
}

func (m *mutant) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if m.get != nil {
		return m.get(ctx, key)
	}
	return m.Store.Get(ctx, key)
}

func (m *mutant) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if m.scan != nil {
		return m.scan(ctx, query)
	}
	return m.Store.Scan(ctx, query)
}

func (m *mutant) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if m.commit != nil {
		return m.commit(ctx, batch)
	}
	return m.Store.Commit(ctx, batch)
}

// each commits the ops one by one.
func (m *mutant) each(ctx context.Context, batch tablestore.Batch) (etags []tablestore.ETag, err error) {
	for _, op := range batch {
		etag, err := m.Store.Commit(ctx, tablestore.Batch{op})
		if err != nil {
			return nil, err
		}
		etags = append(etags, etag...)
	}
	return etags, nil
}

// turn returns a commit that changes the ops first.
func (m *mutant) turn(change func(op *tablestore.Op)) func(context.Context, tablestore.Batch) ([]tablestore.ETag, error) {
	return func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
		if err := batch.Validate(); err != nil {
			return nil, err
		}
		batch = slices.Clone(batch)
		for i := range batch {
			change(&batch[i])
		}
		return m.Store.Commit(ctx, batch)
	}
}

// mutants are the defects, each with a check that must detect it.
var mutants = map[string]struct {
	check  string
	mutate func(m *mutant)
}{
	"replace ignores the ETag": {"conflicts/replace with a stale ETag", func(m *mutant) {
		m.commit = m.turn(func(op *tablestore.Op) {
			if op.Verb == tablestore.Replace {
				op.Verb, op.ETag = tablestore.Put, ""
			}
		})
	}},
	"delete ignores the ETag": {"conflicts/delete with a stale ETag", func(m *mutant) {
		m.commit = m.turn(func(op *tablestore.Op) {
			if op.Verb == tablestore.Delete {
				op.Verb, op.ETag = tablestore.Discard, ""
			}
		})
	}},
	"insert overwrites": {"conflicts/insert of an existing row", func(m *mutant) {
		m.commit = m.turn(func(op *tablestore.Op) {
			if op.Verb == tablestore.Insert {
				op.Verb = tablestore.Put
			}
		})
	}},
	"put needs an absent row": {"hints/put overwrites any row", func(m *mutant) {
		m.commit = m.turn(func(op *tablestore.Op) {
			if op.Verb == tablestore.Put {
				op.Verb = tablestore.Insert
			}
		})
	}},
	"discard needs a stored row": {"hints/discard removes a row and accepts an absent one", func(m *mutant) {
		m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			for _, op := range batch {
				if _, err := m.Store.Get(ctx, op.Key); op.Verb == tablestore.Discard && errors.Is(err, tablestore.ErrNotFound) {
					return nil, &tablestore.ConflictError{Key: op.Key, Verb: op.Verb}
				}
			}
			return m.Store.Commit(ctx, batch)
		}
	}},
	"a batch is many writes": {"batches/one failed precondition at any index writes nothing", func(m *mutant) {
		m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			if err := batch.Validate(); err != nil {
				return nil, err
			}
			return m.each(ctx, batch)
		}
	}},
	"a batch may cross partitions": {"limits/a batch has one partition of one table", func(m *mutant) {
		m.commit = m.each
	}},
	"a conflict names no row": {"conflicts/insert of an existing row", func(m *mutant) {
		m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			etags, err := m.Store.Commit(ctx, batch)
			if errors.Is(err, tablestore.ErrConflict) {
				err = &tablestore.ConflictError{}
			}
			return etags, err
		}
	}},
	"preconditions are checked before the write and not with it": {"races/increments by CAS are neither lost nor duplicated", func(m *mutant) {
		m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			if len(batch) != 1 || batch[0].Verb != tablestore.Replace {
				return m.Store.Commit(ctx, batch)
			}
			op := batch[0]
			if row, err := m.Store.Get(ctx, op.Key); err != nil || row.ETag != op.ETag {
				return nil, &tablestore.ConflictError{Key: op.Key, Verb: op.Verb}
			}
			runtime.Gosched()
			return m.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: op.Key, Properties: op.Properties}})
		}
	}},
	"ranges are closed": {"scans/ranges are half open", func(m *mutant) {
		m.scan = func(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
			if query.To != "" {
				query.To += "\x00"
			}
			return m.Store.Scan(ctx, query)
		}
	}},
	"rows come backwards": {"scans/rows come in byte order, whatever the order of writes", func(m *mutant) {
		m.scan = func(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
			page, err := m.Store.Scan(ctx, query)
			slices.Reverse(page.Rows)
			return page, err
		}
	}},
	"pages overlap": {"pages/limit and continuation give every row once", func(m *mutant) {
		m.scan = func(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
			page, err := m.Store.Scan(ctx, query)
			if len(page.Rows) > 1 {
				page.Next = strings.TrimSuffix(page.Next, "\x00")
			}
			return page, err
		}
	}},
	"the first page is all": {"pages/a store may end a page after any row", func(m *mutant) {
		m.scan = func(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
			page, err := m.Store.Scan(ctx, query)
			page.Next = ""
			return page, err
		}
	}},
	"numbers go through floats": {"values/every kind is exact", func(m *mutant) {
		m.get = func(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
			row, err := m.Store.Get(ctx, key)
			for i, p := range row.Properties {
				if p.Value.Kind() == tablestore.KindInt {
					row.Properties[i].Value = tablestore.Int(int64(float64(p.Value.Int())))
				}
			}
			return row, err
		}
	}},
	"empty values vanish": {"values/every kind is exact", func(m *mutant) {
		m.get = func(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
			row, err := m.Store.Get(ctx, key)
			row.Properties = slices.DeleteFunc(row.Properties, func(p tablestore.Property) bool {
				return p.Value.Kind() == tablestore.KindString && p.Value.String() == ""
			})
			return row, err
		}
	}},
	"rows are shared": {"ownership/a row that was returned belongs to the caller", func(m *mutant) {
		var cache sync.Map
		m.get = func(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
			row, err := m.Store.Get(ctx, key)
			if err != nil {
				return row, err
			}
			shared, _ := cache.LoadOrStore(row.ETag, row)
			return shared.(tablestore.Row), nil
		}
	}},
	"keys lose their case": {"keys/case is kept", func(m *mutant) {
		m.get = func(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
			key.Row = strings.ToLower(key.Row)
			return m.Store.Get(ctx, key)
		}
	}},
	"contexts are ignored": {"cancels/an ended context writes nothing", func(m *mutant) {
		m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			return m.Store.Commit(context.WithoutCancel(ctx), batch)
		}
	}},
	"ETags are hashes of the content": {"rows/every write gives a new ETag, also of the same content", hashed},
	"large rows are refused": {"sizes/row", func(m *mutant) {
		m.commit = m.turn(func(op *tablestore.Op) {
			if tablestore.RowBytes(op.Properties) > tablestore.MaxRowBytes-1 {
				op.Key.Row = ""
			}
		})
	}},
}

// hashed derives a row's ETag from its content.
func hashed(m *mutant) {
	etag := func(row tablestore.Row) tablestore.ETag { return tablestore.ETag(fmt.Sprint(row.Properties)) }
	m.get = func(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
		row, err := m.Store.Get(ctx, key)
		row.ETag = etag(row)
		return row, err
	}
	m.commit = func(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
		batch = slices.Clone(batch)
		for i, op := range batch {
			row, err := m.Store.Get(ctx, op.Key)
			if err == nil && op.ETag != "" && op.ETag == etag(row) {
				batch[i].ETag = row.ETag
			}
		}
		etags, err := m.Store.Commit(ctx, batch)
		for i := range etags {
			etags[i] = etag(tablestore.Row{Properties: batch[i].Properties})
		}
		return etags, err
	}
}

func TestEveryDefectIsDetected(t *testing.T) {
	t.Parallel()
	for name, defect := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failing := storetest.Failing(t, storetest.Features{}, func(testing.TB) storetest.Harness {
				m := &mutant{Store: memstore.New(memstore.Options{Split: true})}
				defect.mutate(m)
				return storetest.Harness{Store: m}
			})
			if failing[defect.check] == "" {
				t.Errorf("%q did not fail; those that did: %v", defect.check, failing)
			}
		})
	}
}

// halves is an atomic store whose CommitAll is many writes.
type halves struct{ tablestore.AtomicStore }

func (h halves) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) (etags [][]tablestore.ETag, err error) {
	for _, batch := range batches {
		one, err := h.AtomicStore.CommitAll(ctx, []tablestore.Batch{batch}, nil)
		if err != nil {
			return nil, err
		}
		etags = append(etags, one...)
	}
	if applied != nil {
		applied(etags)
	}
	return etags, nil
}

// mute is an atomic store that never tells what it has applied.
type mute struct{ tablestore.AtomicStore }

func (m mute) CommitAll(
	ctx context.Context, batches []tablestore.Batch, _ func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	return m.AtomicStore.CommitAll(ctx, batches, nil)
}

func TestDefectsOfAtomicAndDurableStoresAreDetected(t *testing.T) {
	t.Parallel()
	atomic := func() tablestore.Store { return memstore.New(memstore.Options{}) }
	for name, test := range map[string]struct {
		features storetest.Features
		open     func() storetest.Harness
		check    string
	}{
		"CommitAll is many writes": {storetest.Features{Atomic: true}, func() storetest.Harness {
			return storetest.Harness{Store: halves{atomic().(tablestore.AtomicStore)}}
		}, "atomic/batches of many partitions and tables are one write"},
		"applied is not told": {storetest.Features{Atomic: true}, func() storetest.Harness {
			return storetest.Harness{Store: mute{atomic().(tablestore.AtomicStore)}}
		}, "atomic/applied is told the versions once, of a write that is made"},
		"there is no CommitAll": {storetest.Features{Atomic: true}, func() storetest.Harness {
			return storetest.Harness{Store: memstore.New(memstore.Options{Split: true})}
		}, "atomic/a later op sees the earlier one"},
		"there is a CommitAll": {storetest.Features{}, func() storetest.Harness {
			return storetest.Harness{Store: atomic()}
		}, "split/the store has no CommitAll"},
		"a reopen forgets": {storetest.Features{Atomic: true, Durable: true}, func() storetest.Harness {
			return storetest.Harness{Store: atomic(), Reopen: func(testing.TB) tablestore.Store { return atomic() }}
		}, "durable/a reopened store has the same rows"},
	} {
		failing := storetest.Failing(t, test.features, func(testing.TB) storetest.Harness { return test.open() })
		if failing[test.check] == "" {
			t.Errorf("%s: %q did not fail; those that did: %v", name, test.check, failing)
		}
	}
}

func TestACorrectStorePassesEveryCheck(t *testing.T) {
	t.Parallel()
	failing := storetest.Failing(t, storetest.Features{Atomic: true}, func(testing.TB) storetest.Harness {
		return storetest.Harness{Store: memstore.New(memstore.Options{})}
	})
	if len(failing) > 0 {
		t.Errorf("failing checks: %v", failing)
	}
}
