package workqueue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// request is the claim that the tests of its memory repeat.
func request(most int) workqueue.ClaimRequest {
	return workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: most}
}

// send sends a claim and returns the ids of the items that it gets.
func (b *bundle) send(t testing.TB, r workqueue.ClaimRequest) []string {
	t.Helper()
	views, err := b.Claim(context.WithoutCancel(t.Context()), r)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return workIDs(views)
}

// same fails unless these are the items, in any order.
func same(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s: answered with %v, want %v", what, got, want)
	}
}

// torn makes the claim write its memory and lose the commits of the jobs that lose selects;
// it returns those commits.
func torn(t *testing.T, store *tapped, b *bundle, r workqueue.ClaimRequest, lose func(jobID string) bool) (late []tablestore.Batch) {
	t.Helper()
	var mu sync.Mutex // The jobs of a claim are committed concurrently.
	store.set(func(batch tablestore.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if batch[0].Key.Table != ledgerTable || !lose(batch[0].Key.Partition) {
			return nil
		}
		late = append(late, batch)
		return tablestore.ErrUnavailable
	})
	_, _ = b.Claim(t.Context(), r)
	store.set(nil)
	if len(late) == 0 {
		t.Fatal("nothing was lost")
	}
	return late
}

func all(string) bool { return true }

func TestClaimMemory_AnotherClaimUnderTheSameIDIsRefused(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work()
		b.work()
		first := b.send(t, request(1))
		for name, spoil := range map[string]func(*workqueue.ClaimRequest){
			"services":   func(r *workqueue.ClaimRequest) { r.Services = []string{"ocr"} },
			"step types": func(r *workqueue.ClaimRequest) { r.StepTypes = []string{"OCR"} },
			"tenants":    func(r *workqueue.ClaimRequest) { r.Tenants = []string{"tenant_a"} },
			"max":        func(r *workqueue.ClaimRequest) { r.Max = 2 },
			"start":      func(r *workqueue.ClaimRequest) { r.Start = true },
			"lease":      func(r *workqueue.ClaimRequest) { r.Lease = time.Hour },
		} {
			other := request(1)
			spoil(&other)
			views, err := b.Claim(t.Context(), other)
			if assertPointer(t, err, "/request_id"); len(views) > 0 {
				t.Errorf("with another %s: answered with %v", name, workIDs(views))
			}
		}
		waits := request(1)
		waits.Wait = time.Second // The wait is not part of the request's digest.
		same(t, "the repeat", b.send(t, waits), first...)
	})
}

// A crash between the memory and the commits leaves queued items. The repeat claims only
// these, in any process: their commits may still land.
func TestClaimMemory_ARepeatClaimsItemsThatACrashLeft(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "at another process": true} {
		for what, commits := range map[string]int{"none was committed": 0, "one was committed": 1} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				store := tap()
				b := reopen(t, store)
				var first []string
				for range 3 {
					first = append(first, b.work().OutboxID)
				}
				claimed := map[string]bool{}
				torn(t, store, b, request(3), func(jobID string) bool {
					if len(claimed) < commits {
						claimed[jobID] = true
					}
					return !claimed[jobID]
				})
				for range 3 {
					b.work()
				}
				if elsewhere {
					b = reopen(t, store)
				}
				same(t, "the repeat", b.send(t, request(3)), first...)
				same(t, "the repeat of the repeat", b.send(t, request(3)), first...)
			})
		}
	}
}

// While a candidate is queued but cannot be claimed, the request takes no other item: the
// first try may be about to claim it.
func TestClaimMemory_ACandidateThatIsHeldBlocksTheRequest(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	first := b.work()
	late := torn(t, store, b, request(1), all)
	other := b.accept("tenant_b", "ocr", "OCR")
	second := reopen(t, store)
	second.heldTenant.Store("tenant_a")
	same(t, "while it is held", second.send(t, request(1)))
	if _, err := store.Commit(t.Context(), late[0]); err != nil {
		t.Fatal(err)
	}
	same(t, "when the first commit has come", second.send(t, request(1)), first.OutboxID)
	next := request(1)
	next.RequestID = "c2"
	same(t, "another request", second.send(t, next), other.OutboxID)
}

// The repeat claims the candidate after its pause has ended.
func TestClaimMemory_ACandidateThatWasHeldIsClaimedThen(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	first := b.work()
	torn(t, store, b, request(1), all)
	b.accept("tenant_b", "ocr", "OCR")
	b.heldTenant.Store("tenant_a")
	same(t, "while it is held", b.send(t, request(1)))
	b.heldTenant.Store("")
	same(t, "then", b.send(t, request(1)), first.OutboxID)
}

// A late copy of a claim whose items are done, or were lost, gets nothing: its client no
// longer listens.
func TestClaimMemory_ADoneCandidateBlocksTheRequestForGood(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *bundle, item statemachine.Item){
		"completed": func(t *testing.T, b *bundle, item statemachine.Item) {
			if _, err := b.Complete(t.Context(), item.WorkID, by("w1", "e", item), statemachine.Product{}); err != nil {
				t.Fatal(err)
			}
		},
		"stalled": func(_ *testing.T, b *bundle, item statemachine.Item) {
			b.ledger.Apply(item.JobID, statemachine.Stall{StepID: "step", AttemptNo: 1})
		},
		"queued again": func(_ *testing.T, b *bundle, item statemachine.Item) {
			b.ledger.Apply(item.JobID, statemachine.Stall{StepID: "step", AttemptNo: 1})
			b.ledger.Apply(item.JobID, statemachine.Retry{})
		},
		"cancelled": func(_ *testing.T, b *bundle, item statemachine.Item) {
			b.ledger.Apply(item.JobID, statemachine.Cancel{})
			b.ledger.Apply(item.JobID, statemachine.Stall{StepID: "step", AttemptNo: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothStores(t, func(t *testing.T, b *bundle) {
				b.work()
				r := request(1)
				r.Start = true
				views, err := b.Claim(t.Context(), r)
				if err != nil || len(views) != 1 {
					t.Fatalf("claimed %v (%v)", workIDs(views), err)
				}
				end(t, b, views[0].Item)
				b.work()
				same(t, "the late copy", b.send(t, r))
				same(t, "the late copy elsewhere", reopen(t, b.store).send(t, r))
			})
		})
	}
}

// If every candidate went to another claim or was removed, the request takes other items.
func TestClaimMemory_LostCandidatesAreReplaced(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *bundle, id string){
		"claimed by another": func(t *testing.T, b *bundle, _ string) { b.claim(t, "w2", "x", 1, false) },
		"withdrawn":          func(_ *testing.T, b *bundle, id string) { b.ledger.Apply(id, statemachine.Pause{}) },
		"cancelled":          func(_ *testing.T, b *bundle, id string) { b.ledger.Apply(id, statemachine.Cancel{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			first := b.work()
			torn(t, store, b, request(1), all)
			lose(t, reopen(t, store), first.JobID)
			second := b.work()
			same(t, "the repeat", b.send(t, request(1)), second.OutboxID)
			same(t, "the repeat of the repeat", reopen(t, store).send(t, request(1)), second.OutboxID)
		})
	}
}

// A request that is sent to two processes at once claims once.
func TestClaimMemory_OneRequestAtTwoProcessesClaimsOnce(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]struct{ table, prefix string }{
		"before the memory":             {queueTable, "claims"},
		"between memory and the commit": {ledgerTable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b, other := reopen(t, store), reopen(t, store)
			for range 4 {
				b.work()
			}
			var there []string
			store.on(when.table, when.prefix, func() error {
				there = other.send(t, request(2))
				return nil
			})
			here := b.send(t, request(2))
			if len(there) != 2 {
				t.Errorf("the other process answered with %v", there)
			}
			same(t, "this process", here, there...)
			if rest := b.claim(t, "w2", "c2", 5, false); len(rest) != 2 {
				t.Errorf("%d items are left, want 2", len(rest))
			}
		})
	}
}

// The first try of a request may still run in another process. A waiting repeat answers
// with the items of that try, and takes no others.
func TestClaimMemory_ALongPollGetsTheFirstTrysItems(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		b, other := reopen(t, store), reopen(t, store)
		other.heldTenant.Store("tenant_a")
		first := b.work()
		answer := make(chan []string, 1)
		go func() {
			r := request(1)
			r.Wait = time.Minute
			answer <- other.send(t, r)
		}()
		time.Sleep(2500 * time.Millisecond)
		same(t, "the first", b.send(t, request(1)), first.OutboxID)
		b.accept("tenant_b", "ocr", "OCR")
		same(t, "the repeat that waited", <-answer, first.OutboxID)
	})
}

// A process whose hints are old finds items of the request's first try among them. It answers
// with all items of that try, and only if it is the same claim.
func TestClaimMemory_AnOldHintOfTheRequestIsNotTheWholeAnswer(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work()
		first := b.work()
		other := reopen(t, b.store)
		earlier := request(1)
		earlier.RequestID = "c0"
		other.send(t, earlier) // It now has the hints of the first two.
		second := b.work()
		same(t, "the request", b.send(t, request(3)), first.OutboxID, second.OutboxID)
		same(t, "the repeat elsewhere", other.send(t, request(3)), first.OutboxID, second.OutboxID)

		b.work()
		b.work()
		other = reopen(t, b.store)
		earlier.RequestID = "c2"
		other.send(t, earlier) // It now has the hint of another one.
		spoilt := request(1)
		spoilt.RequestID = "c3"
		b.send(t, spoilt)
		spoilt.Start = true
		_, err := other.Claim(t.Context(), spoilt)
		assertPointer(t, err, "/request_id")
	})
}

// An item that cannot be claimed does not change the answer to a repeated request.
func TestClaimMemory_AnItemThatCannotBeClaimedHidesNoAnswer(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		first := b.work()
		same(t, "the request", b.send(t, request(2)), first.OutboxID)
		broken := b.work()
		other := reopen(t, b.store) // It remembers no directive.
		page, err := b.store.Scan(t.Context(), tablestore.Query{Table: ledgerTable, Partition: tablestore.Escape(broken.JobID)})
		musttest.NoError(t, err)
		for i := range page.Rows {
			if key := page.Rows[i].Key; strings.HasPrefix(key.Row, "DIRECTIVE") {
				b.ledger.Discard(key)
			}
		}
		for range 2 {
			same(t, "the repeat", other.send(t, request(2)), first.OutboxID)
		}
		next := request(1)
		next.RequestID = "c2"
		same(t, "another request", other.send(t, next))
	})
}

// If the store never says whether the memory was written, the claim gives up.
func TestClaimMemory_ThatCannotBeWrittenEndsTheClaim(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work()
	store.set(func(batch tablestore.Batch) error {
		if writes(batch, queueTable, "claims") {
			return tablestore.ErrUnknown
		}
		return nil
	})
	_, err := b.Claim(t.Context(), request(1))
	assertCode(t, err, apierror.StoreUnavailable)
}

// On an atomic store, the memory of a claim is written with the claims or not at all.
func TestClaimMemory_IsAtomicWithTheClaims(t *testing.T) {
	t.Parallel()
	store := tapAtomic()
	b := reopen(t, store)
	b.work()
	store.on(ledgerTable, "", down)
	_, err := b.Claim(t.Context(), request(1))
	assertCode(t, err, apierror.StoreUnavailable)
	if n := memories(t, store); n != 0 {
		t.Errorf("%d memories of a claim that failed", n)
	}
	same(t, "the repeat", b.send(t, request(1)), b.send(t, request(1))...)
	if n := memories(t, store); n != 1 {
		t.Errorf("%d memories of one claim", n)
	}
}

// Owners that never return leave a memory row for each claim. The claims of others delete
// these rows, a bounded number at a time.
func TestClaim_ForgetsOwnersThatNeverReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		b := reopen(t, store)
		claims := func(owner string, n int) {
			for i := range n {
				b.work()
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

// They are also deleted while claims only wait for work.
func TestClaim_ForgetsWhileClaimsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, true)
		for i := range 40 {
			b.work()
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

// memories counts the memory rows of claims.
func memories(t *testing.T, store tablestore.Store) int {
	t.Helper()
	count := 0
	for part := range 16 {
		page, err := store.Scan(t.Context(), tablestore.Query{
			Table: queueTable, Partition: tablestore.Join("claims", tablestore.Pad(part, 2)),
		})
		musttest.NoError(t, err)
		count += len(page.Rows)
	}
	return count
}

// A process that deletes memories which are past their time may stand still after it read them. The request may come again until then,
// with another memory.
func TestClaimMemory_ANewOneIsNotDeletedForTheOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		b := reopen(t, store)
		b.work()
		var memory tablestore.Key
		store.set(func(batch tablestore.Batch) error {
			memory = batch[0].Key // The claim writes its memory first.
			return tablestore.ErrUnavailable
		})
		_, _ = b.Claim(t.Context(), request(1))
		torn(t, store, b, request(1), all)
		b.claim(t, "w2", "takes the item", 1, false)
		time.Sleep(time.Hour)
		b.work()
		b.work()
		var second []string
		var stood atomic.Bool
		store.set(func(batch tablestore.Batch) error {
			deletes := slices.ContainsFunc(batch, func(op tablestore.Op) bool {
				return op.Key == memory && (op.Verb == tablestore.Discard || op.Verb == tablestore.Delete)
			})
			if deletes && stood.CompareAndSwap(false, true) {
				second = b.send(t, request(1))
			}
			return nil
		})
		for i := 0; i < 20 && !stood.Load(); i++ { // It walks through the memories.
			b.send(t, workqueue.ClaimRequest{
				Owner: "w3", RequestID: fmt.Sprint(i), Services: []string{"none"}, Max: 1, Wait: time.Minute + time.Second,
			})
		}
		if len(second) != 1 {
			t.Fatalf("the request got %v while its first memory was deleted", second)
		}
		same(t, "the repeat", b.send(t, request(1)), second...)
	})
}
