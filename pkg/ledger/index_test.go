package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// listed are the jobs of a list, page by page.
func (b *bundle) listed(t *testing.T, q ledger.IndexQuery) []string {
	t.Helper()
	var ids []string
	for {
		q.Limit = 2
		entries, more, err := b.Index(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			ids = append(ids, entry.JobID)
			q.After = entry.JobID
		}
		if !more {
			return ids
		}
	}
}

func TestIndex_ListsJobsNewestFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var ids []string
		for i := range 5 {
			cmd := command(fmt.Sprint(i))
			cmd.Job.CorrelationID = fmt.Sprint("c", i%2)
			ids = append(ids, b.Submit(cmd))
			time.Sleep(time.Millisecond)
		}
		slices.Reverse(ids)
		month := ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now()}
		if diff := cmp.Diff(ids, b.listed(t, month)); diff != "" {
			t.Errorf("all jobs (-want +got):\n%s", diff)
		}
		month.Month = time.Now().AddDate(0, -1, 0)
		if got := b.listed(t, month); len(got) != 0 {
			t.Errorf("the month before has %v", got)
		}
		if got := b.listed(t, ledger.IndexQuery{TenantID: "tenant_a", CorrelationID: "c1"}); !slices.Equal(got, []string{ids[1], ids[3]}) {
			t.Errorf("by correlation id: %v of %v", got, ids)
		}
		if tenants, err := b.Tenants(t.Context(), "", 10); err != nil || !slices.Equal(tenants, []string{"tenant_a"}) {
			t.Errorf("tenants %v, %v", tenants, err)
		}
	})
}

func TestIndex_AnEndedJobIsListedByItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cancelled := b.Submit(command("a"))
	b.Apply(cancelled, statemachine.Cancel{})
	failed := b.Submit(command("b"))
	b.failFinal(t)
	for state, want := range map[statemachine.JobState]string{
		statemachine.JobCancelled: cancelled, statemachine.JobFailedFinal: failed,
	} {
		q := ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), State: state, Limit: 10}
		entries, _, err := b.Index(t.Context(), q)
		if err != nil || len(entries) != 1 || entries[0].JobID != want || entries[0].EndedAt.IsZero() {
			t.Errorf("%s: %+v, %v", state, entries, err)
		}
		if state == statemachine.JobFailedFinal && (entries[0].StepType != "ONE" || entries[0].ErrorCode != "broken") {
			t.Errorf("%+v", entries[0])
		}
	}
}

// failFinal fails the newest job for good.
func (b *bundle) failFinal(t *testing.T) {
	t.Helper()
	m := b.Handoff.Last()
	b.Apply(m.JobID, ledgertest.Sent(m))
	b.Apply(m.JobID, ledgertest.Ended(m, statemachine.ResultFailedFinal, "broken"))
}

// A page of a tenant's jobs reads no rows of other tenants.
func TestLive_OfATenantDisclosesNothingOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want, got []string
	for i := range 25 {
		cmd := command(fmt.Sprint(i))
		cmd.Job.TenantID = []string{"tenant_b", "tenant_a", "tenant", "tenant_a_", "tenant_a:"}[i%5]
		if id := b.Submit(cmd); cmd.Job.TenantID == "tenant_a" {
			want = append(want, id)
		}
	}
	for shard := range b.Shards() {
		for from := ""; ; {
			ids, next, err := b.Live(t.Context(), "tenant_a", shard, 1, from)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ids...)
			if from = next; from == "" {
				break
			}
			if !strings.HasPrefix(from, "live:tenant_a:"+got[len(got)-1]) {
				t.Errorf("the page ends at %q", from)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Jobs that are accepted one after the other, many of them in one millisecond.
func TestIndex_ListsJobsOfOneMillisecondInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var ids []string
		for i := range 50 {
			ids = append(ids, b.Submit(command(fmt.Sprint(i))))
		}
		slices.Reverse(ids)
		if diff := cmp.Diff(ids, b.listed(t, ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now()})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// More ids than a millisecond has sequence numbers, and a clock that goes back.
func TestNewJobID_IsNewerThanAllBefore(t *testing.T) {
	t.Parallel()
	t.Run("that begins with the time", func(t *testing.T) {
		t.Parallel()
		newerThanAllBefore(t, ledger.Config{})
	})
	t.Run("that begins with random bits", func(t *testing.T) {
		t.Parallel()
		newerThanAllBefore(t, ledger.Config{SpreadIDs: true})
	})
}

func newerThanAllBefore(t *testing.T, cfg ledger.Config) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, split(), cfg)
		began, before := time.Now(), ""
		for i := range 10_000 {
			id, err := b.NewJobID()
			if err != nil || ledger.ParseJobID(id) != nil {
				t.Fatalf("id %q: %v", id, err)
			}
			if i > 0 && ledger.ListOrder(id) >= ledger.ListOrder(before) {
				t.Fatalf("id %d is %s, after %s", i, id, before)
			}
			before = id
		}
		if ahead := ledger.IDTime(before).Sub(began); ahead < time.Millisecond || ahead > 5*time.Millisecond {
			t.Errorf("10,000 ids take %s", ahead)
		}
		time.Sleep(time.Second)
		if id, err := b.NewJobID(); err != nil || !ledger.IDTime(id).Equal(time.Now().UTC().Truncate(time.Millisecond)) {
			t.Errorf("a second later: %s, %v", id, err)
		}
	})
}

// Spread ids do not sort by time: ids made one after the other share no key range. Each is
// a UUID of its version.
func TestNewJobID_SpreadsTheKeys(t *testing.T) {
	t.Parallel()
	for _, spread := range []bool{false, true} {
		b := open(t, split(), ledger.Config{SpreadIDs: spread})
		begins := map[string]bool{}
		for range 1000 {
			id, err := b.NewJobID()
			if err != nil {
				t.Fatal(err)
			}
			if version := map[bool]byte{false: '7', true: '8'}[spread]; id[14] != version || !strings.ContainsRune("89ab", rune(id[19])) {
				t.Fatalf("%s is no UUID of version %c", id, version)
			}
			begins[id[:2]] = true
		}
		if n := len(begins); spread != (n > 200) {
			t.Errorf("spread %t: the ids begin in %d ways", spread, n)
		}
	}
}

func TestIDTime(t *testing.T) {
	t.Parallel()
	for id, ok := range map[string]bool{
		"0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77": true, "0197F0C2-6F3A-7C41-9D0E-2B1F6A5C8E77": false,
		"": false, "gone": false, "f47ac10b-58cc-4372-a567-0e02b2c3d479": false,
	} {
		if got := ledger.ParseJobID(id) == nil; got != ok {
			t.Errorf("%q is a job id: %t", id, got)
		}
	}
	if at := ledger.IDTime("0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77"); at.Format(time.RFC3339) != "2025-07-09T19:56:03Z" {
		t.Errorf("made at %s", at)
	}
}

// Tenants share a correlation id by accident. Each sees its own jobs alone, and the tenants
// are found without reading their jobs.
func TestIndex_NamesTheTenantsOfACorrelationID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := map[string]string{}
	for i, tenant := range []string{"a", "a:b", "ab", "ä", "a"} {
		cmd := command(fmt.Sprint(i))
		cmd.Job.TenantID, cmd.Job.CorrelationID = tenant, "c"
		id := b.Submit(cmd)
		want[tenant] = strings.TrimSpace(id + " " + want[tenant])
	}
	tenants, err := b.CorrelatedTenants(t.Context(), "c", 10)
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(tenants)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("tenants %q, %v", tenants, err)
	}
	for _, tenant := range tenants {
		if got := b.listed(t, ledger.IndexQuery{TenantID: tenant, CorrelationID: "c"}); strings.Join(got, " ") != want[tenant] {
			t.Errorf("%s: %v, want %s", tenant, got, want[tenant])
		}
	}
	if some, err := b.CorrelatedTenants(t.Context(), "c", 2); err != nil || !slices.Equal(some, tenants[:2]) {
		t.Errorf("the first two are %q, %v", some, err)
	}
	if none, err := b.CorrelatedTenants(t.Context(), "d", 2); err != nil || len(none) != 0 {
		t.Errorf("of an unknown id: %q, %v", none, err)
	}
}

// liveRows returns the rows of the index of live jobs, by state.
func liveRows(t *testing.T, l *ledgertest.Ledger) map[statemachine.JobState][]ledger.IndexRow {
	t.Helper()
	all := map[statemachine.JobState][]ledger.IndexRow{}
	for _, state := range statemachine.JobStates {
		if state.Terminal() {
			continue
		}
		entries, _, err := l.Index(t.Context(), ledger.IndexQuery{TenantID: "tenant_a", State: state, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range entries {
			all[state] = append(all[state], entries[i].IndexRow)
		}
	}
	return all
}

func TestIndex_FollowsALiveJobOnASharedAtomicStore(t *testing.T) {
	t.Parallel()
	b := &bundle{Ledger: ledgertest.Publishing(t, ledger.Config{Shared: true})}
	id := b.Submit(command("a"))
	row := ledger.IndexRow{JobID: id, RequestType: "doc.ingest", StepType: "ONE", Service: "ones"}
	want := func(when string, state statemachine.JobState, row ledger.IndexRow) {
		t.Helper()
		if diff := cmp.Diff(map[statemachine.JobState][]ledger.IndexRow{state: {row}}, liveRows(t, b.Ledger)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	want("accepted", statemachine.JobDispatching, row)
	b.Apply(id, statemachine.Pause{})
	want("paused", statemachine.JobPaused, row)
	b.Apply(id, statemachine.Resume{})
	want("resumed", statemachine.JobDispatching, row)
	m := b.Handoff.Last()
	b.Apply(id, ledgertest.Sent(m))
	b.Apply(id, ledgertest.Started(m))
	want("started", statemachine.JobInProgress, row)
	b.Apply(id, ledgertest.Ended(m, statemachine.ResultFailedRetry, "again"))
	row.ErrorCode = "again"
	want("to be tried again", statemachine.JobInProgress, row)
	b.Apply(id, statemachine.Retry{})
	b.succeed(b.Handoff.Last())
	want("at the next step", statemachine.JobInProgress,
		ledger.IndexRow{JobID: id, RequestType: "doc.ingest", StepType: "TWO", Service: "twos"})
	b.succeed(b.Handoff.Last())
	if got := liveRows(t, b.Ledger); len(got) > 0 {
		t.Errorf("ended: %v", got)
	}
}

// A conflict of the work after the commit keeps no job in the list of a state that it left.
func TestIndex_FollowsALiveJobBesidesAConflict(t *testing.T) {
	t.Parallel()
	store := ledgertest.Atomic()
	b := ledgertest.Open(t, ledger.Config{Store: store, Shared: true})
	cmd := command("a")
	cmd.Job.CallbackURLs = []string{"https://a.example/hook"}
	id := b.Submit(cmd)
	b.Put(tablestore.Key{Table: "luciusledger", Partition: id, Row: "WEBHOOK:00"}, nil)
	b.Send(id, statemachine.Cancel{})
	if got := liveRows(t, b); len(got) > 0 {
		t.Errorf("ended: %v", got)
	}
}

// A store that began without the index lacks the rows of its live jobs, so it never has one.
func TestListsLive(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		split, first, now, want bool
	}{
		"shared":                 {first: true, now: true, want: true},
		"exclusive":              {},
		"exclusive first":        {now: true},
		"not atomic":             {split: true, first: true, now: true},
		"exclusive after shared": {first: true, want: true},
	} {
		store := memstore.New(memstore.Options{Split: test.split})
		var l *ledger.Ledger
		for _, shared := range []bool{test.first, test.now} {
			var err error
			if l, err = ledger.Open(t.Context(), ledger.Config{Store: store, Shared: shared}); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.ListsLive(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
