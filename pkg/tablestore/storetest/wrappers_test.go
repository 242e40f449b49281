package storetest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// TestWrappersAreStores runs the suite on both wrappers, without planned
// faults.
func TestWrappersAreStores(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]memstore.Options{"atomic": {}, "split": {Split: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, storetest.Features{Atomic: !options.Split}, func(testing.TB) storetest.Harness {
				counted, _ := storetest.Counting(memstore.New(options))
				store, _ := storetest.Faulty(counted)
				return storetest.Harness{Store: store, Tables: [2]string{"first", "second"}}
			})
		})
	}
}

func key(row string) tablestore.Key {
	return tablestore.Key{Table: "table", Partition: "p", Row: row}
}

func putRow(row string) tablestore.Batch {
	return tablestore.Batch{{Verb: tablestore.Put, Key: key(row)}}
}

func TestCounting(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	all := tablestore.Query{Table: "table", Partition: "p"}
	_, errAbsent := store.Get(t.Context(), key("a"))
	_, errOne := store.Commit(t.Context(), append(putRow("a"), putRow("b")...))
	_, errAll := store.(tablestore.AtomicStore).CommitAll(t.Context(), []tablestore.Batch{putRow("c"), putRow("d")}, nil)
	_, errGet := store.Get(t.Context(), key("a"))
	_, errScan := store.Scan(t.Context(), all)
	if err := errors.Join(errOne, errAll, errGet, errScan); err != nil || !errors.Is(errAbsent, tablestore.ErrNotFound) {
		t.Fatal(errAbsent, err)
	}
	want := storetest.Counts{Gets: 2, Scans: 1, RowsRead: 5, Commits: 2, Batches: 3, Ops: 4}
	if diff := cmp.Diff(want, counter.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	counter.Reset()
	if got := counter.Counts(); got != (storetest.Counts{}) {
		t.Errorf("counts after a reset: %+v", got)
	}
}

func TestFaultsStrikeBeforeOrAfter(t *testing.T) {
	t.Parallel()
	own := errors.New("the test's own")
	for name, test := range map[string]struct {
		fault   storetest.Fault
		want    []error // Of four commits.
		written []bool
	}{
		"the next call":    {storetest.Fault{}, []error{tablestore.ErrUnavailable, nil, nil, nil}, []bool{false, true, true, true}},
		"the third commit": {storetest.Fault{Call: storetest.CommitCall, Nth: 3}, []error{nil, nil, tablestore.ErrUnavailable, nil}, []bool{true, true, false, true}},
		"a lost reply":     {storetest.Fault{Nth: 2, After: true}, []error{nil, tablestore.ErrUnknown, nil, nil}, []bool{true, true, true, true}},
		"a crash":          {storetest.Fault{Nth: 3, Onwards: true}, []error{nil, nil, tablestore.ErrUnavailable, storetest.ErrInjected}, []bool{true, true, false, false}},
		"a custom error":   {storetest.Fault{Err: own}, []error{own, nil, nil, nil}, []bool{false, true, true, true}},
		"another table":    {storetest.Fault{Table: "other", Onwards: true}, make([]error, 4), []bool{true, true, true, true}},
		"other calls only": {storetest.Fault{Call: storetest.GetCall, Onwards: true}, make([]error, 4), []bool{true, true, true, true}},
	} {
		for _, options := range []memstore.Options{{}, {Split: true}} {
			store, faults := storetest.Faulty(memstore.New(options))
			faults.Plan(test.fault)
			rows := []string{"a", "b", "c", "d"}
			for i, row := range rows {
				_, err := store.Commit(t.Context(), putRow(row))
				if !errors.Is(err, test.want[i]) || test.want[i] == nil && err != nil {
					t.Errorf("%s: commit %d: %v, want %v", name, i, err, test.want[i])
				}
			}
			faults.Clear()
			for i, row := range rows {
				if _, err := store.Get(t.Context(), key(row)); (err == nil) != test.written[i] {
					t.Errorf("%s: row %d: %v, written %t", name, i, err, test.written[i])
				}
			}
		}
	}
}

func TestFaultsOfReads(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	if _, err := store.Commit(t.Context(), putRow("a")); err != nil {
		t.Fatal(err)
	}
	faults.Plan(storetest.Fault{Call: storetest.GetCall}, storetest.Fault{Call: storetest.ScanCall, After: true})
	if _, err := store.Get(t.Context(), key("a")); !errors.Is(err, storetest.ErrInjected) {
		t.Errorf("get: %v, want ErrInjected", err)
	}
	page, err := store.Scan(t.Context(), tablestore.Query{Table: "table", Partition: "p"})
	if !errors.Is(err, storetest.ErrInjected) || len(page.Rows) != 0 {
		t.Errorf("scan: %d rows, %v, want ErrInjected", len(page.Rows), err)
	}
	if _, err := store.Get(t.Context(), key("a")); err != nil {
		t.Errorf("get after the fault: %v", err)
	}
}

func TestARefusedCallWithALostReplyReturnsTheRefusal(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	insert := tablestore.Batch{{Verb: tablestore.Insert, Key: key("a")}}
	if _, err := store.Commit(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	faults.Plan(storetest.Fault{After: true})
	if _, err := store.Commit(t.Context(), insert); errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("commit: %v, want the conflict", err)
	}
}

func TestFaultsCountIndependently(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	faults.Plan(storetest.Fault{Nth: 2}, storetest.Fault{Call: storetest.CommitCall, Nth: 2, After: true})
	var got []bool
	for range 3 {
		_, err := store.Commit(t.Context(), putRow("a"))
		got = append(got, errors.Is(err, tablestore.ErrUnavailable))
	}
	if diff := cmp.Diff([]bool{false, true, false}, got); diff != "" {
		t.Errorf("commits that failed before they took effect (-want +got):\n%s", diff)
	}
}
