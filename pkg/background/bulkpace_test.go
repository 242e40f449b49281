package background_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
)

// A worker changes the first job at once, and leaves the others to later workers. This runs on a real
// clock, which moves on while a worker looks at its pace.
func TestBulk_ARunAtALowRateChangesAJob(t *testing.T) {
	t.Parallel()
	jobs := newSketch(2)
	service := serve(t, jobs, ledgertest.Split())
	op := create(t, service, "", background.BulkRequest{RatePerSecond: background.MinBulkRate})
	runOnce(t, runner(t, service))
	if page := get(t, service, op.ID); page.State != background.OperationRunning || page.Applied != 1 {
		t.Errorf("%+v", page.Operation)
	}
}

// An operation whose jobs are further apart than its lease is long frees its permit between them.
func TestBulk_KeepsToARateThatIsSlowerThanItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(3)
		service := serve(t, jobs, ledgertest.Split())
		slow := create(t, service, "", background.BulkRequest{RatePerSecond: background.MinBulkRate})
		stop := running(t, runner(t, service, func(c *background.BulkConfig) { c.Parallel = 1 }).Loop())
		time.Sleep(10 * time.Second)
		other := create(t, service, "", background.BulkRequest{JobIDs: []string{"gone"}})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if page := get(t, service, other.ID); page.State != background.OperationDone {
			t.Errorf("the other operation waits: %+v", page.Operation)
		}
		time.Sleep(190 * time.Second)
		synctest.Wait()
		if page := get(t, service, slow.ID); page.State != background.OperationDone || page.Applied != 3 {
			t.Errorf("%+v", page.Operation)
		}
		for i, start := range jobs.starts[1:] {
			if gap := start.Sub(jobs.starts[i]); gap < 100*time.Second-time.Millisecond {
				t.Errorf("rerun %d began %s after the one before", i+1, gap)
			}
		}
		stop()
	})
}
