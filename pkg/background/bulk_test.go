package background_test

import (
	gocmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestBulk_RerunsEachJobAndStoresTheOutcome(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		w := open(t, store)
		failed, repeated := w.fail("t", "x"), w.fail("t", "x")
		there := w.RerunOf(repeated, ledger.FromFailed)
		done := w.accept("t", "OCR")
		w.end(statemachine.ResultSucceeded, "")
		op, err := w.Operations.Create(ledger.WithCaller(t.Context(), "ops-1"), "", background.BulkRequest{
			JobIDs: []string{failed, repeated, done, "gone"}, Reason: "fixed", Actor: "operator",
			Edits: background.Edits{From: ledger.FromFailed},
		})
		musttest.NoError(t, err)
		var mu sync.Mutex
		seen := map[background.ItemOutcome]int{}
		r := runner(t, w.Operations, func(c *background.BulkConfig) {
			c.Observe = func(_ background.Kind, o background.ItemOutcome) { mu.Lock(); defer mu.Unlock(); seen[o]++ }
		})
		runOnce(t, r)
		page := get(t, w.Operations, op.ID)
		agg := w.Read(page.Items[0].NewJobID)
		if agg.Job.RerunOf != failed {
			t.Fatalf("the rerun is %+v", agg)
		}
		want := []background.Item{
			{JobID: failed, Outcome: background.ItemApplied, NewJobID: agg.Job.ID},
			{JobID: repeated, Outcome: background.ItemRepeated, NewJobID: there},
			{JobID: done, Outcome: background.ItemSkipped, Detail: "No step is left to execute: every step has succeeded or is resolved."},
			{JobID: "gone", Outcome: background.ItemSkipped, Detail: "There is no such job."},
		}
		if diff := cmp.Diff(want, page.Items); diff != "" {
			t.Errorf("items (-want +got):\n%s", diff)
		}
		if page.Caller != "ops-1" || page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 2, Skipped: 2}) || page.Done() != 4 {
			t.Errorf("%+v", page.Operation)
		}
		if diff := cmp.Diff(map[background.ItemOutcome]int{background.ItemApplied: 1, background.ItemRepeated: 1, background.ItemSkipped: 2}, seen); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
		history := w.Past(agg.Job.ID)
		if history[0].Detail != "fixed" || history[0].Actor != "operator" || history[0].Caller != "ops-1" ||
			history[0].RequestID != op.ID {
			t.Errorf("history %+v", history)
		}
		if again := runOnce(t, r); again != (background.Pass{}) {
			t.Errorf("a finished operation was started again: %+v", again)
		}
	})
}

func TestBulk_KeepsToItsRate(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]time.Duration{
		0.4: 9 * 2500 * time.Millisecond, 1: 9 * time.Second, 20: 9 * 50 * time.Millisecond, 1000: 9 * time.Millisecond,
	} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				jobs := newSketch(10)
				service := serve(t, jobs, ledgertest.Split())
				op := create(t, service, "", background.BulkRequest{RatePerSecond: rate})
				began := time.Now()
				runOnce(t, runner(t, service))
				if took := time.Since(began); took != want {
					t.Errorf("took %s, want %s", took, want)
				}
				gap := time.Duration(float64(time.Second) / rate)
				for i, start := range jobs.starts[1:] {
					if start.Sub(jobs.starts[i]) < gap {
						t.Errorf("rerun %d began %s after the one before", i+1, start.Sub(jobs.starts[i]))
					}
				}
				if page := get(t, service, op.ID); page.State != background.OperationDone || page.Applied != 10 {
					t.Errorf("%+v", page.Operation)
				}
			})
		})
	}
}

func TestBulk_RerunsManyJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		for tenant := range 5 {
			jobs.fail(fmt.Sprint("t", tenant), manyReruns/5+1, "x")
			time.Sleep(time.Second)
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{Limit: manyReruns, RatePerSecond: manyReruns / 10})
		stop := running(t, runner(t, service).Loop())
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if page := get(t, service, op.ID); page.State != background.OperationRunning || page.Done() < manyReruns*4/10 || page.Done() > manyReruns/2+1 {
			t.Errorf("after 5 s: %+v", page.Operation)
		}
		time.Sleep(6 * time.Second)
		page := get(t, service, op.ID)
		if page.State != background.OperationDone || page.Applied != manyReruns || outcomes(page)[background.ItemApplied] != manyReruns ||
			len(jobs.reruns) != manyReruns {
			t.Errorf("%+v, %v, %d reruns", page.Operation, outcomes(page), len(jobs.reruns))
		}
		stop()
	})
}

// After a double click, two operations on the same jobs run in two processes.
func TestBulk_ConcurrentOperationsRerunAJobOnce(t *testing.T) {
	t.Parallel()
	store := ledgertest.Split()
	w := open(t, store)
	for range 6 {
		w.fail("t", "x")
	}
	ops := []background.Operation{
		create(t, w.Operations, "", background.BulkRequest{RatePerSecond: 1000}), create(t, w.Operations, "", background.BulkRequest{RatePerSecond: 1000}),
	}
	var group sync.WaitGroup
	for range 2 {
		r := runner(t, open(t, store).Operations)
		group.Go(func() {
			if _, err := r.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	runOnce(t, runner(t, w.Operations))
	total := map[background.ItemOutcome]int{}
	reruns := map[string]bool{}
	for _, op := range ops {
		page := get(t, w.Operations, op.ID)
		if page.State != background.OperationDone || page.Applied+page.Skipped != 6 {
			t.Errorf("%+v", page.Operation)
		}
		for _, item := range page.Items {
			total[item.Outcome]++
			reruns[item.NewJobID] = true
		}
	}
	if total[background.ItemApplied] != 6 || total[background.ItemRepeated]+total[background.ItemSkipped] != 6 || len(reruns) != 6 {
		t.Errorf("%d reruns, outcomes %v", len(reruns), total)
	}
	if all := w.jobsOf(t, "t"); len(all) != 12 {
		t.Errorf("%d jobs", len(all))
	}
}

func TestBulk_OneRunnerWorksOnAnOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(100)
		store := ledgertest.Split()
		service := serve(t, jobs, store)
		create(t, service, "", background.BulkRequest{RatePerSecond: 1})
		first, second := runner(t, service), runner(t, service)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _, _ = first.RunOnce(ctx) })
		time.Sleep(time.Minute + time.Millisecond)
		synctest.Wait()
		if result := runOnce(t, second); result.Done != 0 {
			t.Errorf("the second runner started on an operation that the first owns: %+v", result)
		}
		if result := runOnce(t, first); result.Done != 0 {
			t.Errorf("the first runner started on it twice: %+v", result)
		}
		if n := jobs.count(); n != 61 {
			t.Errorf("%d reruns in a minute, want 61", n)
		}
		cancel()
		group.Wait()
		if result := runOnce(t, second); result.Done != 1 {
			t.Errorf("the second runner did not take over: %+v", result)
		}
	})
}

// A process crashes while it holds the lease. After the lease has expired, another process
// continues, and recognises the reruns that the first one made but did not store.
func TestBulk_ContinuesAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(50)
		mem := ledgertest.Split()
		store, faults := storetest.Faulty(mem)
		op := create(t, serve(t, jobs, mem), "", background.BulkRequest{RatePerSecond: 10})
		stop := running(t, runner(t, serve(t, jobs, store)).Loop())
		time.Sleep(2500 * time.Millisecond)
		faults.Plan(crash)
		time.Sleep(2500 * time.Millisecond)
		stop()
		before := jobs.count()
		second := serve(t, jobs, mem)
		r := runner(t, second)
		if result := runOnce(t, r); result.Done != 0 {
			t.Error("the lease was ignored")
		}
		time.Sleep(time.Minute)
		runOnce(t, r)
		page := get(t, second, op.ID)
		if page.State != background.OperationDone || page.Applied != 50 || outcomes(page)[background.ItemApplied] != 50 || len(jobs.reruns) != 50 {
			t.Errorf("%+v, %v", page.Operation, outcomes(page))
		}
		if all := jobs.count(); all <= 50 || all > 50+before {
			t.Errorf("%d reruns were requested, so the crash lost no outcome: the test proves nothing", all)
		}
	})
}

func TestBulk_AStopReleasesTheOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(50)
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{RatePerSecond: 10})
		ctx, cancel := context.WithTimeout(t.Context(), 2350*time.Millisecond)
		defer cancel()
		musttest.NoError(t, runner(t, service).Loop().Run(ctx))
		if page := get(t, service, op.ID); page.State != background.OperationRunning || page.Applied != jobs.count() || page.Applied != 24 {
			t.Errorf("%d were rerun, %+v", jobs.count(), page.Operation)
		}
		if result := runOnce(t, runner(t, service)); result.Done != 1 || jobs.count() != 50 {
			t.Errorf("%+v, %d reruns", result, jobs.count())
		}
	})
}

func TestCancel_StopsBetweenItems(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(1000)
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{RatePerSecond: 100})
		var group sync.WaitGroup
		group.Go(func() { runOnce(t, runner(t, service)) })
		time.Sleep(3456 * time.Millisecond)
		cancelled, err := service.Cancel(t.Context(), op.ID)
		if err != nil || cancelled.State != background.OperationCancelled {
			t.Fatalf("%+v, %v", cancelled, err)
		}
		n := jobs.count()
		group.Wait()
		page := get(t, service, op.ID)
		if jobs.count() != n || page.State != background.OperationCancelled || page.Applied != n || outcomes(page)[background.ItemWaiting] != 1000-n {
			t.Errorf("%d were rerun, %d in the end: %+v, %v", n, jobs.count(), page.Operation, outcomes(page))
		}
		if again, err := service.Cancel(t.Context(), op.ID); err != nil || again.State != background.OperationCancelled {
			t.Errorf("second cancel: %+v, %v", again, err)
		}
		if result := runOnce(t, runner(t, service)); result.Done != 0 {
			t.Errorf("a cancelled operation was started: %+v", result)
		}
	})
}

func TestCancel_WhileNoRunnerOwnsTheOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(2)
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{RatePerSecond: 0.01})
		r := runner(t, service)
		runOnce(t, r)
		if _, err := service.Cancel(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if result := runOnce(t, r); result.Done != 0 || jobs.count() != 1 {
			t.Errorf("%+v, with %d reruns", result, jobs.count())
		}
	})
}

func TestBulk_ATenantAtItsLimitHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		jobs.fail("b", 100, "x")
		time.Sleep(time.Second)
		jobs.fail("a", 100, "x")
		full := time.Now().Add(time.Minute)
		var refused atomic.Int32
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.TenantID == "a" && time.Now().Before(full) {
				refused.Add(1)
				return ledger.ErrTenantLimit
			}
			return nil
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{RatePerSecond: 50})
		var group sync.WaitGroup
		group.Go(func() { runOn(t, service, op.ID) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if page := get(t, service, op.ID); page.Applied != 100 || page.Done() != 100 || page.State != background.OperationRunning {
			t.Errorf("while the tenant is at its limit: %+v", page.Operation)
		}
		group.Wait()
		if page := get(t, service, op.ID); page.Applied != 200 || page.State != background.OperationDone {
			t.Errorf("in the end: %+v", page.Operation)
		}
		if n := refused.Load(); n > 120 {
			t.Errorf("jobs of the tenant at its limit were tried %d times in a minute", n)
		}
	})
}

func TestBulk_WaitsForTheStoreDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]error{"unavailable": tablestore.ErrUnavailable, "unknown": tablestore.ErrUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				jobs := newSketch(0)
				all := jobs.fail("t", 30, "x")
				back := time.Now().Add(time.Minute)
				jobs.veto = func(agg *statemachine.Aggregate) error {
					switch {
					case agg.Job.ID == all[3]:
						return errors.New("a secret of /etc")
					case time.Now().Before(back):
						return outage
					}
					return nil
				}
				service := serve(t, jobs, ledgertest.Split())
				op := create(t, service, "", background.BulkRequest{})
				runOn(t, service, op.ID)
				page := get(t, service, op.ID)
				if page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 29, Failed: 1}) {
					t.Errorf("%+v", page.Operation)
				}
				at := slices.IndexFunc(page.Items, func(item background.Item) bool { return item.Outcome == background.ItemFailed })
				want := background.Item{
					JobID: all[3], Outcome: background.ItemFailed, Detail: "The change failed for an internal reason, which is in the log.",
				}
				if diff := cmp.Diff(want, page.Items[at]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestBulk_RemovesOperationsAfterSevenDays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(150)
		store := ledgertest.Split()
		service := serve(t, jobs, store)
		op := create(t, service, "key", background.BulkRequest{})
		r := runner(t, service)
		runOnce(t, r)
		time.Sleep(7*24*time.Hour - time.Minute)
		if result := runOnce(t, r); result.Removed != 0 {
			t.Fatalf("removed too early: %+v", result)
		}
		time.Sleep(2 * time.Minute)
		if result := runOnce(t, r); result.Removed != 1 {
			t.Fatalf("not removed: %+v", result)
		}
		if _, err := service.Get(t.Context(), op.ID, "", 1, ""); err == nil {
			t.Error("the removed operation can still be read")
		}
		all, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "operations"})
		if err != nil || len(all.Rows) != 0 {
			t.Errorf("left %d rows, %v", len(all.Rows), err)
		}
	})
}

// Two runners remove one operation, and a client uses its key again before the slower one is done.
func TestBulk_ALateRemovalKeepsANewOperationWithTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs, store := newSketch(3), ledgertest.Split()
		service := serve(t, jobs, store)
		old := create(t, service, "key", background.BulkRequest{})
		runOnce(t, runner(t, service))
		time.Sleep(7*24*time.Hour + time.Minute)
		var fresh background.Operation
		slow := storetest.BeforeCommit(store, func(batch tablestore.Batch) error {
			last := slices.ContainsFunc(batch, func(op tablestore.Op) bool { return strings.HasPrefix(op.Key.Row, "head") })
			if last && fresh.ID == "" {
				runOnce(t, runner(t, service))
				fresh = create(t, service, "key", background.BulkRequest{})
			}
			return nil
		})
		if pass := runOnce(t, runner(t, serve(t, jobs, slow))); pass.Removed != 1 {
			t.Errorf("the slow runner: %+v", pass)
		}
		page, err := service.Get(t.Context(), fresh.ID, "", 10, "")
		if err != nil || fresh.ID != old.ID || page.Set != fresh.Set || page.Set == old.Set || len(page.Items) != 3 {
			t.Fatalf("%v, the new operation %+v after the old one %+v", err, page, old)
		}
		runOnce(t, runner(t, service))
		if page := get(t, service, fresh.ID); page.State != background.OperationDone {
			t.Errorf("the new operation is %+v", page.Operation)
		}
		all, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "operations"})
		if err != nil || len(all.Rows) != 2 {
			t.Errorf("%d rows, want the HEAD and its entry: %v", len(all.Rows), err)
		}
	})
}

func TestBulk_BoundsConcurrentOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(10)
		service := serve(t, jobs, ledgertest.Split())
		for range 3 {
			create(t, service, "", background.BulkRequest{RatePerSecond: 1})
		}
		r := runner(t, service, func(c *background.BulkConfig) { c.Parallel = 2 })
		if result := runOnce(t, r); result.Done != 2 {
			t.Errorf("%+v", result)
		}
		if result := runOnce(t, r); result.Done != 1 {
			t.Errorf("%+v", result)
		}
	})
}

// runOn makes one pass per second, for at most two minutes, until the operation is over.
func runOn(t *testing.T, service *background.Operations, id string) {
	t.Helper()
	r := runner(t, service)
	for range 120 {
		if runOnce(t, r); get(t, service, id).State != background.OperationRunning {
			return
		}
		time.Sleep(time.Second)
	}
}

// An operation that waits for its rate, or for a tenant at its limit, frees its permit for
// another, and continues later at its rate.
func TestBulk_AWaitingOperationFreesItsPermit(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]bool{"rate": false, "tenant": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				jobs := newSketch(0)
				slow := jobs.fail("t", 2, "x")
				time.Sleep(time.Second)
				other := jobs.fail("other", 1, "x")
				until := time.Now().Add(30 * time.Second)
				jobs.veto = func(agg *statemachine.Aggregate) error {
					if full && agg.Job.TenantID == "t" && time.Now().Before(until) {
						return ledger.ErrTenantLimit
					}
					return nil
				}
				rate := 0.1
				if full {
					rate = 20
				}
				service := serve(t, jobs, ledgertest.Split())
				first := create(t, service, "", background.BulkRequest{JobIDs: slow, RatePerSecond: rate})
				stop := running(t, runner(t, service, func(c *background.BulkConfig) { c.Parallel = 1 }).Loop())
				time.Sleep(time.Second)
				second := create(t, service, "", background.BulkRequest{JobIDs: other})
				time.Sleep(7 * time.Second)
				synctest.Wait()
				if page := get(t, service, second.ID); page.State != background.OperationDone {
					t.Errorf("the other operation waits: %+v", page.Operation)
				}
				if page := get(t, service, first.ID); page.State != background.OperationRunning {
					t.Errorf("the waiting operation: %+v", page.Operation)
				}
				time.Sleep(time.Minute)
				if page := get(t, service, first.ID); page.State != background.OperationDone || page.Applied != 2 {
					t.Errorf("the waiting operation a minute later: %+v", page.Operation)
				}
				if n := len(jobs.starts); !full && jobs.starts[n-1].Sub(jobs.starts[0]) < 10*time.Second-time.Millisecond {
					t.Errorf("reruns at %v", jobs.starts)
				}
				stop()
			})
		})
	}
}

func TestBulk_AJobThatKeepsFailingHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		all := jobs.fail("t", 40, "x")
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.ID == all[0] {
				return tablestore.ErrUnavailable
			}
			return nil
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{})
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if _, err := runner(t, service).RunOnce(ctx); err != nil {
			t.Fatal(err)
		}
		page := get(t, service, op.ID)
		if page.State != background.OperationRunning || page.Applied != 39 || page.Items[0].Outcome != background.ItemWaiting {
			t.Errorf("%+v, %+v", page.Operation, page.Items[0])
		}
	})
}

// A runner that stalls for longer than its lease leaves the operation to the runner that
// took it over.
func TestBulk_AStalledRunnerChangesNothing(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"with a rerun": nil, "with a tenant at its limit": ledger.ErrTenantLimit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				jobs := newSketch(10)
				var stalled atomic.Bool
				jobs.veto = func(*statemachine.Aggregate) error {
					if jobs.count() == 3 && stalled.CompareAndSwap(false, true) {
						time.Sleep(2 * time.Minute)
						return answer
					}
					return nil
				}
				service := serve(t, jobs, ledgertest.Split())
				op := create(t, service, "", background.BulkRequest{RatePerSecond: 1})
				var group sync.WaitGroup
				group.Go(func() { runOnce(t, runner(t, service)) })
				time.Sleep(time.Minute)
				if result := runOnce(t, runner(t, service)); result.Done != 1 {
					t.Fatalf("the second runner did not take over: %+v", result)
				}
				before := get(t, service, op.ID)
				group.Wait()
				after := get(t, service, op.ID)
				if after.State != background.OperationDone || after.Applied != 10 || len(jobs.reruns) != 10 {
					t.Errorf("%+v, %d reruns", after.Operation, len(jobs.reruns))
				}
				if diff := cmp.Diff(before.Items, after.Items); diff != "" || !after.UpdatedAt.Equal(before.UpdatedAt) {
					t.Errorf("changed at %s and at %s (-before +after):\n%s", before.UpdatedAt, after.UpdatedAt, diff)
				}
			})
		})
	}
}

// crash makes the store of a process reject all commits.
var crash = storetest.Fault{Call: storetest.CommitCall, Onwards: true}

// ownConflict is a commit whose reply is lost: the driver repeats it, and reports a
// conflict with its own write.
var ownConflict = storetest.Fault{Call: storetest.CommitCall, After: true, Err: &tablestore.ConflictError{}}

// Any one store call of the ledger or of this package fails or loses its reply. Each job
// still gets one rerun, or is cancelled, and the operation ends with the sum of its items.
func TestBulk_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	for _, work := range []struct {
		kind   background.Kind
		atomic bool
	}{{background.KindRetry, false}, {background.KindRetry, true}, {background.KindCancel, false}} {
		for name, fault := range map[string]storetest.Fault{
			"before": {}, "after": {After: true}, "with its own write": ownConflict,
		} {
			t.Run(fmt.Sprintf("%s, atomic %t, %s", work.kind, work.atomic, name), func(t *testing.T) {
				t.Parallel()
				calls := runWithFault(t, work.kind, work.atomic, storetest.Fault{Nth: 1 << 30})
				if calls < 40 {
					t.Fatalf("only %d store calls were counted", calls)
				}
				for nth := 1; nth <= calls; nth++ {
					fault.Nth = nth
					runWithFault(t, work.kind, work.atomic, fault)
				}
			})
		}
	}
}

// runWithFault creates and completes an operation under one fault. It returns how many
// calls the store got in the first 10 s, in which an operation without a fault ends.
func runWithFault(t *testing.T, kind background.Kind, atomic bool, fault storetest.Fault) int {
	t.Helper()
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		counted, counter := storetest.Counting(memstore.New(memstore.Options{Split: !atomic}))
		store, faults := storetest.Faulty(counted)
		w := open(t, store)
		for range 3 {
			if kind == background.KindRetry {
				w.fail("t", "x")
			} else {
				w.accept("t", "OCR")
			}
		}
		r := runner(t, w.Operations)
		counter.Reset()
		faults.Plan(fault)
		request := background.BulkRequest{Kind: kind, All: true, RatePerSecond: 2, Reason: "why"}
		op, err := w.Create(t.Context(), "key", request)
		if err != nil {
			op, err = w.Create(t.Context(), "key", request)
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

// check checks a completed operation over three jobs of the tenant t.
func check(t *testing.T, w *world, id string, fault storetest.Fault) {
	t.Helper()
	page := get(t, w.Operations, id)
	if page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 3}) || len(page.Items) != 3 {
		t.Errorf("fault %+v: %+v, %v", fault, page.Operation, page.Items)
	}
	for _, item := range page.Items {
		agg, err := w.Job(t.Context(), gocmp.Or(item.NewJobID, item.JobID))
		if item.Outcome != background.ItemApplied || err != nil ||
			page.Kind == background.KindRetry && agg.Job.RerunOf != item.JobID ||
			page.Kind == background.KindCancel && agg.Job.State != statemachine.JobCancelled {
			t.Errorf("fault %+v: %+v, %v", fault, item, err)
		}
	}
	want := 3
	if page.Kind == background.KindRetry {
		want = 6 // with the reruns
	}
	if all := w.jobsOf(t, "t"); len(all) != want {
		t.Errorf("fault %+v: %d jobs, want %d", fault, len(all), want)
	}
	rows, err := w.Store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "operations"})
	if err != nil || len(rows.Rows) > 3 { // A HEAD, its entry, and that of a draft.
		t.Errorf("fault %+v: %d rows, %v", fault, len(rows.Rows), err)
	}
}
