package background_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// failInLine adds failed jobs of one line.
func failInLine(s *sketch, tenant string, n int) []string {
	ids := s.fail(tenant, n, "x")
	for _, id := range ids {
		s.jobs[id].Job.Place.Line = tenant + ".line"
	}
	return ids
}

// The jobs of a line get their places in the order of their reruns.
func TestBulk_RerunsNamedJobsInTheirOrder(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func() error{
		"the first takes longest": func() error { time.Sleep(300 * time.Millisecond); return nil },
		"tenant at its limit":     func() error { return ledger.ErrTenantLimit },
		"store unavailable":       func() error { return tablestore.ErrUnavailable },
		"outcome unknown":         func() error { return tablestore.ErrUnknown },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				jobs := newSketch(0)
				named := failInLine(jobs, "t", 50)
				var mu sync.Mutex
				var tried bool
				var rerun []string
				jobs.veto = func(agg *statemachine.Aggregate) error {
					if agg.Job.ID == named[0] && !tried {
						tried = true
						if err := first(); err != nil {
							return err
						}
					}
					mu.Lock()
					defer mu.Unlock()
					rerun = append(rerun, agg.Job.ID)
					return nil
				}
				service := serve(t, jobs, ledgertest.Split())
				op := create(t, service, "", background.BulkRequest{JobIDs: named})
				runOn(t, service, op.ID)
				if page := get(t, service, op.ID); page.Applied != len(named) || !slices.Equal(rerun, named) {
					t.Errorf("%+v: reruns of %v, want %v", page.Counts, rerun, named)
				}
			})
		})
	}
}

// Jobs of one tenant have no order with those of another.
func TestBulk_ATenantAtItsLimitHoldsUpNoOtherNamedJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		full, other := failInLine(jobs, "full", 50), failInLine(jobs, "other", 50)
		until := time.Now().Add(time.Minute)
		var mu sync.Mutex
		var rerun []string
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.TenantID == "full" && time.Now().Before(until) {
				return ledger.ErrTenantLimit
			}
			mu.Lock()
			defer mu.Unlock()
			rerun = append(rerun, agg.Job.ID)
			return nil
		}
		var named []string
		for i := range full {
			named = append(named, full[i], other[i])
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{JobIDs: named})
		var group sync.WaitGroup
		group.Go(func() { runOn(t, service, op.ID) })
		time.Sleep(30 * time.Second)
		synctest.Wait()
		mu.Lock()
		if !slices.Equal(rerun, other) {
			t.Errorf("while a tenant is at its limit: reruns of %v, want %v", rerun, other)
		}
		mu.Unlock()
		group.Wait()
		if page := get(t, service, op.ID); page.Applied != 100 || !slices.Equal(rerun[50:], full) {
			t.Errorf("in the end: %+v, reruns of %v, want %v", page.Counts, rerun[50:], full)
		}
	})
}

// The jobs that wait in a line count towards the limit of their tenant, so it may have no room for
// other reruns until that of the job that blocks the line, for which there always is.
func TestBulk_ANamedJobHoldsUpOnlyItsLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		blocker := failInLine(jobs, "t", 1)[0]
		named := append(jobs.fail("t", 3, "x"), blocker)
		room := false
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.ID != blocker && !room {
				return ledger.ErrTenantLimit
			}
			room = true
			return nil
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{JobIDs: named})
		runOn(t, service, op.ID)
		if page := get(t, service, op.ID); page.Applied != len(named) {
			t.Errorf("%+v", page.Counts)
		}
	})
}
