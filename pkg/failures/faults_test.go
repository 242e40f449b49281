package failures_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// Whatever single call to the store fails or loses its reply, of the ledger or
// of this package: each job gets one rerun, and the operation ends with the sum
// of its items.
func TestRunner_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("atomic %t, after %t", atomic, after), func(t *testing.T) {
				t.Parallel()
				for nth := 1; sweep(t, atomic, storetest.Fault{Nth: nth, After: after}); nth++ {
					if nth > 1000 {
						t.Fatal("the sweep has no end")
					}
				}
			})
		}
	}
}

// sweep makes and works off an operation under one fault. It reports whether
// there were as many calls.
func sweep(t *testing.T, atomic bool, fault storetest.Fault) (struck bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		counted, counter := storetest.Counting(memstore.New(memstore.Options{Split: !atomic}))
		store, faults := storetest.Faulty(counted)
		w := open(t, store)
		for range 3 {
			w.fail(t, "t", "OCR", "x")
		}
		r := runner(t, w.Service)
		counter.Reset()
		faults.Plan(fault)
		op, err := w.Create(t.Context(), "key", failures.Request{RatePerSecond: 2})
		for tries := 0; err != nil; tries++ {
			if tries == 3 {
				t.Fatalf("fault %+v: %v", fault, err)
			}
			op, err = w.Create(t.Context(), "key", failures.Request{RatePerSecond: 2})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		calls := counter.Counts()
		struck = calls.Gets+calls.Scans+calls.Commits >= int64(fault.Nth) && fault.Nth < 80
		faults.Clear()
		check(t, w, op.ID, fault)
	})
	return struck
}

// check looks at an operation over three jobs of the tenant t that is done.
func check(t *testing.T, w *world, id string, fault storetest.Fault) {
	t.Helper()
	page := get(t, w.Service, id)
	if page.State != failures.Done || page.Counts != (failures.Counts{Rerun: 3}) || len(page.Items) != 3 {
		t.Errorf("fault %+v: %+v, %v", fault, page.Operation, page.Items)
	}
	for _, item := range page.Items {
		agg, err := w.Job(t.Context(), item.NewJobID)
		if item.Outcome != failures.Rerun || err != nil || agg.Job.RerunOf != item.JobID {
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
