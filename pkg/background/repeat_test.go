package background_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// successes adds n jobs that succeeded, and returns their ids, the newest first.
func (w *world) successes(n int) []string {
	var ids []string
	for range n {
		ids = append(ids, w.accept("t", "OCR"))
		w.end(statemachine.ResultSucceeded, "")
	}
	slices.Reverse(ids)
	return ids
}

// again returns a request to repeat all jobs that succeeded until now, with that patch.
func again(patch string) background.BulkRequest {
	time.Sleep(2 * time.Millisecond) // The time of an id has no more digits.
	return background.BulkRequest{
		Filter: search.Filter{State: statemachine.JobSucceeded, CreatedBefore: time.Now()}, All: true,
		Edits: background.Edits{PayloadPatch: json.RawMessage(patch)},
	}
}

func TestBulk_RepeatsSuccessesOnceWithAPatch(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		w := open(t, store)
		w.fail("t", "x")
		old := w.successes(5)
		request := again(`{"model":"v3"}`)
		request.Limit = 3
		var made []string
		for _, want := range [][]string{old[:3], old[3:]} {
			op := create(t, w.Operations, "", request)
			runOnce(t, runner(t, w.Operations))
			page := get(t, w.Operations, op.ID)
			if !slices.Equal(ids(page), want) || page.Applied != len(want) || page.Truncated != (len(want) == 3) {
				t.Fatalf("%+v, want %v", page, want)
			}
			for _, item := range page.Items {
				agg := w.Read(item.NewJobID)
				payload, err := w.Payload(t.Context(), item.NewJobID)
				if err != nil || string(payload) != `{"model":"v3"}` || agg.Job.RerunOf != item.JobID ||
					agg.Job.Tags.Map()[background.OperationTag] != op.ID || agg.Steps[0].Outcome != "" {
					t.Errorf("the rerun is %+v with %s, %v", agg, payload, err)
				}
				made = append(made, item.NewJobID)
			}
			request.After = op.ID
		}
		for _, id := range made { // Reruns that have succeeded, too, are none of the jobs of the request.
			w.End(w.MessageOf(id), statemachine.ResultSucceeded, "")
		}
		last := request.After
		request.After = ""
		if op := create(t, w.Operations, "", request); op.Matched != 0 || op.State != background.OperationDone {
			t.Errorf("the whole request again selects %d jobs: %+v", op.Matched, op)
		}
		request.After = last
		if _, err := w.Operations.Create(t.Context(), "", request); apierror.From(err).Errors[0].Pointer != "/after" {
			t.Errorf("after an operation that has no rest: %v", err)
		}
	})
}

// The filters of an operation are those of its answer, in which times have milliseconds and no zone.
func TestCreate_ContinuesWithTheFiltersOfTheAnswer(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Atomic())
	w.successes(3)
	request := again(`{"model":"` + strings.Repeat("<b>", 5000) + `"}`)
	request.Limit, request.Filter.CreatedBefore = 2, request.Filter.CreatedBefore.In(time.FixedZone("", 7200))
	first := create(t, w.Operations, "", request)
	request.After, request.Filter = first.ID, get(t, w.Operations, first.ID).Filter
	if next := create(t, w.Operations, "", request); next.Matched != 1 || next.Truncated {
		t.Errorf("the next operation is %+v", next)
	}
}

// halting is a ledger whose first page of tenants is shorter than the following ones, as a store may
// answer.
type halting struct {
	*sketch
	asked int
}

func (h *halting) Tenants(ctx context.Context, after string, limit int) ([]string, error) {
	if h.asked++; h.asked == 1 {
		limit = 1
	}
	return h.sketch.Tenants(ctx, after, limit)
}

// An operation that continues another one misses no job, although it reads the tenants in other pages.
func TestCreate_ContinuesOverTenantsThatComeInOtherPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(24 * time.Hour) // The fake clock begins with a month, and the first job is older.
		jobs := newSketch(0)
		old := jobs.fail("a", 3, "x")
		time.Sleep(time.Hour)
		later := jobs.fail("b", 2, "x")
		service := serve(t, &halting{sketch: jobs}, ledgertest.Split())
		request := background.BulkRequest{Limit: 2}
		var all []string
		for range 3 {
			op := create(t, service, "", request)
			request.After, all = op.ID, append(all, ids(get(t, service, op.ID))...)
		}
		if want := slices.Concat(old, later); !slices.Equal(all, want) {
			t.Errorf("the operations have %v, want %v", all, want)
		}
	})
}

func TestBulk_SkipsAJobThatThePatchDoesNotSuit(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Atomic())
	w.successes(1)
	request := again(`{"model":3}`)
	preview, err := w.Preview(t.Context(), request)
	musttest.NoError(t, err)
	if refused := preview.Sample[0].Refused; refused == nil || refused.Code != apierror.PayloadInvalid || preview.Sample[0].Plan != nil {
		t.Errorf("the preview tells %+v", preview.Sample[0])
	}
	op := create(t, w.Operations, "", request)
	runOnce(t, runner(t, w.Operations))
	item := get(t, w.Operations, op.ID).Items[0]
	if item.Outcome != background.ItemSkipped || !strings.HasPrefix(item.Detail, "/payload/model ") {
		t.Errorf("the item is %+v", item)
	}
}

func TestPreview_ShowsWhatBecomesOfASample(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Atomic())
	old := w.successes(12)
	preview, err := w.Preview(t.Context(), again(`{"model":"v3"}`))
	musttest.NoError(t, err)
	if preview.Matched != 12 || len(preview.Sample) != 10 {
		t.Fatalf("%d of %d jobs", len(preview.Sample), preview.Matched)
	}
	for i, one := range preview.Sample {
		if change := one.Plan.Changes[0]; one.Job.ID != old[i] || one.Plan.First != 0 || change.Pointer != "/payload/model" || string(change.Is) != `"v3"` {
			t.Errorf("%s: %+v", one.Job.ID, one.Plan)
		}
	}
}

// A dry run counts the jobs that the operation would rerun: a job that succeeded has no failed step,
// and starts at the first one by default if the filter selects such jobs.
func TestBulk_RerunsWhatItsPreviewCounts(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Atomic())
	var jobs []string
	for range 2 {
		cmd := ledgertest.Command("t", uuid.NewString(), ledgertest.Step("one", "OCR", "s"), ledgertest.Step("two", "OCR", "s"))
		jobs = append(jobs, w.Submit(cmd))
		w.end(statemachine.ResultSucceeded, "")
		w.end([]statemachine.ResultStatus{statemachine.ResultSucceeded, statemachine.ResultFailedFinal}[len(jobs)-1], "")
	}
	failed, two, succeeded := background.Edits{From: ledger.FromFailed}, background.Edits{FromStep: "two"}, again("").Filter
	succeeded.TenantID = "t"
	for name, test := range map[string]struct {
		request background.BulkRequest
		first   []int // steps that are executed first, by job of the sample
	}{
		"named":                            {background.BulkRequest{JobIDs: jobs}, []int{1}},
		"named, from the failed step":      {background.BulkRequest{JobIDs: jobs, Edits: failed}, []int{1}},
		"named, from a step":               {background.BulkRequest{JobIDs: jobs, Edits: two}, []int{1, 1}},
		"that succeeded":                   {background.BulkRequest{Filter: succeeded}, []int{0}},
		"that succeeded, from the failed…": {background.BulkRequest{Filter: succeeded, Edits: failed}, nil},
	} {
		preview, err := w.Preview(t.Context(), test.request)
		musttest.NoError(t, err)
		var first []int
		for _, one := range preview.Sample {
			first = append(first, one.Plan.First)
		}
		if !slices.Equal(first, test.first) || preview.Matched != len(test.first) {
			t.Errorf("%s: the preview counts %d, which start at %v, want %v", name, preview.Matched, first, test.first)
		}
	}
	op := create(t, w.Operations, "", background.BulkRequest{JobIDs: jobs})
	runOnce(t, runner(t, w.Operations))
	if items := get(t, w.Operations, op.ID).Items; items[0].Outcome != background.ItemSkipped || items[1].Outcome != background.ItemApplied {
		t.Errorf("%+v", items)
	}
}

// A retry of cancelled jobs selects each of them once, also the cancelled reruns.
func TestBulk_RerunsCancelledRerunsOnce(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		w := open(t, store)
		cancelled := []string{w.accept("t", "OCR")}
		for range 3 {
			accepted, err := w.Rerun(t.Context(), ledger.Rerun{JobID: w.fail("t", "x"), From: ledger.FromFailed})
			musttest.NoError(t, err)
			cancelled = append(cancelled, accepted.Job.ID)
		}
		for _, id := range cancelled {
			w.Apply(id, statemachine.Cancel{})
		}
		slices.Reverse(cancelled)
		request := background.BulkRequest{Filter: search.Filter{TenantID: "t", State: statemachine.JobCancelled}, Limit: 3}
		for _, want := range [][]string{cancelled[:3], cancelled[3:], nil} {
			op := create(t, w.Operations, "", request)
			runOnce(t, runner(t, w.Operations))
			if page := get(t, w.Operations, op.ID); !slices.Equal(ids(page), want) || page.Applied != len(want) {
				t.Errorf("%+v, want %v", page, want)
			}
		}
	})
}

// telltale calls a function after each rerun.
type telltale struct {
	background.Rerunner
	made func()
}

func (r *telltale) Rerun(ctx context.Context, rerun commands.Rerun) (ledger.Accepted, error) {
	defer r.made()
	return r.Rerunner.Rerun(ctx, rerun)
}

// A process crashes after it has rerun a job, but before it has stored the outcome. By the time that
// another one takes over, the rerun has succeeded. It is recognised, and not rerun itself.
func TestBulk_ATakeoverRepeatsNoJobAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := ledgertest.Split()
		store, faults := storetest.Faulty(mem)
		w := open(t, mem)
		old := w.successes(1)[0]
		op := create(t, w.Operations, "", again(`{"model":"v3"}`))
		dying := background.NewOperations(background.OperationsConfig{
			Ledger: w.Ledger, Store: store, Table: table, Commands: &telltale{accepting(t, w.Ledger), func() { faults.Plan(crash) }},
		})
		runOnce(t, runner(t, dying))
		there, err := w.SupersededBy(t.Context(), &w.Read(old).Job)
		musttest.NoError(t, err)
		w.End(w.MessageOf(there), statemachine.ResultSucceeded, "")
		time.Sleep(time.Minute)
		runOnce(t, runner(t, w.Operations))
		page, jobs := get(t, w.Operations, op.ID), w.jobsOf(t, "t")
		if item := page.Items[0]; item.Outcome != background.ItemApplied || item.NewJobID != there || len(jobs) != 2 {
			t.Errorf("the rerun %s is told as %+v; there are %d jobs", there, item, len(jobs))
		}
	})
}
