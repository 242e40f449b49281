package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// waiting begins a claim of one item that waits up to a minute, and returns a function that
// awaits its answer. The claim is already waiting.
func (b *bundle) waiting(t *testing.T, requestID string) (answer func() []workqueue.View) {
	t.Helper()
	return b.waitingFor(t, ledger.WithCaller(context.WithoutCancel(t.Context()), "a worker"), workqueue.ClaimRequest{
		Owner: "w1", RequestID: requestID, Max: 1, Start: true, Wait: time.Minute,
	})
}

func (b *bundle) waitingFor(t *testing.T, ctx context.Context, r workqueue.ClaimRequest) (answer func() []workqueue.View) {
	t.Helper()
	answers := make(chan []workqueue.View, 1)
	go func() {
		views, err := b.Claim(ctx, r)
		if err != nil {
			t.Errorf("claim: %v", err)
		}
		answers <- views
	}()
	synctest.Wait()
	return func() []workqueue.View { return <-answers }
}

// history returns the events of the job, in order.
func (b *bundle) history(t *testing.T, jobID string) (events []string) {
	t.Helper()
	all := b.ledger.Past(jobID)
	for _, e := range all {
		events = append(events, fmt.Sprintf("%d %s by %s of %s", e.Rev, e.Event, e.Actor, e.Caller))
	}
	return events
}

// With a worker that waits, accept and claim are one commit, and so are the completion
// of a step and the claim of the next. The job's history is the same as without a waiting
// worker.
func TestTakeover_OneCommitForEachHop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		b := reopen(t, store)
		claim := func(requestID string) statemachine.Item {
			views, err := b.Claim(ledger.WithCaller(t.Context(), "a worker"), workqueue.ClaimRequest{
				Owner: "w1", RequestID: requestID, Max: 1, Start: true,
			})
			if err != nil || len(views) != 1 {
				t.Fatalf("claimed %d items, %v", len(views), err)
			}
			return views[0].Item
		}
		b.steps(t, 3)
		alone := claim("alone-0")
		for i := 1; ; i++ {
			if _, err := b.Complete(t.Context(), alone.WorkID, by("w1", "done", alone), statemachine.Product{}); err != nil {
				t.Fatal(err)
			}
			if i == 3 {
				break
			}
			alone = claim(fmt.Sprint("alone-", i))
		}

		answer := b.waiting(t, "claim-0")
		counter.Reset()
		b.steps(t, 3)
		item := answer()[0].Item
		for i := 1; ; i++ {
			if i < 3 {
				answer = b.waiting(t, fmt.Sprint("claim-", i))
			}
			if _, err := b.Complete(t.Context(), item.WorkID, by("w1", "done", item), statemachine.Product{}); err != nil {
				t.Fatal(err)
			}
			if i == 3 {
				break
			}
			item = answer()[0].Item
		}
		if got := counter.Counts().Commits; got != 4 {
			t.Errorf("a job of three steps took %d commits, want 4", got)
		}
		if got, want := b.history(t, item.JobID), b.history(t, alone.JobID); !slices.Equal(got, want) {
			t.Errorf("the history is\n%q, want\n%q", got, want)
		}
		hints, _, bad, err := b.ledger.ReadyHints(t.Context(), ledger.WorkClass{WorkKind: ledger.WorkKind{Service: "ocr", StepType: "OCR"}}, 0, "", "", 10)
		if len(hints) > 0 || bad != nil || err != nil {
			t.Errorf("the ready index holds %v, %v, %v", hints, bad, err)
		}
	})
}

// A waiting claim gets no item that it may not have, and the item waits as usual.
func TestTakeover_OnlyItemsThatTheClaimMayTake(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*bundle, *workqueue.ClaimRequest){
		"of another service":   func(_ *bundle, r *workqueue.ClaimRequest) { r.Services = []string{"embed"} },
		"of another step type": func(_ *bundle, r *workqueue.ClaimRequest) { r.StepTypes = []string{"SPLIT"} },
		"of another tenant":    func(_ *bundle, r *workqueue.ClaimRequest) { r.Tenants = []string{"tenant_b"} },
		"of a paused tenant":   func(b *bundle, _ *workqueue.ClaimRequest) { b.heldTenant.Store("tenant_a") },
		"while new work waits": func(b *bundle, _ *workqueue.ClaimRequest) { b.pending.Store(true) },
		"beyond what it may see": func(b *bundle, _ *workqueue.ClaimRequest) {
			b.Queue = b.As(workqueue.Caller{Tenants: []string{"tenant_b"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, request := setup(t, false), workqueue.ClaimRequest{Owner: "w1", RequestID: "c", Max: 1, Wait: time.Minute}
				whole := b.Queue
				test(b, &request)
				answer := b.waitingFor(t, t.Context(), request)
				b.work()
				if views := answer(); len(views) > 0 {
					t.Fatalf("claimed %v", workIDs(views))
				}
				b.Queue = whole
				b.heldTenant.Store("")
				if views := b.claim(t, "w2", "c", 1, true); len(views) != 1 && !b.pending.Load() {
					t.Errorf("a claim that may have it got %d items", len(views))
				}
			})
		})
	}
}

// whole makes the write of a change, of several batches, fail in one of the ways in which a store can fail.
type whole struct {
	fail func(commit func() error) error
}

func (s *whole) hook(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
	if fail := s.fail; fail != nil && len(r.Batches) > 1 {
		s.fail = nil
		return fail(func() error { return do(ctx) })
	}
	return do(ctx)
}

// The write that queues an item for a waiting worker fails. A client that sends its request
// again, and a worker that continues to wait, get the same results as without the fault.
func TestTakeover_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	type commit = func() error
	for name, fail := range map[string]func(commit) error{
		"not written":                  func(commit) error { return tablestore.ErrUnavailable },
		"unknown, and not written":     func(commit) error { return tablestore.ErrUnknown },
		"unknown, and written":         func(c commit) error { return errors.Join(tablestore.ErrUnknown, c()) },
		"written after the wait ended": func(c commit) error { time.Sleep(2 * time.Minute); return c() },
	} {
		for _, verb := range []string{"accept", "complete"} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := &whole{}
					b := reopen(t, storetest.Hooked(ledgertest.Atomic(), store.hook))
					cmd := b.command("tenant_a", "ocr", "OCR")
					next := cmd.Steps[0]
					next.ID = "next"
					cmd.Steps = append(cmd.Steps, next)
					send := func() error {
						_, err := b.ledger.Accept(t.Context(), cmd)
						return err
					}
					if verb == "complete" {
						b.ledger.Submit(cmd)
						item := b.claim(t, "w1", "before", 1, true)[0].Item
						send = func() error {
							_, err := b.Complete(t.Context(), item.WorkID, by("w1", "done", item), statemachine.Product{})
							return err
						}
					}
					answer := b.waiting(t, "claim")
					store.fail = fail
					if err := send(); err != nil {
						if err = send(); err != nil {
							t.Fatalf("sent again: %v", err)
						}
					}
					views := answer()
					if len(views) != 1 || views[0].Item.Status != statemachine.StatusRunning {
						t.Fatalf("claimed %+v", views)
					}
					if again := b.claim(t, "w1", "claim", 1, true); !slices.Equal(workIDs(again), workIDs(views)) {
						t.Errorf("the repeat of the claim got %v, want %v", workIDs(again), workIDs(views))
					}
					if others := b.claim(t, "w2", "claim", 1, true); len(others) > 0 {
						t.Errorf("another worker got %v", workIDs(others))
					}
				})
			})
		}
	}
}

// A worker may send its claim again while the first try still waits. Both get the same
// item: the store refuses to hand the second try another item, so it looks for work itself.
func TestTakeover_ARequestThatWaitsTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		first, again := b.waiting(t, "claim"), b.waiting(t, "claim")
		b.work()
		b.work()
		got := first()
		if more := again(); len(got) != 1 || !slices.Equal(workIDs(more), workIDs(got)) {
			t.Errorf("the request got %v, and its repeat %v", workIDs(got), workIDs(more))
		}
		if others := b.claim(t, "w2", "claim", 2, true); len(others) != 1 {
			t.Errorf("%d items are left, want the second", len(others))
		}
	})
}

// A worker that repeats its claim many times while the first try waits costs other workers'
// changes one lost race, however many repeats wait.
func TestTakeover_RepeatsDoNotHoldUpChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		var answers []func() []workqueue.View
		for range 30 {
			answers = append(answers, b.waiting(t, "claim"))
		}
		b.work()
		began := time.Now()
		b.work()
		if took := time.Since(began); took > 5*time.Millisecond { // The pause after one lost race is 1.5 ms at most.
			t.Errorf("an accept took %v", took)
		}
		for _, answer := range answers {
			answer()
		}
	})
}

// A client that disconnected while an item was being claimed for it gets the item when it
// sends the request again.
func TestTakeover_AWorkerThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &whole{}
		b := reopen(t, storetest.Hooked(ledgertest.Atomic(), store.hook))
		ctx, leave := context.WithCancel(t.Context())
		request := workqueue.ClaimRequest{Owner: "w1", RequestID: "claim", Max: 1, Start: true, Wait: time.Minute}
		answer := b.waitingFor(t, ctx, request)
		store.fail = func(commit func() error) error {
			leave()
			time.Sleep(time.Second)
			return commit()
		}
		b.work()
		got := answer()
		if again := b.claim(t, "w1", "claim", 1, true); len(again) != 1 || !slices.Equal(workIDs(again), workIDs(got)) {
			t.Errorf("got %v, and again %v", workIDs(got), workIDs(again))
		}
	})
}

// A claim that has received its wake-up but not acted on it is given no other item: it
// would return with that item, and the work that it was woken for would wait for the next
// poll.
func TestTakeover_NoneForAClaimThatIsWoken(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	of := statemachine.Target{TenantID: "tenant_a"}
	hint, next := ledger.Hint{Target: of, WorkID: "older"}, ledger.Hint{Target: of, WorkID: "newer"}
	claim, leave := b.Park(t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "c", Max: 1})
	defer leave()
	b.mirror.Ready(hint, true)
	claim.Signal()
	if b.mirror.Taker(&next) != nil {
		t.Fatal("a claim that was woken for one item is given another")
	}
	if claim.Unpark() != nil {
		t.Error("the claim was given an item")
	}
}

// A claim that was given an item but has not run yet is given no second item.
func TestTakeover_OneForEachClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	hint := ledger.Hint{Target: statemachine.Target{TenantID: "tenant_a"}, WorkID: "one"}
	claim, leave := b.Park(t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "c", Max: 1})
	defer leave()
	item := &ledger.Claimed{Hint: hint}
	b.mirror.Taker(&hint).Done(item)
	claim.Signal()
	if b.mirror.Taker(&hint) != nil {
		t.Fatal("the claim is given a second item")
	}
	if given := claim.Unpark(); given != item {
		t.Errorf("the claim was given %v", given)
	}
}
