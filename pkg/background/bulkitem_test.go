package background_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A filter selects only jobs that are FAILED_FINAL, whatever the index says; a cancelled job
// is rerun only if the request names it.
func TestBulk_ChecksTheJobAgainstTheFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		id := jobs.fail("t", 1, "x")[0]
		service := serve(t, jobs, ledgertest.Split())
		byFilter, byName := create(t, service, "", background.BulkRequest{}), create(t, service, "", background.BulkRequest{JobIDs: []string{id}})
		jobs.jobs[id].Job.State = statemachine.JobCancelled
		runOnce(t, runner(t, service))
		want := []background.Item{{JobID: id, Outcome: background.ItemSkipped, Detail: "The job no longer matches: it is CANCELLED."}}
		if diff := cmp.Diff(want, get(t, service, byFilter.ID).Items); diff != "" {
			t.Errorf("by filter (-want +got):\n%s", diff)
		}
		if page := get(t, service, byName.ID); page.Items[0].Outcome != background.ItemApplied {
			t.Errorf("by name: %+v", page.Items)
		}
	})
}

// A job that was rerun from the other starting point after it was selected gets no second
// rerun, unless the request names it.
func TestBulk_AFilterRerunsNoJobTwice(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	id := w.fail("t", "x")
	byFilter, byName := create(t, w.Operations, "", background.BulkRequest{}), create(t, w.Operations, "", background.BulkRequest{JobIDs: []string{id}})
	there := w.RerunOf(id, ledger.FromStart)
	runOnce(t, runner(t, w.Operations))
	want := []background.Item{{
		JobID: id, Outcome: background.ItemSkipped, NewJobID: there, Detail: "The job no longer matches: it was rerun.",
	}}
	if diff := cmp.Diff(want, get(t, w.Operations, byFilter.ID).Items); diff != "" {
		t.Errorf("by filter (-want +got):\n%s", diff)
	}
	if page := get(t, w.Operations, byName.ID); page.Items[0].Outcome != background.ItemApplied {
		t.Errorf("by name: %+v", page.Items)
	}
}

// A failure whose rerun was cancelled is unresolved again, so a filter selects it, and its name reruns it.
func TestBulk_RerunsACancelledRerun(t *testing.T) {
	t.Parallel()
	for name, named := range map[string]bool{"by filter": false, "by name": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, ledgertest.Split())
			id := w.fail("t", "x")
			there := w.RerunOf(id, ledger.FromFailed)
			w.Apply(there, statemachine.Cancel{})
			request := background.BulkRequest{}
			if named {
				request.JobIDs = []string{id}
			}
			op := create(t, w.Operations, "", request)
			runOnce(t, runner(t, w.Operations))
			page := get(t, w.Operations, op.ID)
			if len(page.Items) != 1 || page.Items[0].Outcome != background.ItemApplied {
				t.Fatalf("items %+v", page.Items)
			}
			agg := w.Read(page.Items[0].NewJobID)
			if agg.Job.State.Terminal() || agg.Job.RerunOf != there {
				t.Errorf("the rerun is %+v", agg)
			}
		})
	}
}

// A process crashes after it has rerun the cancelled rerun of a named job, and that rerun is cancelled too before
// another process takes over. It is recognised, and not rerun itself.
func TestBulk_ATakeoverKnowsItsRerunOfACancelledRerun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := ledgertest.Split()
		store, faults := storetest.Faulty(mem)
		w := open(t, mem)
		id := w.fail("acme", "x")
		there := w.RerunOf(id, ledger.FromFailed)
		w.Apply(there, statemachine.Cancel{})
		op := create(t, w.Operations, "", background.BulkRequest{JobIDs: []string{id}})
		tries := 0
		dying := background.NewOperations(background.OperationsConfig{
			Ledger: w.Ledger, Store: store, Table: table, Commands: &telltale{accepting(t, w.Ledger), func() {
				if tries++; tries == 2 { // The first try finds the cancelled rerun.
					faults.Plan(crash)
				}
			}},
		})
		runOnce(t, runner(t, dying))
		made, err := w.SupersededBy(t.Context(), &w.Read(id).Job)
		musttest.NoError(t, err)
		w.Apply(made, statemachine.Cancel{})
		time.Sleep(time.Minute)
		runOnce(t, runner(t, w.Operations))
		page, jobs := get(t, w.Operations, op.ID), w.jobsOf(t, "acme")
		if item := page.Items[0]; item.Outcome != background.ItemApplied || item.NewJobID != made || len(jobs) != 3 {
			t.Errorf("the rerun %s is told as %+v; there are %d jobs", made, item, len(jobs))
		}
	})
}

// fullOnce refuses the first rerun of one job: its tenant is at its limit.
type fullOnce struct {
	background.Rerunner
	jobID   string
	refused bool
}

func (f *fullOnce) Rerun(ctx context.Context, r commands.Rerun) (ledger.Accepted, error) {
	if r.JobID == f.jobID && !f.refused {
		f.refused = true
		return ledger.Accepted{}, ledger.ErrTenantLimit
	}
	return f.Rerunner.Rerun(ctx, r)
}

// The replay of a cancelled rerun is no outcome: if the cancelled one cannot be rerun yet, the job waits.
func TestBulk_AJobWaitsIfItsCancelledRerunCannotBeRerunYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		id := w.fail("t", "x")
		there := w.RerunOf(id, ledger.FromFailed)
		w.Apply(there, statemachine.Cancel{})
		full := &fullOnce{Rerunner: accepting(t, w.Ledger), jobID: there}
		service := background.NewOperations(background.OperationsConfig{
			Ledger: w.Ledger, Commands: full, Store: w.Store, Table: table,
		})
		op := create(t, service, "", background.BulkRequest{})
		runOn(t, service, op.ID)
		page := get(t, service, op.ID)
		if !full.refused || page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 1}) {
			t.Fatalf("%+v, items %+v", page.Operation, page.Items)
		}
		if agg := w.Read(page.Items[0].NewJobID); page.Items[0].Outcome != background.ItemApplied || agg.Job.RerunOf != there {
			t.Errorf("item %+v, its rerun %+v", page.Items[0], agg)
		}
	})
}

// The detail of an item fits into its row, however long the key of the payload is that it names.
func TestBulk_ALongReasonHoldsUpNoOtherJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		all := jobs.fail("t", 50, "x")
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.ID != all[7] {
				return nil
			}
			return &apierror.Error{Code: apierror.PayloadInvalid, Errors: []apierror.Violation{{
				Pointer: "/payload/" + strings.Repeat("é", 40_000), Message: "is not allowed here",
			}}}
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{})
		runOn(t, service, op.ID)
		page := get(t, service, op.ID)
		if page.State != background.OperationDone || page.Counts != (background.Counts{Applied: 49, Skipped: 1}) {
			t.Fatalf("%+v", page.Operation)
		}
		for _, item := range page.Items {
			want := ""
			if item.JobID == all[7] {
				want = "/payload/" + strings.Repeat("é", 507) // 1023 bytes: the next character would be cut.
			}
			if item.Detail != want {
				t.Errorf("the detail of a job that is %s has %d bytes: %.40q", item.Outcome, len(item.Detail), item.Detail)
			}
		}
	})
}

// A new operation has the id of a removed one with the same key. The histories of the jobs name that id for
// what the removed operation did. The new one does its own work nevertheless.
func TestBulk_AKeyUsedAgainAfterTheRemovalPausesTheJobAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		id := w.accept("t", "OCR")
		request := background.BulkRequest{Kind: background.KindPause, JobIDs: []string{id}}
		first := create(t, w.Operations, "key", request)
		runOnce(t, runner(t, w.Operations))
		w.Apply(id, statemachine.Resume{})
		time.Sleep(7*24*time.Hour + time.Minute)
		if pass := runOnce(t, runner(t, w.Operations)); pass.Removed != 1 {
			t.Fatalf("not removed: %+v", pass)
		}
		second := create(t, w.Operations, "key", request)
		runOnce(t, runner(t, w.Operations))
		page := get(t, w.Operations, second.ID)
		if second.ID != first.ID || page.Items[0].Outcome != background.ItemApplied {
			t.Errorf("%+v after the operation %s", page, first.ID)
		}
		if got := w.Read(id).Job.State; got != statemachine.JobPaused {
			t.Errorf("the job is %s", got)
		}
	})
}
