package search_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// jobTable is the table of the jobs.
const jobTable = "luciusledger"

// lost makes the commits of jobs fail.
var lost = storetest.Fault{Call: storetest.CommitCall, Table: jobTable, Onwards: true}

// world is a real ledger, and a finder in it.
type world struct {
	*ledgertest.Ledger
	*search.Finder
}

func found(t *testing.T, store tablestore.Store) *world {
	t.Helper()
	l := ledgertest.Publishing(t, ledger.Config{Store: store, Shards: 2})
	return &world{l, &search.Finder{Source: l.Ledger}}
}

// accept accepts a job with one step of that type.
func (w *world) accept(tenant, stepType string) string {
	cmd := ledgertest.Command(tenant, uuid.NewString(), ledgertest.Step("one", stepType, "s"))
	cmd.Job.RequestType = "type." + stepType
	return w.Submit(cmd)
}

// fail adds a job that failed.
func (w *world) fail(tenant, stepType, code string) string {
	id := w.accept(tenant, stepType)
	w.End(w.Handoff.Last(), statemachine.ResultFailedFinal, code)
	return id
}

func groups(t *testing.T, s *search.Finder, f search.Filter) search.FailureReport {
	t.Helper()
	report, err := s.Failures(t.Context(), f, search.Include{})
	musttest.NoError(t, err)
	return report
}

// bare checks that the tenants and the histogram of each group add up, and returns the
// groups without them.
func bare(t *testing.T, groups []search.FailureGroup) []search.FailureGroup {
	t.Helper()
	for i := range groups {
		g, inTenants, inTime := &groups[i], 0, 0
		for _, tenant := range g.Tenants {
			inTenants += tenant.Count
		}
		for _, n := range g.Histogram {
			inTime += n
		}
		if inTenants != g.Count || inTime != g.Count || g.TenantCount != len(g.Tenants) || len(g.Histogram) != search.FailureBuckets {
			t.Errorf("a group of %d jobs has the tenants %v and the histogram %v", g.Count, g.Tenants, g.Histogram)
		}
		g.Tenants, g.TenantCount, g.Histogram = nil, 0, nil
	}
	return groups
}

// Live jobs whose step failed and is retried form groups of their own, on request.
func TestFailures_OfRetryingJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := found(t, ledgertest.Split())
		retry := func(tenant, stepType, code string) string {
			id := w.accept(tenant, stepType)
			w.End(w.Handoff.Last(), statemachine.ResultFailedRetry, code)
			return id
		}
		w.fail("t1", "OCR", "vendor_503")
		begin := time.Now().UTC()
		first := retry("t1", "OCR", "vendor_503")
		time.Sleep(time.Second)
		second := retry("t2", "OCR", "vendor_503")
		other := retry("t1", "SCAN", "paper_jam")
		w.accept("t1", "OCR")
		retrying := func(f search.Filter) []search.FailureGroup {
			report, err := w.Failures(t.Context(), f, search.Include{Retrying: true})
			musttest.NoError(t, err)
			return slices.DeleteFunc(bare(t, report.Groups), func(g search.FailureGroup) bool { return !g.Retrying })
		}
		jam := search.FailureGroup{
			FailureKind: search.FailureKind{StepType: "SCAN", Service: "s", ErrorCode: "paper_jam", Retrying: true},
			Count:       1, FirstAt: begin.Add(time.Second), LastAt: begin.Add(time.Second), SampleJobIDs: []string{other},
		}
		want := []search.FailureGroup{{
			FailureKind: search.FailureKind{StepType: "OCR", Service: "s", ErrorCode: "vendor_503", Retrying: true},
			Count:       2, FirstAt: begin, LastAt: begin.Add(time.Second), SampleJobIDs: []string{second, first},
		}, jam}
		if diff := cmp.Diff(want, retrying(search.Filter{})); diff != "" {
			t.Errorf("all (-want +got):\n%s", diff)
		}
		for _, f := range []search.Filter{
			{StepType: "SCAN"}, {ErrorCode: "paper_jam"}, {RequestType: "type.SCAN"}, {TenantID: "t1", EndedAfter: begin.Add(time.Second)},
		} {
			if diff := cmp.Diff([]search.FailureGroup{jam}, retrying(f)); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", f, diff)
			}
		}
		if report := groups(t, w.Finder, search.Filter{}); len(report.Groups) != 1 || report.Groups[0].Retrying {
			t.Errorf("unasked: %+v", report.Groups)
		}
	})
}

func TestFailures_HaveTenantsAndAHistogram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := found(t, ledgertest.Split())
		begin := time.Now().UTC()
		for i := range 9 {
			w.fail(fmt.Sprint("t", min(i, 6)), "OCR", "timeout")
		}
		time.Sleep(29 * time.Minute)
		w.fail("t1", "OCR", "timeout")
		time.Sleep(time.Minute)
		report := groups(t, w.Finder, search.Filter{})
		group := report.Groups[0]
		if !report.From.Equal(begin) || !report.To.Equal(begin.Add(30*time.Minute)) || group.Histogram[0] != 9 || group.Histogram[29] != 1 {
			t.Errorf("from %v to %v: %v", report.From, report.To, group.Histogram)
		}
		want := []search.FailureTenant{{"t6", 3}, {"t1", 2}, {"t0", 1}, {"t2", 1}, {"t3", 1}}
		if diff := cmp.Diff(want, group.Tenants); diff != "" || group.TenantCount != 7 {
			t.Errorf("%d tenants (-want +got):\n%s", group.TenantCount, diff)
		}
		filter := search.Filter{EndedAfter: begin.Add(-30 * time.Minute), EndedBefore: begin.Add(10 * time.Minute)}
		report = groups(t, w.Finder, filter)
		if !report.From.Equal(filter.EndedAfter) || !report.To.Equal(filter.EndedBefore) || report.Groups[0].Histogram[22] != 9 {
			t.Errorf("of a time span: from %v to %v: %v", report.From, report.To, report.Groups[0].Histogram)
		}
	})
}

func TestFailures_CountsByStepAndCode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := found(t, ledgertest.Split())
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
		ocrGroup := search.FailureGroup{
			FailureKind: search.FailureKind{StepType: "OCR", Service: "s", ErrorCode: "timeout"}, Count: 7, FirstAt: begin, LastAt: begin.Add(6 * time.Minute), SampleJobIDs: ocr[:5],
		}
		brokenGroup := search.FailureGroup{FailureKind: search.FailureKind{StepType: "OCR", Service: "s", ErrorCode: "broken"}, Count: 1, FirstAt: at, LastAt: at, SampleJobIDs: []string{broken}}
		otherGroup := search.FailureGroup{FailureKind: search.FailureKind{StepType: "NLP", Service: "s", ErrorCode: "timeout"}, Count: 1, FirstAt: at, LastAt: at, SampleJobIDs: []string{other}}
		early := search.FailureGroup{
			FailureKind: search.FailureKind{StepType: "OCR", Service: "s", ErrorCode: "timeout"}, Count: 2, FirstAt: begin, LastAt: begin.Add(time.Minute), SampleJobIDs: ocr[5:],
		}
		for name, test := range map[string]struct {
			filter search.Filter
			want   []search.FailureGroup
		}{
			"all":                  {search.Filter{}, []search.FailureGroup{ocrGroup, otherGroup, brokenGroup}},
			"of a request type":    {search.Filter{RequestType: "type.NLP"}, []search.FailureGroup{otherGroup}},
			"before a time":        {search.Filter{CreatedBefore: begin.Add(2 * time.Minute)}, []search.FailureGroup{early}},
			"after a time":         {search.Filter{CreatedAfter: at}, []search.FailureGroup{otherGroup, brokenGroup}},
			"failed after a time":  {search.Filter{EndedAfter: at}, []search.FailureGroup{otherGroup, brokenGroup}},
			"failed before a time": {search.Filter{EndedBefore: begin.Add(2 * time.Minute)}, []search.FailureGroup{early}},
			"of a step type":       {search.Filter{StepType: "NLP"}, []search.FailureGroup{otherGroup}},
			"of a code":            {search.Filter{ErrorCode: "broken"}, []search.FailureGroup{brokenGroup}},
			"of a service":         {search.Filter{Service: "s", ErrorCode: "broken"}, []search.FailureGroup{brokenGroup}},
			"of another service":   {search.Filter{Service: "q"}, nil},
			"of an unknown tenant": {search.Filter{TenantID: "t9"}, nil},
		} {
			report := groups(t, w.Finder, test.filter)
			if diff := cmp.Diff(test.want, bare(t, report.Groups)); diff != "" || report.Truncated {
				t.Errorf("%s: truncated %t (-want +got):\n%s", name, report.Truncated, diff)
			}
		}
		if report := groups(t, w.Finder, search.Filter{TenantID: "t1"}); len(report.Groups) != 2 || report.Groups[0].Count != 3 {
			t.Errorf("groups of one tenant: %+v", report.Groups)
		}
	})
}

// groupsOf returns the samples of all groups, unresolved and resolved.
func groupsOf(t *testing.T, s *search.Finder) (open, resolved [][]string) {
	t.Helper()
	report, err := s.Failures(t.Context(), search.Filter{}, search.Include{Resolved: true})
	musttest.NoError(t, err)
	for _, group := range report.Groups {
		if group.Resolved {
			resolved = append(resolved, group.SampleJobIDs)
		} else {
			open = append(open, group.SampleJobIDs)
		}
	}
	for _, group := range groups(t, s, search.Filter{}).Groups {
		if group.Resolved || !slices.ContainsFunc(open, func(ids []string) bool { return slices.Equal(ids, group.SampleJobIDs) }) {
			t.Errorf("the report of unresolved failures has %+v", group)
		}
	}
	return open, resolved
}

// A failure is unresolved until its job is rerun. If the rerun fails, that failure is
// unresolved.
func TestFailures_ARerunResolvesTheFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := found(t, ledgertest.Split())
		first := w.fail("t", "OCR", "broken")
		other := w.fail("t", "NLP", "broken")
		again := w.RerunOf(first, ledger.FromFailed)
		for _, age := range []time.Duration{0, time.Hour} { // Only a recent rerun is read.
			time.Sleep(age)
			open, resolved := groupsOf(t, w.Finder)
			if diff := cmp.Diff([][][]string{{{other}}, {{first}}}, [][][]string{open, resolved}); diff != "" {
				t.Errorf("the rerun is live and %s old: unresolved, resolved (-want +got):\n%s", age, diff)
			}
		}
		w.End(w.Handoff.Last(), statemachine.ResultFailedFinal, "again")
		open, resolved := groupsOf(t, w.Finder)
		if diff := cmp.Diff([][][]string{{{again}, {other}}, {{first}}}, [][][]string{open, resolved}); diff != "" {
			t.Errorf("the rerun failed: unresolved, resolved (-want +got):\n%s", diff)
		}
	})
}

// If the accept of a rerun crashes between its index row and its commit, the failure stays
// unresolved.
func TestFailures_ALostRerunResolvesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Split())
		w := found(t, store)
		failed := w.fail("t", "OCR", "broken")
		time.Sleep(time.Hour)
		faults.Plan(lost)
		if _, err := w.Rerun(t.Context(), ledger.Rerun{JobID: failed, From: ledger.FromFailed}); err == nil {
			t.Fatal("the accept was not lost")
		}
		faults.Clear()
		open, resolved := groupsOf(t, w.Finder)
		if diff := cmp.Diff([][][]string{{{failed}}, nil}, [][][]string{open, resolved}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// The cost depends on the number of failures, not on the number of jobs that succeeded.
func TestFailures_ReadNoJobsThatSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Split())
		w := found(t, store)
		for range 3 {
			w.fail("t", "OCR", "broken")
		}
		var costs []storetest.Counts
		for _, finished := range []int{10, 90} {
			for range finished {
				w.accept("t", "OCR")
				w.End(w.Handoff.Last(), statemachine.ResultSucceeded, "")
			}
			counter.Reset()
			groups(t, w.Finder, search.Filter{})
			costs = append(costs, counter.Counts())
		}
		if costs[0] != costs[1] || costs[0].RowsRead == 0 {
			t.Errorf("costs with 10 and 100 jobs that succeeded: %+v", costs)
		}
	})
}

// An atomic store writes an index row together with its change, so no job is read to verify
// the row, except for the samples.
func TestFailures_OnAnAtomicStoreReadOnlyIndexRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		w := found(t, store)
		var costs []storetest.Counts
		for range 2 {
			for range 20 {
				w.fail("t", "OCR", "broken")
			}
			counter.Reset()
			groups(t, w.Finder, search.Filter{})
			costs = append(costs, counter.Counts())
		}
		if costs[0].Scans != costs[1].Scans || costs[1].RowsRead-costs[0].RowsRead != 20 {
			t.Errorf("costs with 20 and 40 failed jobs: %+v", costs)
		}
	})
}

// An index entry is written before the commit that ends the job, and stays if that commit
// is lost.
func TestFailures_LeaveOutALostEnd(t *testing.T) {
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
				store, faults := storetest.Faulty(ledgertest.Split())
				w := found(t, store)
				began := time.Now().UTC()
				want := []string{w.fail("t", "OCR", "broken")}
				time.Sleep(time.Second)
				id := w.accept("t", "OCR")
				m := w.Handoff.Last()
				w.Apply(id, ledgertest.Sent(m))
				faults.Plan(lost)
				if _, err := w.Change(t.Context(), id, ledgertest.Ended(m, statemachine.ResultFailedFinal, "broken")); err == nil {
					t.Fatal("the commit was not lost")
				}
				faults.Clear()
				time.Sleep(test.age)
				w.Send(id, statemachine.Cancel{})
				ended := began
				for range test.newer {
					time.Sleep(time.Second)
					ended = time.Now().UTC()
					want = append([]string{w.fail("t", "OCR", "broken")}, want...)
				}
				report := groups(t, w.Finder, search.Filter{})
				if diff := cmp.Diff([]search.FailureGroup{{
					FailureKind: search.FailureKind{StepType: "OCR", Service: "s", ErrorCode: "broken"}, Count: test.newer + 1, FirstAt: began, LastAt: ended,
					SampleJobIDs: want[:test.samples],
				}}, bare(t, report.Groups)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// many is a source with many failed jobs of one tenant. Their list may repeat without end.
type many struct {
	search.Source
	entries []ledger.IndexEntry
	endless bool
}

func (m *many) Atomic() bool { return true }

func (m *many) Index(_ context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	if q.Month.Month() != time.Now().UTC().Month() || q.After != "" && !m.endless {
		return nil, false, nil
	}
	return m.entries, m.endless, nil
}

func (m *many) Job(context.Context, string) (*statemachine.Aggregate, error) {
	return &statemachine.Aggregate{
		Job: statemachine.Job{TenantID: "many", State: statemachine.JobFailedFinal}, Steps: make([]statemachine.Step, 1),
	}, nil
}

func TestFailures_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := &many{}
		for n := range 501 {
			id := uuid.Must(uuid.NewV7()).String()
			jobs.entries = append(jobs.entries, ledger.IndexEntry{IndexRow: ledger.IndexRow{
				JobID: id, RequestType: "r", StepType: "S", ErrorCode: fmt.Sprint("code", n), EndedAt: time.Now(),
			}})
		}
		finder := &search.Finder{Source: jobs}
		if report := groups(t, finder, search.Filter{TenantID: "many"}); len(report.Groups) != 500 || !report.Truncated {
			t.Errorf("%d groups, truncated %t", len(report.Groups), report.Truncated)
		}
		jobs.endless = true
		report := groups(t, finder, search.Filter{TenantID: "many"})
		counted := 0
		for _, group := range report.Groups {
			counted += group.Count
		}
		if counted > 100_000 || counted < 98_000 || !report.Truncated {
			t.Errorf("%d counted, truncated %t", counted, report.Truncated)
		}
	})
}

// crowded is a source with many tenants, the last of which has a failed job.
type crowded struct {
	many
	tenants int
	takes   time.Duration // by a read
}

func (c *crowded) name(n int) string { return fmt.Sprintf("tenant%06d", n) }

func (c *crowded) Tenants(_ context.Context, after string, limit int) (names []string, err error) {
	for n := 1; n <= c.tenants && len(names) < limit; n++ {
		if name := c.name(n); name > after {
			names = append(names, name)
		}
	}
	return names, nil
}

func (c *crowded) Index(ctx context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	if c.takes > 0 {
		time.Sleep(c.takes)
	}
	if q.TenantID != c.name(c.tenants) {
		return nil, false, nil
	}
	return c.many.Index(ctx, q)
}

// The time of a report grows with the number of tenants only up to a bound, and a search goes on with the
// tenants that follow.
func TestFailures_OfManyTenants(t *testing.T) {
	t.Parallel()
	for tenants, takes := range map[int]time.Duration{3000: 10 * time.Millisecond, 35_000: 0} {
		synctest.Test(t, func(t *testing.T) {
			truncated := tenants > 34_000
			jobs := &crowded{tenants: tenants, takes: takes, many: many{entries: []ledger.IndexEntry{{IndexRow: ledger.IndexRow{
				JobID: uuid.Must(uuid.NewV7()).String(), RequestType: "r", StepType: "S", EndedAt: time.Now(),
			}}}}}
			finder, begun := &search.Finder{Source: jobs}, time.Now()
			report := groups(t, finder, search.Filter{})
			if took := time.Since(begun); took > 8*time.Second {
				t.Errorf("%d tenants take %v", tenants, took)
			}
			if report.Truncated != truncated || (len(report.Groups) == 1) == truncated {
				t.Errorf("%d tenants: %d groups, truncated %t", tenants, len(report.Groups), report.Truncated)
			}
			f, found := search.Filter{State: statemachine.JobFailedFinal}, 0
			for searches := 1; searches > 0; searches-- {
				for _, err := range finder.Find(t.Context(), &f, nil) {
					if more, ok := errors.AsType[*search.MoreError](err); ok {
						f.After, searches = more.After, searches+1
						continue
					}
					musttest.NoError(t, err)
					found++
				}
			}
			if found != 1 {
				t.Errorf("%d tenants: %d jobs found in all searches", tenants, found)
			}
		})
	}
}

func TestFailures_ErrorsAreProblems(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(ledgertest.Split())
	w := found(t, store)
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
		_, err := w.Failures(t.Context(), search.Filter{TenantID: ""}, search.Include{})
		if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.StoreUnavailable {
			t.Errorf("%s: %v", name, err)
		}
		faults.Clear()
	}
	now := time.Now()
	_, err := w.Failures(t.Context(), search.Filter{CreatedAfter: now, CreatedBefore: now}, search.Include{})
	if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.InvalidEnvelope {
		t.Errorf("an impossible filter: %v", err)
	}
}
