package workqueue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// wire carries hints between the processes on one store, without delay.
type wire struct {
	mu    sync.Mutex
	ends  []*wiredStore
	said  []string
	muted bool
}

// wiredStore is a process's view of a store.
type wiredStore struct {
	tablestore.AtomicStore
	wire  *wire
	heard []func(string)
}

func (w *wire) process(store tablestore.Store) *wiredStore {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := &wiredStore{AtomicStore: store.(tablestore.AtomicStore), wire: w}
	w.ends = append(w.ends, end)
	return end
}

// Notify implements [tablestore.Notifier].
func (s *wiredStore) Notify(_, payload string) {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wire.said = append(s.wire.said, payload)
	if !s.wire.muted {
		go s.wire.say(s, payload) // Notify does not block, and the caller may hold a lock.
	}
}

// say notifies all processes but one.
func (w *wire) say(from *wiredStore, payload string) {
	w.mu.Lock()
	ends := slices.Clone(w.ends)
	w.mu.Unlock()
	for _, end := range ends {
		if end == from {
			continue
		}
		for _, heard := range end.heard {
			heard(payload)
		}
	}
}

// Listen implements [tablestore.Notifier].
func (s *wiredStore) Listen(_ string, heard func(string)) {
	s.heard = append(s.heard, heard)
	heard("")
}

// waits begins a claim, and returns a channel for the number of items that it gets.
func (b *bundle) waits(t *testing.T, r workqueue.ClaimRequest) <-chan int {
	t.Helper()
	got := make(chan int, 1)
	r.RequestID, r.Max, r.Wait = "wait of "+r.Owner, 1, 10*time.Minute
	go func() {
		views, err := b.Claim(context.WithoutCancel(t.Context()), r)
		if err != nil {
			t.Errorf("claim: %v", err)
		}
		got <- len(views)
	}()
	synctest.Wait()
	return got
}

func TestReplicas_AClaimIsWokenByAnItemOfAnotherProcess(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"a kind that is known": true, "a new kind": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shared, w := ledgertest.Atomic(), &wire{}
				here := reopenWith(t, w.process(shared), ledger.Config{Shared: true}, 0)
				there := reopenWith(t, w.process(shared), ledger.Config{Shared: true}, 0)
				if known {
					here.accept("t", "ocr", "OCR")
					if views := there.claim(t, "first", "1", 1, true); len(views) != 1 {
						t.Fatalf("claimed %d items", len(views))
					}
				}
				other := there.waits(t, workqueue.ClaimRequest{Owner: "other tenant", Tenants: []string{"z"}})
				one := there.waits(t, workqueue.ClaimRequest{Owner: "one", Services: []string{"ocr"}})
				two := there.waits(t, workqueue.ClaimRequest{Owner: "two", Tenants: []string{"t"}})
				began := time.Now()
				here.accept("t", "ocr", "OCR")
				here.accept("t", "ocr", "OCR")
				if n, m := <-one, <-two; n+m != 2 || !time.Now().Equal(began) {
					t.Errorf("claimed %d and %d items after %s", n, m, time.Since(began))
				}
				if n := <-other; n != 0 {
					t.Errorf("the claim for another tenant got %d items", n)
				}
			})
		})
	}
}

func TestReplicas_AnItemThatALocalClaimTakesIsNotAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		b := reopenWith(t, w.process(ledgertest.Atomic()), ledger.Config{Shared: true}, 0)
		got := b.waits(t, workqueue.ClaimRequest{Owner: "w"})
		b.accept("t", "ocr", "OCR")
		if n := <-got; n != 1 || len(w.said) != 0 {
			t.Errorf("claimed %d items, told %q", n, w.said)
		}
		b.accept("t", "ocr", "OCR")
		if len(w.said) != 1 {
			t.Errorf("told %q", w.said)
		}
	})
}

// If a notification is lost or invalid, a poll finds the item.
func TestReplicas_PollsFindItemsWithoutANotification(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared, w := ledgertest.Atomic(), &wire{muted: true}
		here := reopenWith(t, w.process(shared), ledger.Config{Shared: true}, 0)
		end := w.process(shared)
		there := reopenWith(t, end, ledger.Config{Shared: true}, 0)
		got := there.waits(t, workqueue.ClaimRequest{Owner: "w"})
		here.accept("t", "ocr", "OCR")
		for _, nonsense := range []string{"", ":", "a:b:c:d", "ocr:OCR:99:t", "ocr:OCR:0:z", "ocr:OCR:0:t:more"} {
			end.heard[0](nonsense)
		}
		began := time.Now()
		if n := <-got; n != 1 || time.Since(began) > 2*time.Second {
			t.Errorf("claimed %d items after %s", n, time.Since(began))
		}
	})
}

// An item that a claim of its own process is about to start costs no token in other processes.
func TestReplicas_OneTokenForEachStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const items = 5
		shared, w := tapAtomic(), &wire{}
		limit := admission.Limit{Scope: ocr, Count: 20, Window: longWindow}
		slowLeases(shared.tapped)
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var processes []*limited
		var got atomic.Int64
		for i := range 2 {
			l := limitedWith(t, w.process(shared), ledger.Config{Shared: true}, limit)
			processes = append(processes, l)
			running.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					views, _ := l.Claim(ctx, workqueue.ClaimRequest{
						Owner: fmt.Sprint("w", i), RequestID: fmt.Sprint("claim-", n), Max: 1, Wait: time.Minute,
					})
					got.Add(int64(len(views)))
				}
			})
		}
		time.Sleep(300 * time.Millisecond) // Polls find no item that is about to be claimed.
		for range items {
			processes[0].accepts(1, "tenant_a")
			time.Sleep(5 * time.Second)
		}
		found, _, err := processes[0].stored.Limits(t.Context())
		musttest.NoError(t, err)
		if used, _ := found[0].Used(time.Now(), 0); got.Load() != items || used != items {
			t.Errorf("%d of %d items were claimed, with %d tokens", got.Load(), items, used)
		}
		end()
		running.Wait()
	})
}
