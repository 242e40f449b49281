package workqueue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

func TestClaim_NamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	whole := workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1}
	tests := map[string]func(*workqueue.ClaimRequest){
		"/owner":         func(r *workqueue.ClaimRequest) { r.Owner = "" },
		"/request_id":    func(r *workqueue.ClaimRequest) { r.RequestID = "" },
		"/max":           func(r *workqueue.ClaimRequest) { r.Max = 0 },
		"/wait_seconds":  func(r *workqueue.ClaimRequest) { r.Wait = -1 },
		"/lease_seconds": func(r *workqueue.ClaimRequest) { r.Lease = -1 },
	}
	for pointer, spoil := range tests {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			request := whole
			spoil(&request)
			_, err := setup(t, false).Claim(t.Context(), request)
			assertPointer(t, err, pointer)
		})
	}
}

func TestClaim_TakesTheWorkOfNamedTenants(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		tenants []string
		caller  workqueue.Caller
		want    string
	}{
		{"all", nil, workqueue.Caller{}, "abcaba"},
		{"of the request", []string{"a", "c"}, workqueue.Caller{}, "acaa"},
		{"of the caller", nil, workqueue.Caller{Tenants: []string{"b", "c"}}, "bcb"},
		{"of both", []string{"a", "b"}, workqueue.Caller{Tenants: []string{"b", "c"}}, "bb"},
		{"of neither", []string{"a"}, workqueue.Caller{Tenants: []string{"b"}}, ""},
		{"of nobody here", []string{"z"}, workqueue.Caller{}, ""},
		{"of another service", nil, workqueue.Caller{Services: []string{"embed"}}, ""},
		{"of the caller's service", []string{"b"}, workqueue.Caller{Services: []string{"ocr"}}, "bb"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for name, open := range map[string]func(*bundle) *bundle{
				"this process":    func(b *bundle) *bundle { return b },
				"another process": func(b *bundle) *bundle { return reopen(t, b.store) },
			} {
				b := setup(t, false)
				for _, tenant := range []string{"a", "a", "b", "a", "b", "c"} {
					b.relay(t, b.accept(t, tenant, "ocr", "OCR"))
				}
				if got := turnsOf(t, open(b).As(test.caller), test.tenants); got != test.want {
					t.Errorf("%s claimed in the order %q, want %q", name, got, test.want)
				}
			}
		})
	}
}

// turnsOf claims one item at a time, so that the turns go on from claim to
// claim, and returns whose they were.
func turnsOf(t *testing.T, q *workqueue.Queue, tenants []string) string {
	t.Helper()
	var order strings.Builder
	for n := range 7 {
		views, err := q.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: "w", RequestID: fmt.Sprint(n), Max: 1, Tenants: tenants,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, view := range views {
			order.WriteString(view.Item.TenantID)
		}
	}
	return order.String()
}

func TestClaim_OfNamedTenantsFindsWhatOthersEnqueued(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	for _, tenant := range []string{"a", "b", "c"} {
		b.relay(t, b.accept(t, tenant, "ocr", "OCR"))
	}
	views, err := reopen(t, b.store).Claim(t.Context(), workqueue.ClaimRequest{
		Owner: "w", RequestID: "1", Max: 5, Tenants: []string{"c", "b", "b"},
	})
	if err != nil || len(views) != 2 {
		t.Errorf("claimed %d items (%v), want 2", len(views), err)
	}
}

func TestClaim_OthersKeepTheirTurnWhileOneTenantIsServed(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	for _, tenant := range []string{"a", "b", "c", "c"} {
		b.relay(t, b.accept(t, tenant, "ocr", "OCR"))
	}
	first, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Tenants: []string{"c"}})
	if err != nil || len(first) != 1 {
		t.Fatalf("claimed %+v (%v)", first, err)
	}
	var order string
	for _, view := range b.claim(t, "w", "2", 5, false) {
		order += view.Item.TenantID
	}
	if order != "abc" {
		t.Errorf("claimed in the order %q, want abc", order)
	}
}

func TestClaim_AWaitingOneIsWokenByWorkOfItsTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		claimed := make(chan string, 2)
		for _, tenant := range []string{"a", "b"} {
			go func() {
				views, err := b.Claim(t.Context(), workqueue.ClaimRequest{
					Owner: tenant, RequestID: "1", Max: 5, Wait: time.Minute, Tenants: []string{tenant},
				})
				if err != nil || len(views) != 1 {
					t.Errorf("%s claimed %d items (%v)", tenant, len(views), err)
					close(claimed)
					return
				}
				claimed <- tenant + views[0].Item.TenantID
			}()
			synctest.Wait()
		}
		started := time.Now()
		for _, tenant := range []string{"b", "a"} {
			b.relay(t, b.accept(t, tenant, "ocr", "OCR"))
			if got := <-claimed; got != tenant+tenant {
				t.Errorf("claimed %q", got)
			}
		}
		if waited := time.Since(started); waited >= time.Second {
			t.Errorf("woken after %s, by the poll", waited)
		}
	})
}

func TestClaim_FindsOlderWorkOfAnotherProcessUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, true)
		for n := range 3 { // It has looked at the store, and does not again within a second.
			b.work(t)
			b.claim(t, "w", fmt.Sprint("first-", n), 1, false)
		}
		other := reopen(t, b.store)
		other.serial.Store(1000)
		old := other.work(t)
		for n := range 4 {
			for range 3 { // More comes than is taken.
				b.work(t)
			}
			if views := b.claim(t, "w", fmt.Sprint("then-", n), 1, false); views[0].Item.WorkID == old.OutboxID {
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
		t.Error("the oldest item of the tenant was not handed out in two seconds")
	})
}

func TestClaim_GivesItsLeaseAgainWithEachHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		b.work(t)
		views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "c", Max: 1, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		item := views[0].Item
		for n := range 20 {
			time.Sleep(7*time.Minute + 300*time.Microsecond)
			view, err := b.Heartbeat(t.Context(), item.WorkID, by("w", fmt.Sprint("h", n), item))
			if err != nil {
				t.Fatal(err)
			}
			item = view.Item
			if got := item.LeaseExpiresAt.Sub(item.UpdatedAt); got != time.Hour {
				t.Fatalf("heartbeat %d gave %s, the claim 1h", n, got)
			}
		}
	})
}

// Owners that never come back leave a memory for each item. The claims of the
// others clear it away, a bounded piece at a time.
func TestClaim_ForgetsThoseWhoNeverReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(memstore.New(memstore.Options{}))
		b := reopen(t, store)
		claims := func(owner string, n int) {
			for i := range n {
				b.work(t)
				counter.Reset()
				b.claim(t, fmt.Sprint(owner, i), "c", 1, true)
				if cost := counter.Counts(); cost.Scans > 6 || cost.Commits > 2 {
					t.Fatalf("a claim cost %+v", cost)
				}
			}
		}
		claims("gone", 300)
		kept := memories(t, store)
		if kept != 300 {
			t.Errorf("%d memories of 300 fresh claims", kept)
		}
		time.Sleep(time.Hour)
		claims("here", 600)
		if left := memories(t, store) - 600; left > 0 {
			t.Errorf("%d of 300 memories are left that are past their time", left)
		}
	})
}

// Time alone clears them away as well, while claims wait for work.
func TestClaim_ForgetsWhileThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, true)
		for i := range 40 {
			b.work(t)
			b.claim(t, fmt.Sprint("gone", i), "c", 1, true)
		}
		time.Sleep(time.Hour)
		if _, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Wait: 30 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		if left := memories(t, b.store); left > 0 {
			t.Errorf("%d memories are left", left)
		}
	})
}

// memories counts what is remembered of claims.
func memories(t *testing.T, store tablestore.Store) int {
	t.Helper()
	count := 0
	for part := range 16 {
		page, err := store.Scan(t.Context(), tablestore.Query{
			Table: workqueue.DefaultTable, Partition: tablestore.Join("claims", tablestore.Pad(part, 2)),
		})
		if err != nil {
			t.Fatal(err)
		}
		count += len(page.Rows)
	}
	return count
}

// One tenant's backlog, beyond what the mirror holds, hides no other tenant,
// neither in this process nor for the next one.
func TestClaim_ABacklogHidesNoOtherTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		b := small(t, store)
		for range 150 {
			b.relay(t, b.accept(t, "big", "ocr", "OCR"))
		}
		b.relay(t, b.accept(t, "small", "ocr", "OCR"))
		for _, process := range []*bundle{b, small(t, store)} {
			order := ""
			for n := range 4 {
				order += process.claim(t, fmt.Sprintf("w%p", process), fmt.Sprint("c", n), 1, false)[0].Item.TenantID + " "
				time.Sleep(time.Second)
			}
			if !strings.Contains(order, "small") {
				t.Errorf("four claims went to %s", order)
			}
			b.relay(t, b.accept(t, "small", "ocr", "OCR"))
		}
	})
}

// small is a process on the store whose mirror holds eight items.
func small(t *testing.T, store tablestore.Store) *bundle {
	t.Helper()
	b := reopen(t, store)
	q, err := workqueue.New(workqueue.Config{Storage: workqueue.NewStorage(store, ""), Ledger: b.ledger, MirrorLimit: 8})
	if err != nil {
		t.Fatal(err)
	}
	b.Queue = q
	return b
}

func TestReady_CountsWhatMayBeClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	for _, service := range []string{"ocr", "ocr", "embed"} {
		b.relay(t, b.accept(t, "a", service, "X"))
	}
	if got := b.Ready(); got["ocr"] != 2 || got["embed"] != 1 {
		t.Errorf("ready: %v", got)
	}
}

// An attempt that was withdrawn while its item waited is not handed out.
func TestClaim_DropsAnItemWhoseAttemptIsGone(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	message := b.work(t)
	store.fail(tablestore.ErrUnavailable, "ITEM:")
	for _, event := range []statemachine.Event{statemachine.Pause{}, statemachine.Resume{}} {
		if _, err := b.ledger.Change(t.Context(), message.JobID, event); err != nil {
			t.Fatal(err)
		}
	}
	store.set(nil)
	if views := reopen(t, store).claim(t, "w", "c1", 5, false); len(views) != 0 {
		t.Errorf("claimed attempt %d", views[0].Item.AttemptNo)
	}
	b.relay(t)
	if views := b.claim(t, "w", "c2", 5, false); len(views) != 1 || views[0].Item.AttemptNo != 2 {
		t.Errorf("claimed %+v", views)
	}
}

// A hint that was left behind is dropped by whoever meets it, once it is too old
// to be that of an item under way.
func TestClaim_DropsHintsToNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		b := reopen(t, store)
		b.work(t)
		store.on("ready:", 1<<20, down)
		b.claim(t, "w1", "c1", 1, true)
		store.set(nil)
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{2 * time.Second, 1}, {2 * time.Minute, 0}} {
			time.Sleep(step.after)
			b.claim(t, "w2", fmt.Sprint("c", step.after), 1, true)
			if got := len(hints(t, store)); got != step.want {
				t.Errorf("%s on, there are %d hints, want %d", step.after, got, step.want)
			}
		}
	})
}

func TestClaim_ReadsPastAHintThatMakesNoSense(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	b.work(t)
	for _, row := range []string{"0", "a:b", "a:0000000000001:x:one", "a:now:x:1", "a:=:x:1"} {
		bad := tablestore.Op{Verb: tablestore.Put, Key: hints(t, b.store)[0].Key}
		bad.Key.Row = row
		if row == "a:=:x:1" {
			bad.Key = tablestore.Key{Table: bad.Key.Table, Partition: "catalog", Row: "alone"}
		}
		if _, err := b.store.Commit(t.Context(), tablestore.Batch{bad}); err != nil {
			t.Fatal(err)
		}
	}
	if views := reopen(t, b.store).claim(t, "w", "1", 1, true); len(views) != 1 {
		t.Errorf("claimed %d items", len(views))
	}
}

// hints are the hints to work of service ocr.
func hints(t *testing.T, store tablestore.Store) []tablestore.Row {
	t.Helper()
	page, err := store.Scan(t.Context(), tablestore.Query{
		Table: workqueue.DefaultTable, Partition: tablestore.Join("ready", "ocr", "OCR"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

// What a worker's requests cost the store, with a full queue: reads, and writes
// on the way to the answer. These are the calls that limit throughput.
func TestCost(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	b := reopen(t, store)
	b.work(t)
	b.claim(t, "w0", "c0", 1, true) // The first claim of a process looks at the store.
	for range 20 {
		b.work(t)
	}
	var item lifecycle.Item
	verb := func(do func(context.Context, string, lifecycle.Request) (workqueue.View, error), id string) {
		view, err := do(t.Context(), item.WorkID, by("w1", id, item))
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		item = view.Item
	}
	for _, step := range []struct {
		name                 string
		do                   func()
		gets, scans, commits int64
	}{
		{"a claim", func() { item = b.claim(t, "w1", "c1", 1, false)[0].Item }, 2, 2, 1},
		{"a heartbeat of a claim", func() { verb(b.Heartbeat, "h1") }, 2, 1, 1},
		{"a start", func() { verb(b.Start, "s1") }, 2, 1, 1},
		{"a heartbeat", func() { verb(b.Heartbeat, "h2") }, 2, 1, 1},
		{"the end", func() {
			verb(func(ctx context.Context, id string, r lifecycle.Request) (workqueue.View, error) {
				return b.Complete(ctx, id, r, nil, nil)
			}, "e1")
		}, 2, 1, 1},
		{"a claim of ten", func() { b.claim(t, "w1", "c2", 10, true) }, 20, 11, 10},
	} {
		counter.Reset()
		step.do()
		if got := counter.Counts(); got.Gets > step.gets || got.Scans > step.scans || got.Commits > step.commits {
			t.Errorf("%s cost %+v", step.name, got)
		}
	}
}

func assertPointer(t *testing.T, err error, pointer string) {
	t.Helper()
	assertCode(t, err, problem.InvalidEnvelope)
	known := asKnown(err)
	if known == nil || len(known.Errors) != 1 || known.Errors[0].Pointer != pointer {
		t.Errorf("error is %v, want one at %s", err, pointer)
	}
}
