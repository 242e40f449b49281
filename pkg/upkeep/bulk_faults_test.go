package upkeep_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// ownRival is a store that lost a reply, asked again by itself, and reports a
// conflict with the write that it made.
var ownRival = storetest.Fault{Call: storetest.CommitCall, After: true, Err: &tablestore.ConflictError{}}

// Whatever single call to the store fails or loses its reply, of the ledger or
// of this package: each job gets one rerun, and the operation ends with the sum
// of its items.
func TestBulk_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{false, true} {
		for name, fault := range map[string]storetest.Fault{
			"before": {}, "after": {After: true}, "as its own rival": ownRival,
		} {
			t.Run(fmt.Sprintf("atomic %t, %s", atomic, name), func(t *testing.T) {
				t.Parallel()
				calls := workOff(t, atomic, storetest.Fault{Nth: 1 << 30})
				if calls < 40 {
					t.Fatalf("%d calls are too few to be true", calls)
				}
				for nth := 1; nth <= calls; nth++ {
					fault.Nth = nth
					workOff(t, atomic, fault)
				}
			})
		}
	}
}

// workOff makes and works off an operation under one fault. It returns how many
// calls the store got until the operation was over, which is so after 10 s
// where nothing fails.
func workOff(t *testing.T, atomic bool, fault storetest.Fault) int {
	t.Helper()
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		counted, counter := storetest.Counting(memstore.New(memstore.Options{Split: !atomic}))
		store, faults := storetest.Faulty(counted)
		w := open(t, store)
		for range 3 {
			w.fail(t, "t", "OCR", "x")
		}
		r := runner(t, w.Failures)
		counter.Reset()
		faults.Plan(fault)
		op, err := w.Create(t.Context(), "key", upkeep.BulkRequest{RatePerSecond: 2})
		if err != nil {
			op, err = w.Create(t.Context(), "key", upkeep.BulkRequest{RatePerSecond: 2})
		}
		if err != nil {
			t.Fatalf("fault %+v: %v", fault, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var group sync.WaitGroup
		group.Go(func() { _ = r.Loop().Run(ctx) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		counts := counter.Counts()
		calls = int(counts.Gets + counts.Scans + counts.Commits)
		group.Wait()
		faults.Clear()
		check(t, w, op.ID, fault)
	})
	return calls
}

// check looks at an operation over three jobs of the tenant t that is done.
func check(t *testing.T, w *world, id string, fault storetest.Fault) {
	t.Helper()
	page := get(t, w.Failures, id)
	if page.State != upkeep.OperationDone || page.Counts != (upkeep.Counts{Rerun: 3}) || len(page.Items) != 3 {
		t.Errorf("fault %+v: %+v, %v", fault, page.Operation, page.Items)
	}
	for _, item := range page.Items {
		agg, err := w.Job(t.Context(), item.NewJobID)
		if item.Outcome != upkeep.ItemRerun || err != nil || agg.Job.RerunOf != item.JobID {
			t.Errorf("fault %+v: %+v, %v", fault, item, err)
		}
	}
	if all := w.jobsOf(t, "t"); len(all) != 6 {
		t.Errorf("fault %+v: %d jobs, want three and their reruns", fault, len(all))
	}
	rows, err := w.store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "retries"})
	if err != nil || len(rows.Rows) > 2 {
		t.Errorf("fault %+v: %d rows, %v", fault, len(rows.Rows), err)
	}
}
