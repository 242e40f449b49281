package workqueue_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// On a store that splits a change, the ledger's part and the item's can be torn
// apart: by a crash, a lost write, or another process in between. The item
// follows the ledger.

func down() error { return tablestore.ErrUnavailable }

func TestTorn_AClaimThatCannotCleanUpDeliversAllTheSame(t *testing.T) {
	t.Parallel()
	for _, row := range []string{"ready:", "ITEM:"} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			message := b.work(t)
			store.on(row, 1, down)
			views := b.claim(t, "w1", "c1", 1, false)
			if len(views) != 1 || string(views[0].Directive) != string(message.Directive) {
				t.Fatalf("claimed %+v", views)
			}
			again := b.claim(t, "w1", "c1", 1, false)
			if len(again) != 1 || again[0].Item.Rev != views[0].Item.Rev {
				t.Errorf("the repeat answered %+v", again)
			}
			if other := reopen(t, store).claim(t, "w2", "c2", 5, false); len(other) != 0 {
				t.Error("the item was handed out twice")
			}
		})
	}
}

// A claim is remembered before the ledger hears of it. Where that fails, nothing
// was claimed; and a memory of what never came to be holds nobody up.
func TestTorn_AClaimThatCannotBeRememberedIsNone(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	message := b.work(t)
	store.fail(tablestore.ErrUnavailable, "claims:")
	request := workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: 1}
	_, err := b.Claim(t.Context(), request)
	assertCode(t, err, problem.StoreUnavailable)
	store.set(nil)
	if step := b.step(t, message.JobID); !step.LeaseExpiresAt.IsZero() {
		t.Errorf("the step is claimed until %s", step.LeaseExpiresAt)
	}
	if views, err := b.Claim(t.Context(), request); err != nil || len(views) != 1 {
		t.Errorf("sent again, it answered %d items (%v)", len(views), err)
	}
}

func TestTorn_AMemoryOfALostRaceHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	store.on("claims:", 1, func() error {
		if views := reopen(t, store).claim(t, "w2", "c2", 1, false); len(views) != 1 {
			t.Errorf("the other process claimed %d items", len(views))
		}
		return nil
	})
	if views := b.claim(t, "w1", "c1", 1, false); len(views) != 0 {
		t.Fatalf("claimed %+v", views)
	}
	second := b.work(t)
	if views := b.claim(t, "w1", "c1", 1, false); len(views) != 1 || views[0].Item.WorkID != second.OutboxID {
		t.Errorf("the next claim under that id answered %+v", views)
	}
}

// A claim that is sent again while the first is under way, to another process,
// takes nothing else and loses nothing: both answer with the item.
func TestTorn_AClaimSentTwiceAtOnceIsOneClaim(t *testing.T) {
	t.Parallel()
	for _, start := range []bool{false, true} {
		for _, row := range []string{"claims:", "ITEM:", "ready:"} {
			t.Run(fmt.Sprint(row, start), func(t *testing.T) {
				t.Parallel()
				store := tap()
				b := reopen(t, store)
				message := b.work(t)
				var meanwhile []workqueue.View
				store.on(row, 1, func() error {
					meanwhile = reopen(t, store).claim(t, "w1", "c1", 1, start)
					return nil
				})
				first := b.claim(t, "w1", "c1", 1, start)
				for _, views := range [][]workqueue.View{first, meanwhile} {
					if len(views) != 1 || views[0].Item.WorkID != message.OutboxID || views[0].Item.Attempt != 1 {
						t.Errorf("claimed %+v", views)
					}
				}
			})
		}
	}
}

// A claim whose process dies behind the ledger's commit is finished by its
// repeat, in whatever part it was left, and by nobody else.
func TestTorn_AClaimIsFinishedByItsRepeatInAnotherProcess(t *testing.T) {
	t.Parallel()
	for _, start := range []bool{false, true} {
		for _, lost := range [][]string{{"ITEM:"}, {"ITEM:", "ready:"}} {
			t.Run(fmt.Sprint(start, lost), func(t *testing.T) {
				t.Parallel()
				store := tap()
				b := reopen(t, store)
				message := b.work(t)
				dies := errors.Join(tablestore.ErrUnavailable, errors.New("the process died"))
				store.fail(dies, lost...)
				request := workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: 1, Start: start}
				if _, err := b.Claim(t.Context(), request); !errors.Is(err, dies) {
					t.Fatalf("claim: %v", err)
				}
				store.set(nil)
				for n, other := range []bool{true, false} {
					if views := reopen(t, store).claim(t, "w2", fmt.Sprint("c", n), 1, other); len(views) != 0 {
						t.Error("the ledger's claim was overlooked")
					}
				}
				views, err := reopen(t, store).Claim(t.Context(), request)
				if err != nil || len(views) != 1 || string(views[0].Directive) != string(message.Directive) || views[0].Item.Attempt != 1 {
					t.Errorf("the repeat answered %+v (%v)", views, err)
				}
			})
		}
	}
}

func TestTorn_AnItemIsNotStartedUnderAnothersClaim(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	store.on("ITEM:", 1, func() error {
		if views := reopen(t, store).claim(t, "w2", "c2", 1, true); len(views) != 0 {
			t.Error("the item was handed out twice")
		}
		return nil
	})
	if views := b.claim(t, "w1", "c1", 1, false); len(views) != 1 || views[0].Item.Owner != "w1" {
		t.Errorf("claimed %+v", views)
	}
}

func TestTorn_AWorkerGoesOnAfterAStartThatItsItemMissed(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, false)[0].Item
	store.on("ITEM:", 1<<20, down)
	_, err := b.Start(t.Context(), item.WorkID, by("w1", "s1", item))
	assertCode(t, err, problem.StoreUnavailable)
	store.set(nil)
	done, err := b.Complete(t.Context(), item.WorkID, by("w1", "e1", item), nil, nil)
	if err != nil || done.Item.Status != lifecycle.StatusSucceeded {
		t.Fatalf("complete: %v, item is %s", err, done.Item.Status)
	}
	if started, err := b.Start(t.Context(), item.WorkID, by("w1", "s1", item)); err != nil || started.Item.Rev != done.Item.Rev {
		t.Errorf("the start, sent again: %v, item at rev %d", err, started.Item.Rev)
	}
	_, err = b.Start(t.Context(), item.WorkID, by("w1", "s2", item))
	assertCode(t, err, problem.RevConflict)
}

func TestTorn_AnotherWorkerGainsNothingFromALostWrite(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, false)[0].Item
	store.on("ITEM:", 1<<20, down)
	_, err := b.Start(t.Context(), item.WorkID, by("w1", "s1", item))
	assertCode(t, err, problem.StoreUnavailable)
	store.set(nil)
	_, err = b.Complete(t.Context(), item.WorkID, by("w2", "e1", item), nil, nil)
	assertCode(t, err, problem.NotOwner)
	_, err = b.Stall(t.Context(), item.WorkID, by("operator", "x1", item))
	assertCode(t, err, problem.RevConflict)
}

// What ends an item while its item's write is lost: the repeat answers as the
// first did, and another request does not.
func TestTorn_ARepeatIsKnownThoughTheItemNeverHeardOfIt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		send func(b *bundle, item lifecycle.Item, id string) (workqueue.View, error)
		want lifecycle.Status
	}{
		{"complete", func(b *bundle, item lifecycle.Item, id string) (workqueue.View, error) {
			return b.Complete(b.ctx, item.WorkID, by("w1", id, item), nil, nil)
		}, lifecycle.StatusSucceeded},
		{"fail", func(b *bundle, item lifecycle.Item, id string) (workqueue.View, error) {
			return b.Fail(b.ctx, item.WorkID, by("w1", id, item), workqueue.Failure{Retryable: true})
		}, lifecycle.StatusFailed},
		{"stall", func(b *bundle, item lifecycle.Item, id string) (workqueue.View, error) {
			return b.Stall(b.ctx, item.WorkID, by("operator", id, item))
		}, lifecycle.StatusStalled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			b.work(t)
			item := b.claim(t, "w1", "c1", 1, true)[0].Item
			store.on("ITEM:", 1, func() error {
				// Another process meets the item in between, and makes it follow.
				_, err := reopen(t, store).Heartbeat(t.Context(), item.WorkID, by("w1", "h1", item))
				if known := asKnown(err); known == nil || known.Code.Status() != 409 {
					t.Errorf("heartbeat in between: %v", err)
				}
				return nil
			})
			one, err := test.send(b, item, "e1")
			if err != nil || one.Item.Status != test.want {
				t.Fatalf("%v, item is %s", err, one.Item.Status)
			}
			two, err := test.send(b, item, "e1")
			if err != nil || two.Item.Rev != one.Item.Rev {
				t.Errorf("the repeat answered %v, rev %d, first %d", err, two.Item.Rev, one.Item.Rev)
			}
			if _, err := test.send(b, item, "e2"); err == nil {
				t.Error("another request for the same rev was accepted")
			}
		})
	}
}

// Of two requests for one rev, in two processes, one is answered with 200: the
// second comes when the ledger has applied the first and the item has not moved.
func TestTorn_OneOfTwoRacingProcessesIsAccepted(t *testing.T) {
	t.Parallel()
	type send = func(b *bundle, item lifecycle.Item) (workqueue.View, error)
	beat := func(b *bundle, item lifecycle.Item) (workqueue.View, error) {
		return b.Heartbeat(b.ctx, item.WorkID, by("w1", "h", item))
	}
	other := func(b *bundle, item lifecycle.Item) (workqueue.View, error) {
		return b.Heartbeat(b.ctx, item.WorkID, by("w1", "h2", item))
	}
	start := func(b *bundle, item lifecycle.Item) (workqueue.View, error) {
		return b.Start(b.ctx, item.WorkID, by("w1", "s", item))
	}
	complete := func(b *bundle, item lifecycle.Item) (workqueue.View, error) {
		return b.Complete(b.ctx, item.WorkID, by("w1", "e", item), nil, nil)
	}
	stall := func(b *bundle, item lifecycle.Item) (workqueue.View, error) {
		return b.Stall(b.ctx, item.WorkID, by("operator", "x", item))
	}
	tests := []struct {
		name          string
		running       bool
		first, second send
	}{
		{"start, then stall", false, start, stall},
		{"start, then heartbeat", false, start, beat},
		{"stall, then start", false, stall, start},
		{"stall, then heartbeat", true, stall, beat},
		{"stall, then complete", true, stall, complete},
		{"complete, then stall", true, complete, stall},
		{"complete, then heartbeat", true, complete, beat},
		{"heartbeat, then heartbeat", true, beat, other},
		{"heartbeat before the start, then heartbeat", false, beat, other},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			b.work(t)
			item := b.claim(t, "w1", "c1", 1, test.running)[0].Item
			var second error
			store.on("ITEM:", 1, func() error {
				_, second = test.second(reopen(t, store), item)
				return nil
			})
			_, first := test.first(b, item)
			if (first == nil) == (second == nil) {
				t.Errorf("first: %v; second: %v", first, second)
			}
			view, err := b.Get(t.Context(), item.WorkID)
			if err != nil {
				t.Fatal(err)
			}
			events, _, err := b.Events(t.Context(), item.WorkID, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			if err := lifecycle.ValidateHistory(view.Item, events); err != nil {
				t.Error(err)
			}
		})
	}
}

// The same, where the other process is done when the ledger is asked, but was
// not when the item was.
func TestTorn_ARequestForARevThatIsGoneChangesNothing(t *testing.T) {
	t.Parallel()
	type verb = func(*bundle, string, lifecycle.Request) (workqueue.View, error)
	tests := []struct {
		name  string
		actor string
		send  verb
	}{
		{"heartbeat", "w1", func(b *bundle, id string, r lifecycle.Request) (workqueue.View, error) {
			return b.Heartbeat(b.ctx, id, r)
		}},
		{"complete", "w1", func(b *bundle, id string, r lifecycle.Request) (workqueue.View, error) {
			return b.Complete(b.ctx, id, r, nil, nil)
		}},
		{"fail", "w1", func(b *bundle, id string, r lifecycle.Request) (workqueue.View, error) {
			return b.Fail(b.ctx, id, r, workqueue.Failure{})
		}},
		{"stall", "olga", func(b *bundle, id string, r lifecycle.Request) (workqueue.View, error) {
			return b.Stall(b.ctx, id, r)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := tap()
				b := reopen(t, store)
				b.work(t)
				item := b.claim(t, "w1", "c1", 1, true)[0].Item
				time.Sleep(time.Minute)
				store.afterRead(func() {
					if _, err := reopen(t, store).Heartbeat(t.Context(), item.WorkID, by("w1", "h", item)); err != nil {
						t.Error(err)
					}
				})
				_, err := test.send(b, item.WorkID, by(test.actor, "late", item))
				assertCode(t, err, problem.RevConflict)
				if step := b.step(t, item.JobID); step.State != statemachine.StepInProgress {
					t.Errorf("the step is %s", step.State)
				}
			})
		})
	}
}

func TestTorn_AnotherRequestDoesNotTakeTheFirstsAnswer(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	complete := func(id string) error {
		_, err := b.Complete(t.Context(), item.WorkID, by("w1", id, item), nil, nil)
		return err
	}
	store.fail(tablestore.ErrUnavailable, "ITEM:")
	assertCode(t, complete("e1"), problem.StoreUnavailable)
	store.set(nil)
	assertCode(t, complete("e2"), problem.RevConflict)
	if err := complete("e1"); err != nil {
		t.Errorf("the first, sent again: %v", err)
	}
}

func TestTorn_ARepeatIsKnownAfterTheNextAttemptWasMade(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	stall := func(id string) error {
		_, err := b.Stall(t.Context(), item.WorkID, by("olga", id, item))
		return err
	}
	store.fail(tablestore.ErrUnavailable, "ITEM:")
	assertCode(t, stall("x1"), problem.StoreUnavailable)
	store.set(nil)
	if _, err := b.ledger.Change(t.Context(), item.JobID, statemachine.Retry{}); err != nil {
		t.Fatal(err)
	}
	if err := stall("x1"); err != nil {
		t.Errorf("the first, sent again: %v", err)
	}
	if view, err := b.Get(t.Context(), item.WorkID); err != nil || view.Item.Status != lifecycle.StatusStalled {
		t.Errorf("the item is %s (%v)", view.Item.Status, err)
	}
}

// An item that came back meanwhile, with the next attempt, is not touched by
// what was decided about the one before.
func TestTorn_AnItemsNextAttemptIsNobodysLateMove(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		start bool
		send  func(b *bundle, item lifecycle.Item) error
		then  func(t *testing.T, other *bundle, item lifecycle.Item)
		want  lifecycle.Status
	}{
		{"start", false, func(b *bundle, item lifecycle.Item) error {
			_, err := b.Start(b.ctx, item.WorkID, by("w1", "s1", item))
			return err
		}, func(t *testing.T, other *bundle, item lifecycle.Item) {
			t.Helper()
			_, err := other.Stall(other.ctx, item.WorkID, by("olga", "x1", item))
			assertCode(t, err, problem.RevConflict) // It has followed to running by that.
			item.Rev++
			stalled, err := other.Stall(other.ctx, item.WorkID, by("olga", "x2", item))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Requeue(other.ctx, item.WorkID, by("olga", "x3", stalled.Item)); err != nil {
				t.Fatal(err)
			}
			other.claim(t, "w1", "c2", 1, false)
		}, lifecycle.StatusClaimed},
		{"stall", true, func(b *bundle, item lifecycle.Item) error {
			_, err := b.Stall(b.ctx, item.WorkID, by("olga", "x1", item))
			return err
		}, func(t *testing.T, other *bundle, item lifecycle.Item) {
			t.Helper()
			_, err := other.Heartbeat(other.ctx, item.WorkID, by("w1", "h1", item))
			assertCode(t, err, problem.StaleAttempt) // It has followed to stalled by that.
			item.Rev++
			if _, err := other.Requeue(other.ctx, item.WorkID, by("olga", "x2", item)); err != nil {
				t.Fatal(err)
			}
		}, lifecycle.StatusQueued},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			b.work(t)
			item := b.claim(t, "w1", "c1", 1, test.start)[0].Item
			store.on("ITEM:", 1, func() error {
				test.then(t, reopen(t, store), item)
				return nil
			})
			if err := test.send(b, item); err != nil {
				t.Errorf("%s, which the ledger applied: %v", test.name, err)
			}
			view, err := b.Get(t.Context(), item.WorkID)
			if err != nil || view.Item.Status != test.want || view.Item.AttemptNo != 2 {
				t.Errorf("the item is %s at attempt %d (%v)", view.Item.Status, view.Item.AttemptNo, err)
			}
		})
	}
}

// A worker may use one id for each of its items: what it did with one is no
// answer for the next.
func TestTorn_ARequestOnAnEarlierItemIsNoRepeat(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work(t)
		for n, id := range []string{"c1", "c2"} {
			item := b.claim(t, "w1", id, 1, true)[0].Item
			stale := item
			stale.Rev--
			_, err := b.Fail(t.Context(), item.WorkID, by("w1", "f1", stale), workqueue.Failure{Retryable: true})
			assertCode(t, err, problem.RevConflict)
			if _, err := b.Fail(t.Context(), item.WorkID, by("w1", "f1", item), workqueue.Failure{Retryable: true}); err != nil {
				t.Errorf("attempt %d: %v", n+1, err)
			}
			if _, err := b.ledger.Change(t.Context(), item.JobID, statemachine.Retry{}); err != nil {
				t.Fatal(err)
			}
			b.relay(t)
		}
	})
}

func TestTorn_ALateCleanUpLeavesTheNextHintAlone(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	var item lifecycle.Item
	store.on("ready:", 1, func() error {
		// The claim is through but for its hint; the item comes back meanwhile.
		other := reopen(t, store)
		views := other.claim(t, "w1", "c1", 1, false)
		if len(views) != 1 {
			t.Fatalf("the claim, sent again, answered %+v", views)
		}
		item = views[0].Item
		stalled, err := other.Stall(t.Context(), item.WorkID, by("operator", "x1", item))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Requeue(t.Context(), item.WorkID, by("operator", "x2", stalled.Item)); err != nil {
			t.Fatal(err)
		}
		return nil
	})
	b.claim(t, "w1", "c1", 1, false)
	if fresh := reopen(t, store).claim(t, "w2", "c2", 1, false); len(fresh) != 1 || fresh[0].Item.WorkID != item.WorkID {
		t.Errorf("claimed %+v", fresh)
	}
}

func TestTorn_ALostFollowIsMadeUpForByTheNextAttempt(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	store.on("ITEM:", 1, down)
	for _, event := range []statemachine.Event{statemachine.Stall{StepID: "step", AttemptNo: 1}, statemachine.Retry{}} {
		if _, err := b.ledger.Change(t.Context(), item.JobID, event); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.Heartbeat(t.Context(), item.WorkID, by("w1", "h1", item))
	assertCode(t, err, problem.StaleAttempt)
	b.relay(t)
	fresh := b.claim(t, "w2", "c2", 1, true)
	if len(fresh) != 1 || fresh[0].Item.WorkID != item.WorkID || fresh[0].Item.AttemptNo != 2 {
		t.Errorf("claimed %+v", fresh)
	}
}
