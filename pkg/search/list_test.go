package search_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// crowd accepts a job every ten days for five months, for three tenants in turn, and cancels
// every third. It returns the ids, oldest first.
func crowd(t *testing.T) (*search.Service, []string) {
	t.Helper()
	l := ledgertest.Open(t, ledger.Config{Store: ledgertest.Split()})
	var ids []string
	for i := range 15 {
		cmd := ledgertest.Command(fmt.Sprint("t", i%3), fmt.Sprint(i))
		cmd.Job.RequestType, cmd.Job.CorrelationID = fmt.Sprint("r", i%2), fmt.Sprint("c", i/3)
		id := l.Submit(cmd)
		ids = append(ids, id)
		if i%3 == 2 {
			l.Apply(id, statemachine.Cancel{})
		}
		time.Sleep(10 * 24 * time.Hour)
	}
	return search.New(l.Ledger, &search.Ended{}, search.Surroundings{}), ids
}

// pages reads a list to its end.
func pages(t *testing.T, s *search.Service, f search.Filter, limit int) []string {
	t.Helper()
	var ids []string
	after := ""
	for {
		found, follows, err := s.List(t.Context(), f, limit, after)
		musttest.NoError(t, err)
		if len(found) > limit {
			t.Errorf("a page of %d, limit %d", len(found), limit)
		}
		for _, agg := range found {
			ids = append(ids, agg.Job.ID)
		}
		if after = follows.Next; after == "" {
			return ids
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		day := func(n int) time.Time { return begin.Add(time.Duration(n) * 24 * time.Hour) }
		s, ids := crowd(t)
		all := day(-1)
		for name, test := range map[string]struct {
			filter search.Filter
			want   func(i int) bool
		}{
			"all":                  {search.Filter{CreatedAfter: all}, func(int) bool { return true }},
			"the last months":      {search.Filter{}, func(i int) bool { return i >= 6 }}, // from March on
			"of a tenant":          {search.Filter{CreatedAfter: all, TenantID: "t1"}, func(i int) bool { return i%3 == 1 }},
			"of an unknown tenant": {search.Filter{CreatedAfter: all, TenantID: "t9"}, func(int) bool { return false }},
			"that are cancelled":   {search.Filter{CreatedAfter: all, State: statemachine.JobCancelled}, func(i int) bool { return i%3 == 2 }},
			"that are dispatching": {search.Filter{CreatedAfter: all, State: statemachine.JobDispatching}, func(i int) bool { return i%3 != 2 }},
			"of a request type":    {search.Filter{CreatedAfter: all, RequestType: "r1"}, func(i int) bool { return i%2 == 1 }},
			"from a time on":       {search.Filter{CreatedAfter: day(100)}, func(i int) bool { return i >= 10 }},
			"before a time":        {search.Filter{CreatedAfter: all, CreatedBefore: day(30)}, func(i int) bool { return i < 3 }},
			"before a far time":    {search.Filter{CreatedAfter: all, CreatedBefore: day(99 * 366)}, func(int) bool { return true }},
			"that ended since":     {search.Filter{CreatedAfter: all, EndedAfter: day(100)}, func(i int) bool { return i == 11 || i == 14 }},
			"of a type that ended": {
				search.Filter{CreatedAfter: all, EndedBefore: day(99 * 366), RequestType: "r1"},
				func(i int) bool { return i%6 == 5 },
			},
			"with a correlation id": {search.Filter{TenantID: "t0", CorrelationID: "c2"}, func(i int) bool { return i == 6 }},
			"of one correlation id": {search.Filter{CorrelationID: "c1"}, func(i int) bool { return i/3 == 1 }},
			"of an unknown one":     {search.Filter{CorrelationID: "c"}, func(int) bool { return false }},
		} {
			var want []string
			for i, id := range ids {
				if test.want(i) {
					want = append(want, id)
				}
			}
			slices.Reverse(want)
			for _, limit := range []int{1, 2, 4, 100} {
				if diff := cmp.Diff(want, pages(t, s, test.filter, limit)); diff != "" {
					t.Errorf("jobs %s, %d a page (-want +got):\n%s", name, limit, diff)
				}
			}
		}
	})
}

// A job whose rows cannot be read is left out, and logged: the list goes on.
func TestList_LeavesOutAJobThatCannotBeRead(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{Store: ledgertest.Split()})
	var log strings.Builder
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ids := accept(t, l, 0, 3)
	l.Put(tablestore.Key{Table: jobTable, Partition: ids[1], Row: "JOB"}, tablestore.Properties{{Name: "rev", Value: tablestore.String("x")}})
	for _, f := range []search.Filter{{}, {State: statemachine.JobDispatching}} {
		if got := pages(t, s, f, 1); !slices.Equal(got, []string{ids[0], ids[2]}) {
			t.Errorf("%+v: listed %v of %v", f, got, ids)
		}
	}
	if !strings.Contains(log.String(), ids[1]) {
		t.Errorf("the log does not name the job:\n%s", &log)
	}
	rows, _, err := s.ListOutbox(t.Context(), search.Filter{}, 10, "")
	if err != nil || len(rows) != 2 {
		t.Errorf("%d outbox rows, %v", len(rows), err)
	}
}

// accept accepts n jobs in sequence, and returns their ids, newest first.
func accept(t *testing.T, l *ledgertest.Ledger, from, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range n {
		cmd := ledgertest.Command(fmt.Sprint("t", i%2), fmt.Sprint(from+i))
		cmd.Job.RequestType = "r"
		ids[n-1-i] = l.Submit(cmd)
	}
	return ids
}

// change applies an event to each of the jobs.
func change(t *testing.T, l *ledgertest.Ledger, ids []string, event statemachine.Event) {
	t.Helper()
	for _, id := range ids {
		l.Send(id, event)
	}
}

// knowing returns surroundings that know the traits of the jobs, as they are now, if they are
// live.
func knowing(t *testing.T, l *ledgertest.Ledger, ids ...string) search.Surroundings {
	t.Helper()
	known := map[string]search.Traits{}
	for _, id := range ids {
		if agg := l.Read(id); !agg.Job.State.Terminal() {
			known[id] = search.TraitsOf(agg)
		}
	}
	return search.Surroundings{Live: func(wanted func(*search.Traits) bool) (parts iter.Seq[[]string], all bool) {
		var found []string
		for id, traits := range known {
			if wanted(&traits) {
				found = append(found, id)
			}
		}
		return slices.Values([][]string{found}), true
	}}
}

// Live jobs in the wanted state are found although they are older than many others. Each
// page reads a bounded number of jobs, even if it finds none.
func TestList_FindsLiveStates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		newer   int
		event   statemachine.Event // changes the newer jobs, unless nil
		maxLive int
		known   bool // the traits of the live jobs are known
		reads   int  // the most jobs that a page may read
	}{
		"after ended ones":                        {300, statemachine.Cancel{}, 100, false, 7},
		"after more live ones than a page":        {2100, nil, 10_000, false, 2000},
		"after more live ones than may be listed": {2100, nil, 100, false, 2000},
		"among known ones":                        {2100, nil, 100, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, counter := storetest.Counting(ledgertest.Split())
			l := ledgertest.Open(t, ledger.Config{Store: store})
			paused := accept(t, l, 0, 7)
			change(t, l, paused, statemachine.Pause{})
			newer := accept(t, l, 7, test.newer)
			if test.event != nil {
				change(t, l, newer, test.event)
			}
			var around search.Surroundings
			if test.known {
				around = knowing(t, l, append(newer, paused...)...)
			}
			s := search.New(l.Ledger, &search.Ended{}, around)
			s.SetMaxLive(test.maxLive)
			var got []string
			for after := ""; ; {
				counter.Reset()
				page, follows, err := s.List(t.Context(), search.Filter{State: statemachine.JobPaused}, 3, after)
				musttest.NoError(t, err)
				reads := counter.ScansOf(jobTable)
				if reads > test.reads || reads < len(page) || len(page) == 0 && follows.Next != "" && reads < 2000 {
					t.Errorf("a page of %d jobs after %q read %d jobs", len(page), after, reads)
				}
				for _, job := range page {
					got = append(got, job.Job.ID)
				}
				if after = follows.Next; after == "" {
					break
				}
			}
			if diff := cmp.Diff(paused, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A list of live jobs reads as much among 100 live jobs as among 10,000, in a store that one
// process writes and in one that several share.
func TestList_OfLiveJobsReadsOnePage(t *testing.T) {
	t.Parallel()
	const few, limit = 7, 3
	filters := map[string]search.Filter{
		"in a rare state":                 {State: statemachine.JobPaused},
		"in a rare state, of a tenant":    {State: statemachine.JobPaused, TenantID: "t1"},
		"in a rare state, of a service":   {State: statemachine.JobPaused, Service: "ocr"},
		"in a rare state, of a type":      {State: statemachine.JobPaused, RequestType: "r"},
		"in a state without jobs":         {State: statemachine.JobCancelling},
		"in the state of most":            {State: statemachine.JobDispatching},
		"in the state of most, of a type": {State: statemachine.JobDispatching, RequestType: "r"},
		"of a service":                    {Service: "ocr"},
	}
	type cost struct{ Reads, Rows, Found int64 }
	for name, shared := range map[string]bool{"one process": false, "several processes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			costs := map[int]map[string]cost{}
			for _, most := range []int{100, 10_000} {
				store, counter := storetest.Counting(ledgertest.Atomic())
				l := ledgertest.Open(t, ledger.Config{Store: store, Shared: shared})
				paused := accept(t, l, 0, few)
				change(t, l, paused, statemachine.Pause{})
				others := accept(t, l, few, most)
				var around search.Surroundings
				if !shared {
					around = knowing(t, l, append(others, paused...)...)
				}
				s := search.New(l.Ledger, &search.Ended{}, around)
				costs[most] = map[string]cost{}
				for name, filter := range filters {
					counter.Reset()
					page, _, err := s.List(t.Context(), filter, limit, "")
					musttest.NoError(t, err)
					counts := counter.Counts()
					costs[most][name] = cost{counts.Gets + counts.Scans, counts.RowsRead, int64(len(page))}
				}
			}
			if diff := cmp.Diff(costs[100], costs[10_000]); diff != "" {
				t.Errorf("-among 100 +among 10,000 live jobs:\n%s", diff)
			}
			for name, got := range costs[10_000] {
				if got.Reads > 40 || got.Rows > 150 {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
}

// A search that finds nothing ends at its bound even if the process knows all live jobs.
func TestList_BoundsAFruitlessSearch(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{Store: ledgertest.Split()})
	ended := accept(t, l, 0, 300)
	change(t, l, ended, statemachine.Cancel{})
	s := search.New(l.Ledger, &search.Ended{}, knowing(t, l))
	s.SetMaxSearched(100)
	page, follows, err := s.List(t.Context(), search.Filter{Service: "none"}, 10, "")
	if err != nil || len(page) > 0 || follows.Next != ended[99] {
		t.Errorf("a page of %d jobs, next %q, want %q; %v", len(page), follows.Next, ended[99], err)
	}
}

// A list that merges not the jobs of all tenants says so.
func TestList_SaysThatTenantsAreOmitted(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{Store: ledgertest.Split()})
	for _, tenant := range []string{"t1", "t2", "t3"} {
		cmd := ledgertest.Command(tenant, "")
		cmd.Job.CorrelationID = "c"
		change(t, l, []string{l.Submit(cmd)}, statemachine.Cancel{})
	}
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	for name, test := range map[string]struct {
		filter     search.Filter
		maxTenants int
		jobs       int
		omitted    bool
	}{
		"all are merged":       {search.Filter{}, 3, 3, false},
		"one is not":           {search.Filter{}, 2, 2, true},
		"one is not, of a key": {search.Filter{CorrelationID: "c"}, 2, 2, true},
		"a tenant is named":    {search.Filter{TenantID: "t3"}, 2, 1, false},
		"jobs of one state":    {search.Filter{State: statemachine.JobCancelled}, 2, 2, true},
	} {
		s.SetMaxTenants(test.maxTenants)
		found, page, err := s.List(t.Context(), test.filter, 10, "")
		if err != nil || len(found) != test.jobs || page.TenantsOmitted != test.omitted {
			t.Errorf("%s: %d jobs, %+v, %v", name, len(found), page, err)
		}
		rows, page, err := s.ListOutbox(t.Context(), test.filter, 10, "")
		if err != nil || len(rows) != test.jobs || page.TenantsOmitted != test.omitted {
			t.Errorf("%s: %d rows, %+v, %v", name, len(rows), page, err)
		}
	}
}

// months counts the months of which the index is read.
type months map[string]bool

func (m months) Index(_ context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	m[q.Month.Format("2006-01")] = true
	return nil, false, nil
}

// order records in which order the lists of a tenant are read.
type order struct {
	mu     sync.Mutex
	states map[string][]statemachine.JobState
}

func (o *order) Index(_ context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	runtime.Gosched()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states[q.TenantID] = append(o.states[q.TenantID], q.State)
	return nil, false, nil
}

// A job that advances while its tenant's lists are read must not be missed in all of them.
func TestHints_OfATenantAreReadInTheOrderOfAJobsLife(t *testing.T) {
	t.Parallel()
	live := slices.DeleteFunc(slices.Clone(statemachine.JobStates), statemachine.JobState.Terminal)
	index := &order{states: map[string][]statemachine.JobState{}}
	for hint, err := range (&search.Filter{}).Hints(t.Context(), index, search.HintQuery{Tenants: []string{"a", "b", "c"}, States: live}) {
		t.Error(hint, err)
	}
	for tenant, states := range index.states {
		if months := slices.Collect(slices.Chunk(states, len(live))); len(months) != 3 || !slices.Equal(months[0], live) {
			t.Errorf("%s: %v", tenant, states)
		}
	}
	if len(index.states) != 3 {
		t.Errorf("lists of %d tenants are read", len(index.states))
	}
}

// A job that starts while live jobs are found must not be missed, although they are more than are read at once
// and workers start the oldest, which are read last.
func TestFind_FindsJobsThatStartMeanwhile(t *testing.T) {
	t.Parallel()
	l := ledgertest.Publishing(t, ledger.Config{Store: ledgertest.Atomic(), Shared: true})
	const all, started = 1100, 50 // A list gives up to 1,000 at once.
	var oldest []ledger.Message
	for n := range all {
		l.Submit(ledgertest.Command("a", fmt.Sprint(n), ledgertest.Step("one", "OCR", "s")))
		if n < started {
			oldest = append(oldest, l.Handoff.Last())
		}
	}
	got := map[string]bool{}
	for found, err := range (&search.Finder{Source: l.Ledger}).Find(t.Context(), &search.Filter{TenantID: "a"}, nil) {
		musttest.NoError(t, err)
		if len(got) == 0 {
			for _, message := range oldest {
				l.Apply(message.JobID, ledgertest.Sent(message))
				l.Apply(message.JobID, ledgertest.Started(message))
			}
		}
		got[found.JobID] = true
	}
	if len(got) != all {
		t.Errorf("%d jobs are found, want %d", len(got), all)
	}
}

// No job was accepted in a month that has not come yet.
func TestHints_OfFarTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // It begins in January 2000.
		far := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
		for name, test := range map[string]struct {
			filter search.Filter
			after  string
			want   []string
		}{
			"without bounds":           {want: []string{"1999-11", "1999-12", "2000-01"}},
			"before a far time":        {filter: search.Filter{CreatedBefore: far}, want: []string{"1999-11", "1999-12", "2000-01"}},
			"before a past time":       {filter: search.Filter{CreatedBefore: time.Date(1999, 5, 9, 0, 0, 0, 0, time.UTC)}, want: []string{"1999-03", "1999-04", "1999-05"}},
			"after a job of that time": {after: "ffffffff-ffff-7fff-bfff-ffffffffffff", want: []string{"1999-11", "1999-12", "2000-01"}},
			"between two times": {
				filter: search.Filter{CreatedAfter: time.Date(1999, 12, 9, 0, 0, 0, 0, time.UTC), CreatedBefore: far},
				want:   []string{"1999-12", "2000-01"},
			},
			"after a far time": {filter: search.Filter{CreatedAfter: far}},
			// A job accepted in its first minutes may have an id of the month before.
			"from the first of a month": {
				filter: search.Filter{CreatedAfter: time.Date(1999, 12, 1, 0, 0, 0, 0, time.UTC)},
				want:   []string{"1999-11", "1999-12", "2000-01"},
			},
		} {
			read := months{}
			for _, err := range test.filter.Hints(t.Context(), read, search.HintQuery{Tenants: []string{"t"}, After: test.after}) {
				t.Errorf("%s: a hint, %v", name, err)
			}
			if diff := cmp.Diff(test.want, slices.Sorted(maps.Keys(read))); diff != "" {
				t.Errorf("%s, the months (-want +got):\n%s", name, diff)
			}
		}
	})
}

// rolledForward is an index with the job of an accept that was rolled forward after a month began.
type rolledForward string

func (id rolledForward) Index(_ context.Context, q ledger.IndexQuery) (entries []ledger.IndexEntry, more bool, err error) {
	if month := ledger.IDTime(string(id)).UTC(); q.Month.Year() == month.Year() && q.Month.Month() == month.Month() {
		entries = []ledger.IndexEntry{{IndexRow: ledger.IndexRow{JobID: string(id)}}}
	}
	return entries, false, nil
}

func TestHints_OfAJobWhoseIDIsOfTheMonthBefore(t *testing.T) {
	t.Parallel()
	made := time.Date(2025, 10, 31, 23, 59, 58, 0, time.UTC)
	hex := fmt.Sprintf("%012x", made.UnixMilli())
	id := rolledForward(hex[:8] + "-" + hex[8:] + "-7000-8000-000000000000")
	if !ledger.IDTime(string(id)).Equal(made) {
		t.Fatalf("the id is of %s", ledger.IDTime(string(id)))
	}
	f, found := search.Filter{CreatedAfter: time.Date(2025, 11, 1, 0, 0, 0, 0, time.UTC)}, 0
	f.CreatedBefore = f.CreatedAfter.AddDate(0, 0, 7)
	for hint, err := range f.Hints(t.Context(), id, search.HintQuery{Tenants: []string{"t"}}) {
		if found++; err != nil || hint.JobID != string(id) {
			t.Errorf("hint %s, %v", hint.JobID, err)
		}
	}
	if found != 1 {
		t.Errorf("%d hints of a job accepted on the first of November", found)
	}
}

// The jobs of several tenants are accepted within a millisecond or two.
func TestList_KeepsTheOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{Store: ledgertest.Split()})
	want := accept(t, l, 0, 40)
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	for _, state := range []statemachine.JobState{"", statemachine.JobDispatching} {
		if diff := cmp.Diff(want, pages(t, s, search.Filter{State: state}, 7)); diff != "" {
			t.Errorf("state %q (-want +got):\n%s", state, diff)
		}
	}
}

// A page ends with the job that exceeds its size.
func TestList_BoundsTheBytesOfAPage(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{})
	ref := []byte(`{"uri":"s3://` + strings.Repeat("x", 8000) + `"}`)
	for i := range 10 {
		cmd := ledgertest.Command("t", fmt.Sprint(i), ledgertest.Step("one", "", ""), ledgertest.Step("two", "", ""))
		cmd.Job.InputRef, cmd.Job.OutputRef, cmd.Job.WorkspaceRef = ref, ref, ref
		l.Submit(cmd)
	}
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	found, follows, err := s.List(t.Context(), search.Filter{}, 10, "")
	size := 0
	for i := range found {
		encoded, err := json.Marshal(httpapi.JobOf(&found[i]))
		musttest.NoError(t, err)
		size += len(encoded)
	}
	bound, most := search.PageBytes(10), search.PageBytes(1000)
	if err != nil || follows.Next == "" || size < bound/2 || size > bound+50_000 || most > 4<<20 {
		t.Errorf("a page of %d jobs has %d bytes, want %d: next %q, %v", len(found), size, bound, follows.Next, err)
	}
	if all := pages(t, s, search.Filter{}, 10); len(all) != 10 {
		t.Errorf("all pages have %d jobs", len(all))
	}
}

func TestList_NamesTheInvalidParameter(t *testing.T) {
	t.Parallel()
	s, _, id := setup(t)
	now := time.Now()
	for name, call := range map[string]func() error{
		"page_token": func() error { _, _, err := s.List(t.Context(), search.Filter{}, 1, "x"); return err },
		"created_after": func() error {
			_, _, err := s.List(t.Context(), search.Filter{CreatedAfter: now, CreatedBefore: now}, 1, id)
			return err
		},
		"waiting": func() error {
			_, _, err := s.List(t.Context(), search.Filter{
				State: statemachine.JobSucceeded, Waiting: []statemachine.Reason{statemachine.ReasonQueued},
			}, 1, "")
			return err
		},
		"waiting for its end": func() error {
			_, _, err := s.List(t.Context(), search.Filter{EndedBefore: now, Waiting: []statemachine.Reason{statemachine.ReasonQueued}}, 1, "")
			return err
		},
		"state": func() error {
			_, _, err := s.List(t.Context(), search.Filter{State: statemachine.JobQueued, EndedAfter: now}, 1, "")
			return err
		},
	} {
		var told *apierror.Error
		if err := call(); !errors.As(err, &told) || told.Code != apierror.InvalidEnvelope {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An index row may name a job whose accept never committed.
func TestList_SkipsMissingJobs(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(ledgertest.Split())
	l := ledgertest.Open(t, ledger.Config{Store: store})
	faults.Plan(lost)
	_, err := l.Accept(t.Context(), ledgertest.Command("t", "h"))
	if !errors.Is(err, tablestore.ErrUnavailable) {
		t.Fatal(err)
	}
	if found := pages(t, search.New(l.Ledger, &search.Ended{}, search.Surroundings{}), search.Filter{}, 10); len(found) != 0 {
		t.Errorf("listed %v", found)
	}
}

func TestLineage_IsTheWholeChainFromAnyOfItsJobs(t *testing.T) {
	t.Parallel()
	s, l, first := setup(t)
	l.Send(first, statemachine.Cancel{})
	again := l.RerunOf(first, ledger.FromFailed)
	l.Send(again, statemachine.Cancel{}) // It leaves the chain of those that count, and not the lineage.
	instead := l.RerunOf(again, ledger.FromStart)
	l.Send(instead, statemachine.Cancel{})
	third := l.RerunOf(first, ledger.FromStart)
	for _, id := range []string{first, again, instead, third} {
		found, truncated, err := s.Lineage(t.Context(), id)
		if err != nil || truncated || len(found) != 4 {
			t.Fatalf("of %s: %d jobs, %t, %v", id, len(found), truncated, err)
		}
		for i, want := range []string{first, again, instead, third} {
			if found[i].JobID != want || found[i].Aggregate == nil {
				t.Errorf("of %s: job %d is %+v, want %s", id, i, found[i], want)
			}
		}
	}
	var told *apierror.Error
	if _, _, err := s.Lineage(t.Context(), "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77"); !errors.As(err, &told) || told.Code != apierror.JobNotFound {
		t.Errorf("of a missing job: %v", err)
	}
}

func TestFollow_ContinuesAfterAnEntry(t *testing.T) {
	t.Parallel()
	s, l, id := setup(t)
	first, ended, err := s.Follow(t.Context(), id, 0, 0)
	if err != nil || ended || len(first) < 3 {
		t.Fatalf("%d entries, %t, %v", len(first), ended, err)
	}
	rest, _, err := s.Follow(t.Context(), id, first[1].Rev, first[1].Index)
	if diff := cmp.Diff(first[2:], rest); diff != "" || err != nil {
		t.Errorf("after the second: %v (-want +got):\n%s", err, diff)
	}
	l.Send(id, statemachine.Cancel{})
	last := first[len(first)-1]
	rest, ended, err = s.Follow(t.Context(), id, last.Rev, last.Index)
	if err != nil || !ended || len(rest) == 0 || rest[0].Rev != 2 {
		t.Errorf("after the end: %+v, %t, %v", rest, ended, err)
	}
	rest, _, err = s.Follow(t.Context(), id, last.Rev, ledger.FirstRejected) // a rejected callback that was deleted
	if err != nil || len(rest) == 0 || rest[0].Rev != 2 {
		t.Errorf("after a rejected callback: %+v, %v", rest, err)
	}
	var told *apierror.Error
	if _, _, err := s.Follow(t.Context(), "gone", 0, 0); !errors.As(err, &told) || told.Code != apierror.JobNotFound {
		t.Errorf("follow of a missing job: %v", err)
	}
}
