package workqueue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

var (
	ocr        = admission.Scope{Service: "ocr"}
	ocrOfA     = admission.Scope{Service: "ocr", TenantID: "tenant_a"}
	longWindow = time.Hour
	noScopes   []admission.Scope
)

// limited is a process whose gate of limits runs.
type limited struct {
	*bundle
	stored *admission.Service
	gate   *admission.Gate
	claims int
}

// withLimits opens a process with these limits, each of so many starts in an hour. It runs in a
// bubble.
func withLimits(t *testing.T, store tablestore.Store, count int, scopes ...admission.Scope) *limited {
	t.Helper()
	set := make([]admission.Limit, len(scopes))
	for i, scope := range scopes {
		set[i] = admission.Limit{Scope: scope, Count: count, Window: longWindow}
	}
	return limitedTo(t, store, set...)
}

// limitedTo opens a process with these limits. It runs in a bubble.
func limitedTo(t *testing.T, store tablestore.Store, set ...admission.Limit) *limited {
	t.Helper()
	return limitedWith(t, store, ledger.Config{}, set...)
}

// limitedWith is [limitedTo] with settings of the ledger.
func limitedWith(t *testing.T, store tablestore.Store, cfg ledger.Config, set ...admission.Limit) *limited {
	t.Helper()
	l := &limited{stored: admission.New(store, queueTable, nil)}
	cfg.Freed = func(slots []statemachine.RunSlot) { l.gate.Freed(slots) }
	l.bundle = reopenWith(t, store, cfg, 0)
	for _, one := range set {
		_, err := l.stored.SetLimit(t.Context(), one)
		musttest.NoError(t, err)
	}
	var err error
	l.gate, err = admission.NewGate(t.Context(), admission.Config{Service: l.stored, Runs: l.ledger})
	musttest.NoError(t, err)
	l.Queue = workqueue.New(workqueue.Config{
		Ledger: l.ledger.Ledger, Store: store, Mirror: l.mirror, Limits: l.gate,
		Held: l.gate.HoldsQueued, HeldTenant: l.gate.HoldsTenant,
	})
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	go func() { _ = l.gate.Run(ctx) }()
	go func() {
		for ticks := time.Tick(time.Second); ; {
			select {
			case <-ticks:
				_ = l.gate.Refresh(ctx)
				_ = l.gate.RefreshRuns(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return l
}

// get claims up to most items, without waiting for work.
func (l *limited) get(t *testing.T, most int) []workqueue.View {
	t.Helper()
	l.claims++
	return l.claim(t, "w1", fmt.Sprint("get-", l.claims), most, false)
}

// accepts makes so many jobs.
func (l *limited) accepts(n int, tenant string) {
	for range n {
		l.accept(tenant, "ocr", "OCR")
	}
}

// inBubble runs the test on both kinds of store.
func inBubble(t *testing.T, test func(t *testing.T, store *tapped)) {
	for _, split := range []bool{false, true} {
		t.Run(fmt.Sprint("split ", split), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if split {
					test(t, tap())
					return
				}
				test(t, tapAtomic().tapped)
			})
		})
	}
}

// A claim that need not wait gets as many items as the limit allows, and the rest stays queued
// until the window has passed.
func TestLimit_ClaimsGetNoMore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 2, ocr)
		l.accepts(5, "tenant_a")
		if got := len(l.get(t, 1)); got != 1 {
			t.Fatalf("the first claim got %d items, want 1", got)
		}
		if got := len(l.get(t, 5)); got != 1 {
			t.Errorf("the second claim got %d items, want the second token's", got)
		}
		if got := len(l.get(t, 5)); got != 0 {
			t.Errorf("a claim got %d items beyond the limit", got)
		}
		time.Sleep(longWindow + 3*time.Minute)
		if got := len(l.get(t, 5)) + len(l.get(t, 5)) + len(l.get(t, 5)); got != 2 {
			t.Errorf("claims got %d items in the next window, want 2", got)
		}
	})
}

// A pause and a limit of one service hold back together: a claim gets the first items of the tenant
// that is not paused, and the limit counts those alone.
func TestLimit_BesideAPause(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 2, ocr)
		l.accepts(3, "tenant_a")
		l.accepts(3, "tenant_b")
		scope, err := statemachine.NewScope("tenant", "tenant_a")
		musttest.NoError(t, err)
		_, err = l.stored.Pause(t.Context(), admission.Pause{Scope: scope, Reason: "test", Actor: "test"})
		musttest.NoError(t, err)
		musttest.NoError(t, l.gate.Refresh(t.Context()))
		for _, want := range []int{1, 1, 0} { // The first asks for tokens, of which there are two.
			views := l.get(t, 1)
			if len(views) != want {
				t.Fatalf("a claim got %d items, want %d", len(views), want)
			}
			for _, view := range views {
				if tenant := l.ledger.Read(view.Item.JobID).Job.TenantID; tenant != "tenant_b" {
					t.Errorf("a claim got an item of %s, which is paused", tenant)
				}
			}
		}
	})
}

// An item of a tenant at its own limit spends none of the service's tokens, nor does another
// tenant wait for it.
func TestLimit_NarrowestFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 1, ocrOfA)
		_, err := l.stored.SetLimit(t.Context(), admission.Limit{Scope: ocr, Count: 3, Window: longWindow})
		musttest.NoError(t, err)
		musttest.NoError(t, l.gate.Refresh(t.Context()))
		l.accepts(5, "tenant_a")
		for range 4 {
			l.get(t, 1)
			time.Sleep(10 * time.Second) // All tokens lapse.
		}
		found, _, err := l.stored.Limits(t.Context())
		musttest.NoError(t, err)
		for _, one := range found {
			if used, _ := one.Used(time.Now(), 0); one.Scope == ocr && used > 1 {
				t.Errorf("%d tokens of the service were leased for one start", used)
			}
		}
		l.accepts(2, "tenant_b")
		if got := len(l.get(t, 5)); got == 0 {
			t.Error("the other tenant got nothing")
		}
	})
}

// A claim with more places than there are items leases no token for the others: it would count for
// the whole window.
func TestLimit_LeasesForReadyItems(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 20, ocr)
		for range 20 {
			l.accepts(1, "tenant_a")
			if got := len(l.get(t, 50)); got != 1 {
				t.Fatalf("a claim got %d items, want 1", got)
			}
			time.Sleep(5 * time.Second) // What is not used lapses.
		}
	})
}

// A claim that ends while it waits for memory has sent nothing, so its token is not spent.
func TestLimit_NoMemory(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 1, ocr)
		l.accepts(1, "tenant_a")
		_, err := l.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "without memory", Max: 1, Reserve: func(_ context.Context, bytes int64) error {
				if bytes > 0 {
					return context.Canceled
				}
				return nil
			},
		})
		if err == nil {
			t.Fatal("the claim got memory")
		}
		if got := len(l.get(t, 1)); got != 1 {
			t.Errorf("the next claim got %d items, want 1", got)
		}
	})
}

// While the limit of a service is used up, no tokens of a tenant's limit lapse.
func TestLimit_WiderUsedUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 100, ocrOfA)
		_, err := l.stored.SetLimit(t.Context(), admission.Limit{Scope: ocr, Count: 1, Window: time.Minute})
		musttest.NoError(t, err)
		musttest.NoError(t, l.gate.Refresh(t.Context()))
		l.accepts(5, "tenant_a")
		for range 5 {
			l.get(t, 5)
			time.Sleep(5 * time.Second)
		}
		found, _, err := l.stored.Limits(t.Context())
		musttest.NoError(t, err)
		for _, one := range found {
			if used, _ := one.Used(time.Now(), 0); one.Scope == ocrOfA && used > 10 {
				t.Errorf("%d tokens of the tenant were leased for one start", used)
			}
		}
	})
}

// A waiting claim is woken by the lease, and gets no new item ahead of older ones.
func TestLimit_WaitingClaims(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 1, ocr)
		answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "waits", Max: 1, Wait: time.Minute,
		})
		began := time.Now()
		first := l.accept("tenant_a", "ocr", "OCR")
		if got := answer(); len(got) != 1 || got[0].Item.JobID != first.JobID {
			t.Fatalf("the waiting claim got %d items, want job %s", len(got), first.JobID)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a waiting claim got the item after %s, though a token was free", took)
		}
		answer = l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "waits again", Max: 1, Wait: time.Minute,
		})
		l.accepts(1, "tenant_a")
		if got := answer(); len(got) != 0 {
			t.Errorf("a change handed out %d items beyond the limit", len(got))
		}
	})
}

// A claim whose commit would be sent late starts nothing with a token that has lapsed, and the
// token counts as used: the item is claimed with that of the next window.
func TestLimit_NothingIsSentWithALapsedToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := withLimits(t, store, 1, ocr)
		l.accepts(1, "tenant_a")
		store.on(queueTable, "claims", func() error { // The claim's memory takes long.
			time.Sleep(10 * time.Second)
			return nil
		})
		if got := l.get(t, 1); len(got) != 0 {
			t.Errorf("the claim got %d items by a commit that was sent 10 s after its lease", len(got))
		}
		if got := l.get(t, 1); len(got) != 0 {
			t.Errorf("the next claim got %d items, though the window's token has lapsed", len(got))
		}
		got, err := l.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "patient", Max: 1, Wait: longWindow + 3*time.Minute,
		})
		if err != nil || len(got) != 1 {
			t.Errorf("a claim that waits for the next window got %d items, %v, want 1", len(got), err)
		}
	})
}

// A claim whose commit has an unknown outcome is not sent again with a token that has lapsed,
// and its token stays spent.
func TestLimit_UnknownOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := withLimits(t, store, 5, ocr)
		m := l.accept("tenant_a", "ocr", "OCR")
		sent := 0
		store.set(func(batch tablestore.Batch) error {
			if batch[0].Key.Table != ledgerTable || !strings.HasPrefix(batch[0].Key.Row, "EVENT") {
				return nil
			}
			sent++
			time.Sleep(10 * time.Second)
			return tablestore.ErrUnknown
		})
		views, _ := l.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "unknown", Max: 1, Ended: ended(),
		})
		if len(views) != 0 || sent != 1 {
			t.Errorf("the claim's commit was sent %d times, and the claim got %d items; want one sending and none", sent, len(views))
		}
		store.set(nil)
		views, err := l.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "unknown", Max: 1, Wait: time.Minute,
		})
		if err != nil || len(views) != 1 || views[0].Item.JobID != m.JobID {
			t.Errorf("the repeat got %d items, %v; want the item", len(views), err)
		}
		found, _, err := l.stored.Limits(t.Context())
		musttest.NoError(t, err)
		if used, _ := found[0].Used(time.Now(), 0); used < 2 {
			t.Errorf("%d tokens are used after two sendings", used)
		}
	})
}

// ended lets a claim not wait for tokens after its first try.
func ended() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// The token of a claim that may have been committed is used neither for a repeat of the claim
// nor for another item.
func TestLimit_UnknownOutcomeSpends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := withLimits(t, store, 1, ocr)
		l.accepts(2, "tenant_a")
		sent := 0
		store.set(func(batch tablestore.Batch) error {
			if batch[0].Key.Table == ledgerTable && strings.HasPrefix(batch[0].Key.Row, "EVENT") {
				sent++
				return tablestore.ErrUnknown
			}
			return nil
		})
		views, _ := l.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "unknown", Max: 1, Ended: ended(),
		})
		if len(views) != 0 {
			t.Fatal("the claim succeeded without an answer of the store")
		}
		if sent > 4 { // One commit is sent four times.
			t.Errorf("commits of claims were sent %d times with one token", sent)
		}
		store.set(nil)
		if got := l.get(t, 5); len(got) != 0 {
			t.Errorf("another claim got %d items, and the limit of 1 may be spent", len(got))
		}
	})
}

// A change hands no item of a limited service to a waiting claim, also while a token is free:
// older items may be about to get it.
func TestLimit_NothingIsHandedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := withLimits(t, tapAtomic().tapped, 100, ocr)
		l.accepts(1, "tenant_a")
		l.claims++
		l.claim(t, "w1", "first", 9, false)
		answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "waits", Max: 1, Wait: time.Second,
		})
		hint := ledger.Hint{
			Target: statemachine.Target{TenantID: "tenant_a", Service: "ocr"}, Kind: ledger.WorkKind{Service: "ocr", StepType: "OCR"},
		}
		_, _, _ = l.gate.Take("ocr", "OCR", "tenant_a", 1, nil) // It asks for a token.
		synctest.Wait()
		if _, lacks, ok := l.gate.Lacks("ocr", "OCR", "tenant_a"); lacks || !ok {
			t.Fatal("no token is free")
		}
		if taker := l.mirror.Taker(&hint); taker != nil {
			taker.Done(nil)
			t.Error("a change may hand the item over")
		}
		answer()
	})
}

// A repeat of a claim takes a token for an item that it claims only now, and none for one that
// the first try claimed.
func TestLimit_Repeats(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 2, ocr)
		l.accepts(3, "tenant_a")
		first := l.claim(t, "w1", "again", 1, false)
		for range 3 {
			if again := l.claim(t, "w1", "again", 1, false); len(again) != 1 || again[0].Item.WorkID != first[0].Item.WorkID {
				t.Fatalf("the repeat got %d items", len(again))
			}
		}
		if got := len(l.get(t, 5)); got != 1 {
			t.Errorf("another claim got %d items, want one: repeats start nothing", got)
		}
	})
}

// Forty tenants under one limit get equal shares of it.
func TestLimit_EqualSharesOfTenants(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		const tenants, each = 40, 3
		l := withLimits(t, store, tenants*each, ocr)
		for i := range tenants {
			l.accepts(each+5*(i%2), fmt.Sprint("tenant_", i))
		}
		got := map[string]int{}
		for views := l.get(t, 7); len(views) > 0; views = l.get(t, 7) {
			for _, one := range views {
				got[one.Item.TenantID]++
			}
		}
		for tenant, n := range got {
			if n != each {
				t.Errorf("%s got %d starts, want %d", tenant, n, each)
			}
		}
		if len(got) != tenants {
			t.Errorf("%d tenants got starts, want %d", len(got), tenants)
		}
	})
}

// A closed scope hands out nothing, and opens gradually.
func TestLimit_Closure(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 100, noScopes...)
		l.accepts(10, "tenant_a")
		now := tablestore.Now()
		l.gate.Close(statemachine.Closure{Service: "ocr", Until: now.Add(30 * time.Second), ResultAt: now, Actor: "w1"})
		if got := len(l.get(t, 5)); got != 0 {
			t.Fatalf("a claim got %d items of a closed service", got)
		}
		synctest.Wait()
		other := withLimits(t, store, 100, noScopes...) // Another process sees the row.
		if got := len(other.get(t, 5)); got != 0 {
			t.Errorf("a claim of another process got %d items of a closed service", got)
		}
		time.Sleep(30 * time.Second)
		var each []int
		for range 4 {
			each = append(each, len(l.get(t, 5)))
			time.Sleep(time.Second)
		}
		if each[0] != 1 || each[1] > 2 {
			t.Errorf("after the closure the claims of each second got %v items, want 1, 2, …", each)
		}
	})
}

// While something else holds a tenant back, the service's tokens wake the claims of other tenants.
func TestLimit_TokensWakeNoClaimThatIsHeldBack(t *testing.T) {
	t.Parallel()
	for name, narrower := range map[string]admission.Limit{
		"at its own limit":         {Scope: ocrOfA, Count: 1, Window: longWindow},
		"as many run as may":       {Scope: ocrOfA, MaxRunning: 1},
		"closed for its work only": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, store *tapped) {
				l := limitedTo(t, store, admission.Limit{Scope: ocr, Count: 50, Window: 5 * time.Second})
				if narrower.Service != "" {
					_, err := l.stored.SetLimit(t.Context(), narrower)
					musttest.NoError(t, err)
					musttest.NoError(t, l.gate.Refresh(t.Context()))
				}
				l.accepts(2, "tenant_a")
				if got := len(l.get(t, 1)); got != 1 {
					t.Fatalf("the first claim got %d items, want 1", got)
				}
				if now := tablestore.Now(); narrower.Service == "" {
					l.gate.Close(statemachine.Closure{
						Service: "ocr", TenantID: "tenant_a", Until: now.Add(time.Hour), ResultAt: now, Actor: "w1",
					})
				}
				l.accepts(1, "tenant_b")
				time.Sleep(time.Second) // No token is leased for items to come.
				ended := make(chan struct{})
				held := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
					Owner: "w1", RequestID: "held", Tenants: []string{"tenant_a"}, Max: 1, Wait: 10 * time.Minute, Ended: ended,
				})
				answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
					Owner: "w2", RequestID: "free", Tenants: []string{"tenant_b"}, Max: 1, Wait: 30 * time.Second,
				})
				if got := len(answer()); got != 1 {
					t.Errorf("the other tenant's claim got %d items, want 1", got)
				}
				close(ended)
				if got := len(held()); got != 0 {
					t.Errorf("the claim that is held back got %d items", got)
				}
			})
		})
	}
}

// A waiting claim whose items need tokens of two limits gets as many as both allow.
func TestLimit_WaitingClaimGetsTokensOfTwoLimits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := withLimits(t, store, 10, ocr, ocrOfA)
		l.accepts(5, "tenant_a")
		answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w1", RequestID: "waits", Max: 5, Wait: time.Minute,
		})
		if got := len(answer()); got != 5 {
			t.Errorf("the claim got %d items, want 5", got)
		}
	})
}

// slowLeases makes each write of a limit take 50 ms.
func slowLeases(store *tapped) {
	store.set(func(batch tablestore.Batch) error {
		if batch[0].Key.Partition == "admission" {
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
}

// Claims that lack tokens while a lease for another one is being written get those of the next lease,
// which is not put off until they ask again.
func TestLimit_MissedWhileALeaseIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const claims = 4
		store := tap()
		l := withLimits(t, store, 100, ocr)
		l.accepts(claims, "tenant_a")
		slowLeases(store)
		began, answers := time.Now(), make(chan []workqueue.View, claims)
		for i := range claims {
			answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
				Owner: "w1", RequestID: fmt.Sprint("waits-", i), Max: 1, Wait: time.Minute,
			})
			go func() { answers <- answer() }()
			time.Sleep(10 * time.Millisecond)
		}
		for range claims {
			if got := len(<-answers); got != 1 {
				t.Errorf("a claim got %d items, want 1", got)
			}
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the claims got their items after %s, though tokens were free", took)
		}
	})
}

// A claim that waits for tokens keeps no other claim from reading the store.
func TestLimit_AwaitedTokensHoldUpNoOtherClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := withLimits(t, store, 100, ocr)
		l.accepts(1, "tenant_a")
		reopen(t, store).accept("tenant_a", "embed", "EMBED") // by another process
		slowLeases(store)
		time.Sleep(time.Minute) // What was read is old.
		answer := l.waitingFor(t, t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "limited", Max: 1, Services: []string{"ocr"}})
		began := time.Now()
		views, err := l.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w2", RequestID: "other", Max: 1, Services: []string{"embed"}})
		musttest.NoError(t, err)
		if took := time.Since(began); len(views) != 1 || took > 0 {
			t.Errorf("the other claim got %d items after %s", len(views), took)
		}
		if got := len(answer()); got != 1 {
			t.Errorf("the limited claim got %d items", got)
		}
	})
}

// A claim leases as many tokens as it has places, however often it looks before it waits.
func TestLimit_ClaimCountsItsPlacesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := withLimits(t, store, 100, ocr)
		l.accepts(9, "tenant_a")
		slowLeases(store)
		for n := 1; n <= 3; n++ {
			if got := len(l.get(t, 1)); got != 1 {
				t.Fatalf("a claim got %d items, want 1", got)
			}
			time.Sleep(5 * time.Second) // What is not used lapses.
			found, _, err := l.stored.Limits(t.Context())
			musttest.NoError(t, err)
			if used, _ := found[0].Used(time.Now(), 0); used != n {
				t.Errorf("%d tokens are used after %d starts", used, n)
			}
		}
	})
}

// Limited work gets its starts while the worker always has other work, also if it asks less often than
// tokens live: they are leased before it is given that.
func TestLimit_OtherWorkDoesNotStarveIt(t *testing.T) {
	t.Parallel()
	reads, embeds := ledgertest.Step("step", "OCR", "ocr"), ledgertest.Step("step", "EMBED", "embed")
	for name, of := range map[string]struct {
		scope  admission.Scope
		tenant string // of the other work
		other  statemachine.Step
		class  statemachine.Class // of the limited work
		beside statemachine.Class // of the other work
		names  []string           // the tenants of the claims
	}{
		"tenant":             {scope: ocrOfA, tenant: "tenant_b", other: reads},
		"tenant, named":      {scope: ocrOfA, tenant: "tenant_b", other: reads, names: []string{"tenant_a", "tenant_b"}},
		"tenant, named last": {scope: ocrOfA, tenant: "tenant_b", other: reads, names: []string{"tenant_b", "tenant_a"}},
		"service":            {scope: ocr, tenant: "tenant_a", other: embeds},
		"bulk":               {scope: ocrOfA, tenant: "tenant_b", other: reads, class: statemachine.ClassBulk},
		"bulk beside bulk": {
			scope: ocrOfA, tenant: "tenant_b", other: reads, class: statemachine.ClassBulk, beside: statemachine.ClassBulk,
		},
		"bulk of a service beside bulk": {
			scope: ocr, tenant: "tenant_a", other: embeds, class: statemachine.ClassBulk, beside: statemachine.ClassBulk,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, store *tapped) {
				const starts, picks = 3, 40
				l := withLimits(t, store, picks, of.scope)
				for i := range picks {
					other := ledgertest.Command(of.tenant, fmt.Sprint("other-", i), of.other)
					other.Job.Class = of.beside
					l.ledger.Submit(other)
					if limited := ledgertest.Command("tenant_a", fmt.Sprint("limited-", i), reads); i < starts {
						limited.Job.Class = of.class
						l.ledger.Submit(limited)
					}
				}
				got := 0
				for i := range picks {
					views, err := l.Claim(t.Context(), workqueue.ClaimRequest{
						Owner: "w1", RequestID: fmt.Sprint("pick-", i), Max: 1, Tenants: of.names,
					})
					musttest.NoError(t, err)
					for _, one := range views {
						if of.scope.Covers(one.Item.Service, one.Item.StepType, one.Item.TenantID) {
							got++
						}
					}
					time.Sleep(5 * time.Second) // The worker is busy for longer than a token lives.
				}
				found, _, err := l.stored.Limits(t.Context())
				musttest.NoError(t, err)
				if used, _ := found[0].Used(time.Now(), 0); got != starts || used != starts {
					t.Errorf("%d of %d items were claimed, with %d tokens", got, starts, used)
				}
			})
		})
	}
}
