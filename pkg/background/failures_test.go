package background_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func groups(t *testing.T, s *background.Operations, f background.Filter) background.FailureReport {
	t.Helper()
	report, err := s.Groups(t.Context(), f, false)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// bare checks that the tenants and the histogram of each group add up, and returns the
// groups without them.
func bare(t *testing.T, groups []background.FailureGroup) []background.FailureGroup {
	t.Helper()
	for i := range groups {
		g, inTenants, inTime := &groups[i], 0, 0
		for _, tenant := range g.Tenants {
			inTenants += tenant.Count
		}
		for _, n := range g.Histogram {
			inTime += n
		}
		if inTenants != g.Count || inTime != g.Count || g.TenantCount != len(g.Tenants) || len(g.Histogram) != background.FailureBuckets {
			t.Errorf("a group of %d jobs has the tenants %v and the histogram %v", g.Count, g.Tenants, g.Histogram)
		}
		g.Tenants, g.TenantCount, g.Histogram = nil, 0, nil
	}
	return groups
}

func TestGroups_HaveTenantsAndAHistogram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		begin := time.Now().UTC()
		for i := range 9 {
			w.fail(fmt.Sprint("t", min(i, 6)), "OCR", "timeout")
		}
		time.Sleep(29 * time.Minute)
		w.fail("t1", "OCR", "timeout")
		time.Sleep(time.Minute)
		report := groups(t, w.Operations, background.Filter{})
		group := report.Groups[0]
		if !report.From.Equal(begin) || !report.To.Equal(begin.Add(30*time.Minute)) || group.Histogram[0] != 9 || group.Histogram[29] != 1 {
			t.Errorf("from %v to %v: %v", report.From, report.To, group.Histogram)
		}
		want := []background.FailureTenant{{"t6", 3}, {"t1", 2}, {"t0", 1}, {"t2", 1}, {"t3", 1}}
		if diff := cmp.Diff(want, group.Tenants); diff != "" || group.TenantCount != 7 {
			t.Errorf("%d tenants (-want +got):\n%s", group.TenantCount, diff)
		}
		filter := background.Filter{FailedAfter: begin.Add(-30 * time.Minute), FailedBefore: begin.Add(10 * time.Minute)}
		report = groups(t, w.Operations, filter)
		if !report.From.Equal(filter.FailedAfter) || !report.To.Equal(filter.FailedBefore) || report.Groups[0].Histogram[22] != 9 {
			t.Errorf("of a time span: from %v to %v: %v", report.From, report.To, report.Groups[0].Histogram)
		}
	})
}

func TestGroups_CountsByStepAndCode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		begin := time.Now().UTC()
		var ocr []string
		for i := range 7 {
			ocr = append(ocr, w.fail(fmt.Sprint("t", i%2), "OCR", "timeout"))
			time.Sleep(time.Minute)
		}
		broken := w.fail("t0", "OCR", "broken")
		other := w.fail("t1", "NLP", "timeout")
		w.Send(w.accept("t0", "OCR"), statemachine.Cancel{})
		slices.Reverse(ocr)
		at := begin.Add(7 * time.Minute)
		ocrGroup := background.FailureGroup{
			StepType: "OCR", Service: "s", ErrorCode: "timeout", Count: 7, FirstAt: begin, LastAt: begin.Add(6 * time.Minute), SampleJobIDs: ocr[:5],
		}
		brokenGroup := background.FailureGroup{StepType: "OCR", Service: "s", ErrorCode: "broken", Count: 1, FirstAt: at, LastAt: at, SampleJobIDs: []string{broken}}
		otherGroup := background.FailureGroup{StepType: "NLP", Service: "s", ErrorCode: "timeout", Count: 1, FirstAt: at, LastAt: at, SampleJobIDs: []string{other}}
		early := background.FailureGroup{
			StepType: "OCR", Service: "s", ErrorCode: "timeout", Count: 2, FirstAt: begin, LastAt: begin.Add(time.Minute), SampleJobIDs: ocr[5:],
		}
		for name, test := range map[string]struct {
			filter background.Filter
			want   []background.FailureGroup
		}{
			"all":                  {background.Filter{}, []background.FailureGroup{ocrGroup, otherGroup, brokenGroup}},
			"of a request type":    {background.Filter{RequestType: "type.NLP"}, []background.FailureGroup{otherGroup}},
			"before a time":        {background.Filter{CreatedBefore: begin.Add(2 * time.Minute)}, []background.FailureGroup{early}},
			"after a time":         {background.Filter{CreatedAfter: at}, []background.FailureGroup{otherGroup, brokenGroup}},
			"failed after a time":  {background.Filter{FailedAfter: at}, []background.FailureGroup{otherGroup, brokenGroup}},
			"failed before a time": {background.Filter{FailedBefore: begin.Add(2 * time.Minute)}, []background.FailureGroup{early}},
			"of a step type":       {background.Filter{StepType: "NLP"}, []background.FailureGroup{otherGroup}},
			"of a code":            {background.Filter{ErrorCode: "broken"}, []background.FailureGroup{brokenGroup}},
			"of a service":         {background.Filter{Service: "s", ErrorCode: "broken"}, []background.FailureGroup{brokenGroup}},
			"of another service":   {background.Filter{Service: "q"}, nil},
			"of an unknown tenant": {background.Filter{TenantID: "t9"}, nil},
		} {
			report := groups(t, w.Operations, test.filter)
			if diff := cmp.Diff(test.want, bare(t, report.Groups)); diff != "" || report.Truncated {
				t.Errorf("%s: truncated %t (-want +got):\n%s", name, report.Truncated, diff)
			}
		}
		if report := groups(t, w.Operations, background.Filter{TenantID: "t1"}); len(report.Groups) != 2 || report.Groups[0].Count != 3 {
			t.Errorf("groups of one tenant: %+v", report.Groups)
		}
	})
}

// groupsOf returns the samples of all groups, unresolved and resolved.
func groupsOf(t *testing.T, s *background.Operations) (open, resolved [][]string) {
	t.Helper()
	report, err := s.Groups(t.Context(), background.Filter{}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range report.Groups {
		if group.Resolved {
			resolved = append(resolved, group.SampleJobIDs)
		} else {
			open = append(open, group.SampleJobIDs)
		}
	}
	for _, group := range groups(t, s, background.Filter{}).Groups {
		if group.Resolved || !slices.ContainsFunc(open, func(ids []string) bool { return slices.Equal(ids, group.SampleJobIDs) }) {
			t.Errorf("the report of unresolved failures has %+v", group)
		}
	}
	return open, resolved
}

// A failure is unresolved until its job is rerun. If the rerun fails, that failure is
// unresolved.
func TestGroups_ARerunResolvesTheFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		first := w.fail("t", "OCR", "broken")
		other := w.fail("t", "NLP", "broken")
		again := w.RerunOf(first, ledger.FromFailed)
		for _, age := range []time.Duration{0, time.Hour} { // Only a recent rerun is read.
			time.Sleep(age)
			open, resolved := groupsOf(t, w.Operations)
			if diff := cmp.Diff([][][]string{{{other}}, {{first}}}, [][][]string{open, resolved}); diff != "" {
				t.Errorf("the rerun is live and %s old: unresolved, resolved (-want +got):\n%s", age, diff)
			}
		}
		w.end(statemachine.ResultFailedFinal, "again")
		open, resolved := groupsOf(t, w.Operations)
		if diff := cmp.Diff([][][]string{{{again}, {other}}, {{first}}}, [][][]string{open, resolved}); diff != "" {
			t.Errorf("the rerun failed: unresolved, resolved (-want +got):\n%s", diff)
		}
	})
}

// If the accept of a rerun crashes between its index row and its commit, the failure stays
// unresolved, and a retry selects its job again.
func TestGroups_ALostRerunResolvesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &losing{Store: ledgertest.Split()}
		w := open(t, store)
		failed := w.fail("t", "OCR", "broken")
		time.Sleep(time.Hour)
		store.on = true
		if _, err := w.Rerun(t.Context(), ledger.Rerun{JobID: failed, From: ledger.FromFailed}); err == nil {
			t.Fatal("the accept was not lost")
		}
		store.on = false
		open, resolved := groupsOf(t, w.Operations)
		if diff := cmp.Diff([][][]string{{{failed}}, nil}, [][][]string{open, resolved}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		op := create(t, w.Operations, "", background.BulkRequest{})
		runOnce(t, runner(t, w.Operations))
		if page := get(t, w.Operations, op.ID); page.Applied != 1 || page.Items[0].JobID != failed {
			t.Errorf("the retry: %+v", page)
		}
		if again := create(t, w.Operations, "", background.BulkRequest{}); again.Matched != 0 {
			t.Errorf("after the rerun %d jobs match, want none", again.Matched)
		}
	})
}

// The cost depends on the number of failures, not on the number of jobs that succeeded.
func TestGroups_ReadNoJobsThatSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Split())
		w := open(t, store)
		for range 3 {
			w.fail("t", "OCR", "broken")
		}
		var costs []storetest.Counts
		for _, finished := range []int{10, 90} {
			w.succeed(finished)
			counter.Reset()
			groups(t, w.Operations, background.Filter{})
			costs = append(costs, counter.Counts())
		}
		if costs[0] != costs[1] || costs[0].RowsRead == 0 {
			t.Errorf("costs with 10 and 100 jobs that succeeded: %+v", costs)
		}
	})
}

// An atomic store writes an index row together with its change, so no job is read to verify
// the row, except for the samples.
func TestGroups_OnAnAtomicStoreReadOnlyIndexRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		w := open(t, store)
		var costs []storetest.Counts
		for range 2 {
			for range 20 {
				w.fail("t", "OCR", "broken")
			}
			counter.Reset()
			groups(t, w.Operations, background.Filter{})
			costs = append(costs, counter.Counts())
		}
		if costs[0].Scans != costs[1].Scans || costs[1].RowsRead-costs[0].RowsRead != 20 {
			t.Errorf("costs with 20 and 40 failed jobs: %+v", costs)
		}
	})
}

// losing is a store that fails the commits of jobs while it is on.
type losing struct {
	tablestore.Store
	on bool
}

func (s *losing) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if s.on && batch[0].Key.Table == "luciusledger" {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}

// An index entry is written before the commit that ends the job, and stays if that commit
// is lost.
func TestGroups_LeaveOutALostEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		age   time.Duration
		newer int // jobs that failed after it
		// samples is how many the group has: an old entry takes the place of one.
		samples int
	}{"recent": {0, 5, 5}, "among the samples": {time.Hour, 4, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &losing{Store: ledgertest.Split()}
				w := open(t, store)
				began := time.Now().UTC()
				want := []string{w.fail("t", "OCR", "broken")}
				time.Sleep(time.Second)
				id := w.accept("t", "OCR")
				m := w.Inbox.Last()
				w.Apply(id, ledgertest.Sent(m))
				store.on = true
				if _, err := w.Change(t.Context(), id, ledgertest.Ended(m, statemachine.ResultFailedFinal, "broken")); err == nil {
					t.Fatal("the commit was not lost")
				}
				store.on = false
				time.Sleep(test.age)
				w.Send(id, statemachine.Cancel{})
				ended := began
				for range test.newer {
					time.Sleep(time.Second)
					ended = time.Now().UTC()
					want = append([]string{w.fail("t", "OCR", "broken")}, want...)
				}
				report := groups(t, w.Operations, background.Filter{})
				if diff := cmp.Diff([]background.FailureGroup{{
					StepType: "OCR", Service: "s", ErrorCode: "broken", Count: test.newer + 1, FirstAt: began, LastAt: ended,
					SampleJobIDs: want[:test.samples],
				}}, bare(t, report.Groups)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestGroups_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := newSketch()
		for n := range 501 {
			jobs.fail("many", 1, fmt.Sprint("code", n))
		}
		service := serve(t, jobs, ledgertest.Atomic())
		if report := groups(t, service, background.Filter{}); len(report.Groups) != 500 || !report.Truncated {
			t.Errorf("%d groups, truncated %t", len(report.Groups), report.Truncated)
		}
		// The index of this tenant repeats its entries without end.
		service = serve(t, &endless{sketch: jobs}, ledgertest.Atomic())
		report := groups(t, service, background.Filter{TenantID: "many"})
		counted := 0
		for _, group := range report.Groups {
			counted += group.Count
		}
		if counted > 100_000 || counted < 98_000 || !report.Truncated {
			t.Errorf("%d counted, truncated %t", counted, report.Truncated)
		}
	})
}

func TestGroups_ErrorsAreProblems(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(ledgertest.Split())
	w := open(t, store)
	w.fail("t", "OCR", "broken")
	for name, test := range map[string]struct {
		call storetest.Call
		nth  int
	}{
		"tenants": {storetest.ScanCall, 1},
		"index":   {storetest.ScanCall, 2},
		"job":     {storetest.ScanCall, 5}, // after the index of three months; the entry is recent
	} {
		faults.Plan(storetest.Fault{Call: test.call, Nth: test.nth})
		_, err := w.Groups(t.Context(), background.Filter{TenantID: ""}, false)
		if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.StoreUnavailable {
			t.Errorf("%s: %v", name, err)
		}
		faults.Clear()
	}
	now := time.Now()
	_, err := w.Groups(t.Context(), background.Filter{CreatedAfter: now, CreatedBefore: now}, false)
	if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.InvalidEnvelope {
		t.Errorf("an impossible filter: %v", err)
	}
}

// endless is an index that never ends.
type endless struct{ *sketch }

func (e *endless) Index(ctx context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	q.After = ""
	entries, _, err := e.sketch.Index(ctx, q)
	return entries, true, err
}
