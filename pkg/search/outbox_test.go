package search_test

import (
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
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// Rows are listed in the order in which their jobs were accepted, and only jobs whose rows may
// match are read.
func TestListOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Split())
		l := ledgertest.Open(t, ledger.Config{Store: store, Bus: statemachine.BusServiceBus})
		published := ledgertest.Publishing(t, ledger.Config{Store: store})
		accept := func(tenantID string, lane int) string {
			step := ledgertest.Step("one", "", "ocr")
			step.Routing.Lane = lane
			return l.Submit(ledgertest.Command(tenantID, uuid.NewString(), step))
		}
		row := func(id string) string { return l.Read(id).Outbox.ID }
		step := ledgertest.Step("one", "", "ocr")
		step.Routing.Lane = 3
		dated := ledgertest.Command("t", "dated", step)
		dated.Job.NotAfter = time.Now().Add(time.Second)
		expired := l.Submit(dated)
		time.Sleep(time.Second)
		l.Apply(expired, statemachine.DeadlinePassed{})
		withdrawn := accept("t", 1)
		l.Apply(withdrawn, statemachine.Pause{})
		rejected := accept("t", 1)
		l.Apply(rejected, statemachine.PublishRejected{OutboxID: row(rejected), AttemptNo: 1, Permanent: true, Reason: "too large"})
		cancelled := accept("t", 2)
		l.Apply(cancelled, statemachine.Cancel{})
		time.Sleep(time.Millisecond) // Ids of two processes are in order if their times are.
		done := reported(published, "ocr", statemachine.ResultSucceeded, "")
		bad := reported(published, "ocr", statemachine.ResultFailedFinal, "bad")
		time.Sleep(time.Millisecond)
		sent := accept("t", 1)
		l.Apply(sent, statemachine.Published{OutboxID: row(sent), AttemptNo: 1})
		first, other, second := accept("t", 1), accept("u", 1), accept("t", 2)

		type filter = search.Filter
		const pending, final = statemachine.OutboxPending, statemachine.OutboxFailedFinal
		known := knowing(t, l, withdrawn, sent, first, other, second)
		for name, test := range map[string]struct {
			tenant string
			filter filter
			want   []string
			reads  int // the most jobs to read if live jobs are listed
			least  int // the most jobs to read if their traits are known
		}{
			"all":                 {"", filter{}, []string{second, other, first, sent, bad, done, cancelled, rejected, withdrawn, expired}, 10, 10},
			"of a tenant":         {"u", filter{}, []string{other}, 1, 1},
			"of no tenant":        {"v", filter{}, nil, 0, 0},
			"pending":             {"", filter{Outbox: pending}, []string{second, other, first}, 3, 3},
			"pending of a tenant": {"t", filter{Outbox: pending}, []string{second, first}, 2, 2},
			"pending in a lane":   {"", filter{Outbox: pending, Lane: new(2)}, []string{second}, 1, 1},
			"failed for good":     {"", filter{Outbox: final}, []string{cancelled, rejected, withdrawn, expired}, 8, 4},
			"failed in a lane":    {"t", filter{Outbox: final, Lane: new(2)}, []string{cancelled}, 7, 3},
			"sent":                {"", filter{Outbox: statemachine.OutboxSent}, []string{sent, bad, done}, 10, 10},
			"of a lane":           {"", filter{Lane: new(1)}, []string{other, first, sent, rejected, withdrawn}, 10, 9},
			"of an unknown lane":  {"", filter{Outbox: pending, Lane: new(7)}, nil, 0, 0},
		} {
			test.filter.TenantID = test.tenant
			for how, s := range map[string]struct {
				around  search.Surroundings
				maxLive int
				reads   int
			}{
				"listed": {search.Surroundings{}, 1000, test.reads},
				// No live job may be listed, so all jobs are read.
				"too many": {search.Surroundings{}, 0, 10},
				"known":    {known, 0, test.least},
			} {
				service := search.New(l.Ledger, &search.Ended{}, s.around)
				service.SetMaxLive(s.maxLive)
				for _, limit := range []int{1, 2, 100} {
					counter.Reset()
					var got []string
					for after, more := "", true; more; more = after != "" {
						page, follows, err := service.ListOutbox(t.Context(), test.filter, limit, after)
						if err != nil || len(page) > limit {
							t.Fatalf("rows %s, live jobs %s: %d on a page of %d, %v", name, how, len(page), limit, err)
						}
						for _, agg := range page {
							if agg.Outbox == nil || test.filter.Outbox != "" && agg.Outbox.State != test.filter.Outbox {
								t.Errorf("rows %s: listed %+v", name, agg.Outbox)
							}
							got = append(got, agg.Job.ID)
						}
						after = follows.Next
					}
					if diff := cmp.Diff(test.want, got); diff != "" {
						t.Errorf("rows %s, live jobs %s, %d per page (-want +got):\n%s", name, how, limit, diff)
					}
					if reads := counter.ScansOf(jobTable); limit == 100 && reads > s.reads {
						t.Errorf("rows %s, live jobs %s: read %d jobs, want at most %d", name, how, reads, s.reads)
					}
				}
			}
		}
	})
}

// A page of the few pending rows reads only their jobs, however many live jobs there are. A
// page that has to search says where the search ended.
func TestListOutbox_OfManyLiveJobs(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Split())
	l := ledgertest.Open(t, ledger.Config{Store: store, Bus: statemachine.BusServiceBus})
	waits := accept(t, l, 0, 3)
	for _, id := range accept(t, l, 3, 2100) {
		l.Apply(id, statemachine.Published{OutboxID: l.Read(id).Outbox.ID, AttemptNo: 1})
	}
	// A row that cannot be decoded hides no others.
	l.Put(tablestore.Key{Table: "luciusschedule", Partition: "shard:000", Row: "dispatch:0000000000000:x"}, tablestore.Properties{})
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	s.SetMaxLive(100)
	counter.Reset()
	page, follows, err := s.ListOutbox(t.Context(), search.Filter{Outbox: statemachine.OutboxPending}, 10, "")
	if reads := counter.ScansOf(jobTable); err != nil || follows.Next != "" || len(page) != 3 || page[0].Job.ID != waits[0] || reads != 3 {
		t.Errorf("%d pending rows, next %q, %d reads, %v", len(page), follows.Next, reads, err)
	}
	counter.Reset()
	page, follows, err = s.ListOutbox(t.Context(), search.Filter{Outbox: statemachine.OutboxFailedFinal}, 10, "")
	if reads := counter.ScansOf(jobTable); err != nil || follows.Next == "" || len(page) != 0 || reads != 2000 {
		t.Errorf("%d failed rows, next %q, %d reads, %v", len(page), follows.Next, reads, err)
	}
	if slices.Contains(waits, follows.Next) {
		t.Errorf("the search ended at %q", follows.Next)
	}
}
