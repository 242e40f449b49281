package background_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// ids returns the operation's jobs in order.
func ids(page background.OperationPage) []string {
	var all []string
	for _, item := range page.Items {
		all = append(all, item.JobID)
	}
	return all
}

func TestDue_GoesPastBadRows(t *testing.T) {
	t.Parallel()
	store := ledgertest.Atomic()
	service := serve(t, newSketch(0), store)
	batch := tablestore.Batch{}
	for _, row := range []string{"due:0000000000000:x", "due:y:x:set", "due:0000000000000:x:set"} {
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Put, Key: tablestore.Key{Table: table, Partition: "operations", Row: row},
		})
	}
	if _, err := store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	due, _, err := service.Due(t.Context(), "operation", 0, time.Now(), 10, "")
	if len(due) != 1 || err == nil {
		t.Errorf("due: %v (%v)", due, err)
	}
}

func TestCreate_SelectsItsJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		old := jobs.fail("a", 2, "x")
		time.Sleep(time.Hour)
		noon := time.Now()
		time.Sleep(time.Minute)
		x := jobs.fail("b", 1200, "x")
		time.Sleep(time.Second)
		y := jobs.fail("a", 3, "y")
		service := serve(t, jobs, ledgertest.Atomic())
		for name, test := range map[string]struct {
			request background.BulkRequest
			want    []string
		}{
			"the named ones, once":      {background.BulkRequest{JobIDs: []string{"q", old[0], "q", old[1]}}, []string{"q", old[0], old[1]}},
			"all, newest first":         {background.BulkRequest{Limit: 1000}, append(slices.Clone(y), x[:997]...)},
			"of a code":                 {background.BulkRequest{Filter: search.Filter{ErrorCode: "y"}}, y},
			"of a tenant":               {background.BulkRequest{Filter: search.Filter{TenantID: "a"}}, append(slices.Clone(y), old...)},
			"of a tenant, up to four":   {background.BulkRequest{Filter: search.Filter{TenantID: "a"}, Limit: 4}, append(slices.Clone(y), old[0])},
			"accepted before":           {background.BulkRequest{Filter: search.Filter{CreatedBefore: noon}}, old},
			"accepted since":            {background.BulkRequest{Filter: search.Filter{CreatedAfter: noon, TenantID: "a"}}, y},
			"of a step type":            {background.BulkRequest{Filter: search.Filter{StepType: "S", ErrorCode: "y"}}, y},
			"of no step type":           {background.BulkRequest{Filter: search.Filter{StepType: "T"}}, nil},
			"of another request type":   {background.BulkRequest{Filter: search.Filter{RequestType: "q"}}, nil},
			"more than are read a time": {background.BulkRequest{Limit: 10_000}, append(append(slices.Clone(y), x...), old...)},
		} {
			op := create(t, service, "", test.request)
			if diff := cmp.Diff(test.want, ids(get(t, service, op.ID))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			wantState := background.OperationRunning
			if len(test.want) == 0 {
				wantState = background.OperationDone
			}
			if op.Matched != len(test.want) || op.State != wantState || op.From != ledger.FromFailed || op.RatePerSecond != 20 {
				t.Errorf("%s: %+v", name, op)
			}
		}
	})
}

func TestCreate_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	service := serve(t, newSketch(0), ledgertest.Atomic())
	now := time.Now()
	for pointer, r := range map[string]background.BulkRequest{
		"/job_ids":           {JobIDs: slices.Repeat([]string{"a"}, 1001)},
		"/job_ids ":          {JobIDs: []string{"a"}, Filter: search.Filter{TenantID: "t"}},
		"/limit":             {All: true, Limit: 10_001},
		"/limit ":            {All: true, Limit: -1},
		"/rate_per_second":   {All: true, RatePerSecond: 1001},
		"/rate_per_second ":  {All: true, RatePerSecond: -1},
		"/rate_per_second  ": {All: true, RatePerSecond: 0.009},
		"/from":              {Edits: background.Edits{From: "middle"}, All: true},
		"/all":               {},
		"/all ":              {Kind: background.KindPause, Limit: 7},
		"/reason":            {Kind: background.KindCancel, All: true},
		"/ended_after":       {Filter: search.Filter{EndedAfter: now, EndedBefore: now}},
		"/created_after":     {Filter: search.Filter{CreatedAfter: now, CreatedBefore: now}},
		"/all  ":             {Filter: search.Filter{State: statemachine.JobCancelled}},
		"/all   ":            {Filter: search.Filter{State: statemachine.JobSucceeded, CreatedBefore: now}},
		"/all    ":           {Kind: background.KindPause, Filter: search.Filter{CreatedBefore: now}},
		"/job_ids  ":         {JobIDs: []string{"a"}, After: "b"},
		"/state":             {Filter: search.Filter{State: statemachine.JobPaused, TenantID: "t"}},
		"/error_code":        {Filter: search.Filter{State: statemachine.JobCancelled, ErrorCode: "x"}},
		"/created_before":    {Filter: search.Filter{State: statemachine.JobSucceeded, TenantID: "t"}},
		"/created_before ":   {Filter: search.Filter{State: statemachine.JobSucceeded, CreatedBefore: now.Add(time.Hour)}, All: true},
		"/payload_patch":     {All: true, Edits: background.Edits{PayloadPatch: json.RawMessage(`[1]`)}},
		"/payload_patch ":    {All: true, Edits: background.Edits{PayloadPatch: json.RawMessage(`{"x":"` + strings.Repeat("x", background.MaxBulkPatch) + `"}`)}},
		"/after":             {All: true, After: "gone"},
	} {
		_, err := service.Create(t.Context(), "", r)
		told, ok := errors.AsType[*apierror.Error](err)
		if !ok || told.Code != apierror.InvalidEnvelope || told.Errors[0].Pointer != strings.TrimSpace(pointer) {
			t.Errorf("%s: %v", pointer, err)
		}
	}
}

func TestCreate_IsIdempotentUnderAKey(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		jobs := newSketch(0)
		jobs.fail("a", 250, "x")
		service := serve(t, jobs, store)
		ops := make([]background.Operation, 8)
		var group sync.WaitGroup
		for i := range ops {
			group.Go(func() { ops[i] = create(t, service, "key", background.BulkRequest{Reason: "why"}) })
		}
		group.Wait()
		for _, op := range ops {
			if diff := cmp.Diff(ops[0].ID, op.ID); diff != "" || op.Matched != 250 {
				t.Errorf("%+v differs from %+v", op, ops[0])
			}
		}
		if page := get(t, service, ops[0].ID); len(page.Items) != 250 {
			t.Errorf("%d items", len(page.Items))
		}
		if rows := scan(t, store); len(rows) != 2 {
			t.Errorf("%d rows, want the HEAD and its entry", len(rows))
		}
		_, err := service.Create(t.Context(), "key", background.BulkRequest{All: true, Reason: "another"})
		if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.IdempotencyMismatch {
			t.Errorf("another request under the key: %v", err)
		}
		if other := create(t, service, "", background.BulkRequest{Reason: "why"}); other.ID == ops[0].ID {
			t.Error("a create without a key returned the same operation")
		}
	})
}

// scan returns the HEADs and entries of all operations.
func scan(t *testing.T, store tablestore.Store) []tablestore.Row {
	t.Helper()
	page, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "operations"})
	musttest.NoError(t, err)
	return page.Rows
}

// If any one call of a create fails or loses its reply, a repeat completes it: there is one
// complete operation, and leftovers are removed after an hour.
func TestCreate_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	for nth := 1; nth <= 8; nth++ {
		for name, fault := range map[string]storetest.Fault{
			"before": {}, "after": {After: true}, "with its own write": ownConflict,
		} {
			if fault.Err != nil && nth != 5 {
				continue // Only the fifth commit, that of the HEAD, has a precondition.
			}
			t.Run(fmt.Sprintf("call %d %s", nth, name), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					jobs := newSketch(0)
					jobs.fail("a", 250, "x")
					store, faults := storetest.Faulty(ledgertest.Split())
					service := serve(t, jobs, store)
					fault.Nth = nth
					faults.Plan(fault)
					first, err := service.Create(t.Context(), "key", background.BulkRequest{All: true})
					faults.Clear()
					if told, ok := errors.AsType[*apierror.Error](err); err != nil && (!ok || told.Code != apierror.StoreUnavailable) {
						t.Errorf("told %v", err)
					}
					op := create(t, service, "key", background.BulkRequest{})
					if err == nil && first.ID != op.ID {
						t.Errorf("%s, then %s", first.ID, op.ID)
					}
					r := runner(t, service)
					runOnce(t, r)
					time.Sleep(2 * time.Hour)
					runOnce(t, r)
					if rows := scan(t, store); len(rows) != 2 {
						t.Errorf("%d rows are left, want the HEAD and its entry", len(rows))
					}
					page := get(t, service, op.ID)
					if len(page.Items) != 250 || page.State != background.OperationDone || page.Applied != 250 {
						t.Errorf("%d items, %+v", len(page.Items), page.Operation)
					}
				})
			})
		}
	}
}

func TestGetAndCancel_ReportAMissingOperation(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(ledgertest.Split())
	service := serve(t, newSketch(0), store)
	get := func(id, after string) error { _, err := service.Get(t.Context(), id, "", 10, after); return err }
	stop := func() error { _, err := service.Cancel(t.Context(), "no such/one"); return err }
	op := create(t, service, "", background.BulkRequest{JobIDs: []string{"a"}})
	for name, test := range map[string]struct {
		err  error
		code apierror.Code
	}{
		"get":                {get("no such/one", ""), apierror.NotFound},
		"cancel":             {stop(), apierror.NotFound},
		"a made-up token":    {get(op.ID, "x"), apierror.InvalidEnvelope},
		"a negative token":   {get(op.ID, "-1"), apierror.InvalidEnvelope},
		"a token far beyond": {get(op.ID, "10000"), apierror.InvalidEnvelope},
	} {
		if told, ok := errors.AsType[*apierror.Error](test.err); !ok || told.Code != test.code {
			t.Errorf("%s: %v", name, test.err)
		}
	}
	for n := range 2 {
		faults.Plan(storetest.Fault{Nth: n + 1})
		if told, ok := errors.AsType[*apierror.Error](get(op.ID, "")); !ok || told.Code != apierror.StoreUnavailable {
			t.Errorf("get without the store: %v", told)
		}
	}
	if page, err := service.Get(t.Context(), op.ID, "", 10, "9999"); err != nil || len(page.Items) != 0 || page.Next != "" {
		t.Errorf("after the end: %+v, %v", page, err)
	}
}

func TestGet_SelectsItemsByTheirOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		all := jobs.fail("t", 30, "x")
		jobs.veto = func(agg *statemachine.Aggregate) error {
			if agg.Job.ID == all[3] {
				return errors.New("it cannot be read")
			}
			return nil
		}
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{})
		runOn(t, service, op.ID)
		var pages []int
		for after, more := "", true; more; more = after != "" {
			page, err := service.Get(t.Context(), op.ID, background.ItemApplied, 10, after)
			musttest.NoError(t, err)
			for _, item := range page.Items {
				if item.Outcome != background.ItemApplied {
					t.Errorf("%+v is listed", item)
				}
			}
			pages, after = append(pages, len(page.Items)), page.Next
		}
		if !slices.Equal(pages, []int{10, 10, 9}) {
			t.Errorf("the pages have %d items", pages)
		}
	})
}

// Results counts the present states of the jobs that an operation changed.
func TestResults_CountWhatBecameOfTheJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Split())
		w := open(t, store)
		for range 3 {
			w.fail("t", "x")
		}
		op := create(t, w.Operations, "", background.BulkRequest{})
		check := func(want background.Results) {
			t.Helper()
			if got, err := w.Results(t.Context(), op.ID); err != nil || got != want {
				t.Errorf("the results are %+v, want %+v: %v", got, want, err)
			}
		}
		check(background.Results{})
		runOn(t, w.Operations, op.ID)
		check(background.Results{Counted: 3, Live: 3})
		var reruns []string
		for _, item := range get(t, w.Operations, op.ID).Items {
			reruns = append(reruns, item.NewJobID)
		}
		w.end(statemachine.ResultSucceeded, "")
		_, err := w.Change(t.Context(), reruns[0], statemachine.Cancel{})
		musttest.NoError(t, err)
		check(background.Results{Counted: 3, Succeeded: 1, Cancelled: 1, Live: 1})
		w.fail("t", "again") // The operation did not change this job.
		check(background.Results{Counted: 3, Succeeded: 1, Cancelled: 1, Live: 1})
		for n := range 3 {
			faults.Plan(storetest.Fault{Nth: n + 1})
			_, err := w.Results(t.Context(), op.ID)
			if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.StoreUnavailable {
				t.Errorf("without the store, call %d: %v", n+1, err)
			}
		}
		_, err = w.Results(t.Context(), "none")
		if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.NotFound {
			t.Errorf("of no operation: %v", err)
		}
	})
}

// Results reads an even sample of many jobs.
func TestResults_AreASampleOfManyJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch(0)
		failed := jobs.fail("t", 3*background.MaxResults/2, "x")
		service := serve(t, jobs, ledgertest.Split())
		op := create(t, service, "", background.BulkRequest{RatePerSecond: 1000})
		runOn(t, service, op.ID)
		for i, id := range failed {
			state := statemachine.JobSucceeded
			if i >= len(failed)/2 {
				state = statemachine.JobFailedFinal
			}
			jobs.jobs[jobs.reruns[id]] = &statemachine.Aggregate{Job: statemachine.Job{State: state}}
		}
		want := background.Results{Counted: background.MaxResults, Succeeded: background.MaxResults / 2, Failed: background.MaxResults / 2}
		if got, err := service.Results(t.Context(), op.ID); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
