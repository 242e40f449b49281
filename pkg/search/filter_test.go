package search_test

import (
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// reported accepts a job with one step of that service. Unless the status is empty, a worker
// reports it.
func reported(l *ledgertest.Ledger, service string, status statemachine.ResultStatus, code string) string {
	cmd := ledgertest.Command("t", uuid.NewString(), ledgertest.Step("one", "X", service))
	cmd.Job.RequestType = "r." + service
	id := l.Submit(cmd)
	if status != "" {
		l.End(l.Handoff.Last(), status, code)
	}
	return id
}

// A list by service or error code reads only jobs that may match.
func TestList_ByServiceOrErrorCode(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Split())
	l := ledgertest.Publishing(t, ledger.Config{Store: store})
	done := reported(l, "ocr", statemachine.ResultSucceeded, "")
	bad := reported(l, "ocr", statemachine.ResultFailedFinal, "bad")
	again := reported(l, "ocr", statemachine.ResultFailedRetry, "timeout")
	late := reported(l, "embed", statemachine.ResultFailedFinal, "timeout")
	waits := reported(l, "ocr", "", "")
	stopped := reported(l, "embed", "", "")
	change(t, l, []string{stopped}, statemachine.Cancel{})

	const failed, succeeded = statemachine.JobFailedFinal, statemachine.JobSucceeded
	known := knowing(t, l, again, waits, done)
	for name, test := range map[string]struct {
		filter search.Filter
		want   []string
		reads  int // the most jobs to read if live jobs are listed
		least  int // the most jobs to read if their traits are known
	}{
		"of a service":               {search.Filter{Service: "ocr"}, []string{waits, again, bad, done}, 4, 4},
		"of an unknown service":      {search.Filter{Service: "x"}, nil, 2, 0},
		"of a request type":          {search.Filter{RequestType: "r.embed"}, []string{stopped, late}, 4, 2},
		"of a code":                  {search.Filter{ErrorCode: "timeout"}, []string{late, again}, 3, 2},
		"of both":                    {search.Filter{Service: "ocr", ErrorCode: "timeout"}, []string{again}, 2, 1},
		"of an unknown code":         {search.Filter{ErrorCode: "x"}, nil, 2, 0},
		"failed of a service":        {search.Filter{State: failed, Service: "ocr"}, []string{bad}, 1, 1},
		"failed with a code":         {search.Filter{State: failed, ErrorCode: "timeout"}, []string{late}, 1, 1},
		"failed of a request type":   {search.Filter{State: failed, RequestType: "r.embed"}, []string{late}, 1, 1},
		"of a service that succeeds": {search.Filter{State: succeeded, Service: "ocr"}, []string{done}, 1, 1},
		"succeeded elsewhere":        {search.Filter{State: succeeded, Service: "embed"}, nil, 0, 0},
		"succeeded with a code":      {search.Filter{State: succeeded, ErrorCode: "bad"}, nil, 0, 0},
		"that try again after one":   {search.Filter{State: statemachine.JobInProgress, ErrorCode: "timeout"}, []string{again}, 2, 1},
		"that wait elsewhere":        {search.Filter{State: statemachine.JobDispatching, Service: "embed"}, nil, 2, 0},
		"of a tenant":                {search.Filter{TenantID: "t", ErrorCode: "timeout"}, []string{late, again}, 3, 2},
		"of another tenant":          {search.Filter{TenantID: "u", ErrorCode: "timeout"}, nil, 0, 0},
		"of later times":             {search.Filter{Service: "ocr", CreatedAfter: time.Now().Add(25 * time.Hour)}, nil, 0, 0},
	} {
		for how, s := range map[string]struct {
			around  search.Surroundings
			maxLive int
			reads   int
		}{
			"listed": {search.Surroundings{}, 1000, test.reads},
			// No live job may be listed, so all jobs are read.
			"too many": {search.Surroundings{}, 0, 6},
			"known":    {known, 0, test.least},
		} {
			service := search.New(l.Ledger, &search.Ended{}, s.around)
			service.SetMaxLive(s.maxLive)
			counter.Reset()
			if diff := cmp.Diff(test.want, pages(t, service, test.filter, 10)); diff != "" {
				t.Errorf("jobs %s, live ones %s (-want +got):\n%s", name, how, diff)
			}
			if got := counter.ScansOf(jobTable); got > s.reads {
				t.Errorf("jobs %s, live ones %s: read %d jobs, want at most %d", name, how, got, s.reads)
			}
			if diff := cmp.Diff(test.want, pages(t, service, test.filter, 1)); diff != "" {
				t.Errorf("jobs %s, live ones %s, one per page (-want +got):\n%s", name, how, diff)
			}
		}
	}
}

// If no index row matches, the search for a page ends at its bound without reading a job.
func TestList_BoundsTheIndexRowsOfAPage(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Split())
	l := ledgertest.Open(t, ledger.Config{Store: store})
	const ended = 300
	change(t, l, accept(t, l, 0, ended), statemachine.Cancel{})
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	s.SetMaxSearched(100)
	counter.Reset()
	for after, page := "", 0; ; page++ {
		found, follows, err := s.List(t.Context(), search.Filter{State: statemachine.JobCancelled, Service: "x"}, 10, after)
		if err != nil || len(found) > 0 {
			t.Fatalf("%d jobs, %v", len(found), err)
		}
		if after = follows.Next; after == "" {
			if page != ended/100 {
				t.Errorf("%d pages", page)
			}
			break
		}
	}
	if scans := counter.Counts().Scans; counter.ScansOf(jobTable) > 0 || scans > 60 {
		t.Errorf("read %d jobs in %d scans", counter.ScansOf(jobTable), scans)
	}
}

// A page reads the newest of many live jobs, in whatever order their ids are known.
func TestList_ReadsTheNewestOfManyLiveJobs(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Split())
	l := ledgertest.Open(t, ledger.Config{Store: store})
	var want, known []string
	for range 5 {
		for range 1400 { // These have been purged.
			known = append(known, uuid.Must(uuid.NewV7()).String())
		}
		id := accept(t, l, len(want), 1)[0]
		want, known = append([]string{id}, want...), append(known, id)
	}
	for name, order := range map[string]func(){
		"the oldest first": func() { slices.Sort(known) }, "the newest first": func() { slices.Reverse(known) },
		"any order": func() { rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] }) },
	} {
		order()
		s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{
			Live: func(func(*search.Traits) bool) (iter.Seq[[]string], bool) { return slices.Chunk(known, 7), true },
		})
		counter.Reset()
		if diff := cmp.Diff(want, pages(t, s, search.Filter{State: statemachine.JobDispatching}, 10)); diff != "" {
			t.Errorf("known %s (-want +got):\n%s", name, diff)
		}
		if reads := counter.ScansOf(jobTable); reads != len(known) {
			t.Errorf("known %s: %d reads of %d jobs", name, reads, len(known))
		}
	}
}

// A process that does not know all live jobs yet waits for a while before it returns an empty
// page, and then returns those that it knows.
func TestList_WaitsForTheLiveJobs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes time.Duration // until all live jobs are known
		next  bool          // the page says that there may be more
	}{
		"soon": {2 * time.Second, false},
		"late": {time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := ledgertest.Open(t, ledger.Config{})
				paused := accept(t, l, 0, 5)
				change(t, l, paused, statemachine.Pause{})
				newer := accept(t, l, 5, 300)
				begun, known := time.Now(), knowing(t, l, append(newer, paused...)...)
				s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{
					Live: func(wanted func(*search.Traits) bool) (iter.Seq[[]string], bool) {
						parts, _ := known.Live(wanted)
						return parts, time.Since(begun) >= test.takes
					},
				})
				s.SetMaxLive(100)
				s.SetMaxSearched(100)
				page, follows, err := s.List(t.Context(), search.Filter{State: statemachine.JobPaused}, 10, "")
				var got []string
				for i := range page {
					got = append(got, page[i].Job.ID)
				}
				if diff := cmp.Diff(paused, got); diff != "" || err != nil || (follows.Next != "") != test.next {
					t.Errorf("next %q, %v (-want +got):\n%s", follows.Next, err, diff)
				}
				if test.next && !slices.Contains(newer, follows.Next) {
					t.Errorf("the next page begins after %s", follows.Next)
				}
				if took := time.Since(begun); took < min(test.takes, 5*time.Second) || took > 6*time.Second {
					t.Errorf("the page took %s", took)
				}
			})
		})
	}
}
