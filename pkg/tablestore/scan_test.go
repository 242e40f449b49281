package tablestore_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestScanAll_ReadsEveryPage(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	for n := range 7 {
		if _, err := store.Commit(t.Context(), putRow(strconv.Itoa(n))); err != nil {
			t.Fatal(err)
		}
	}
	query := tablestore.Query{Table: key("").Table, Partition: key("").Partition, From: "1", Limit: 2}
	rows, err := tablestore.ScanAll(t.Context(), store, query)
	if err != nil || len(rows) != 6 || rows[0].Key.Row != "1" || rows[5].Key.Row != "6" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	faults.Plan(storetest.Fault{Call: storetest.ScanCall, Nth: 2})
	if rows, err := tablestore.ScanAll(t.Context(), store, query); !errors.Is(err, tablestore.ErrUnavailable) || rows != nil {
		t.Errorf("%d rows, %v, want the error of the second page", len(rows), err)
	}
}
