package workqueue_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func TestQueue_AWorkerCompletesAStepByPullingAlone(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		message := b.work()
		views := b.claim(t, "w1", "c1", 5, false)
		if len(views) != 1 || string(views[0].Directive) != string(message.Directive) {
			t.Fatalf("claimed %+v", views)
		}
		item := views[0].Item
		if step := b.step(message.JobID); !item.LeaseExpiresAt.Equal(step.LeaseExpiresAt) || step.State != statemachine.StepAwaitingAck {
			t.Errorf("step is %s until %s, item until %s", step.State, step.LeaseExpiresAt, item.LeaseExpiresAt)
		}
		for _, verb := range []struct {
			name string
			call func() (workqueue.View, error)
			item statemachine.ItemStatus
			step statemachine.StepState
		}{
			{"heartbeat", func() (workqueue.View, error) {
				return b.Heartbeat(t.Context(), item.WorkID, by("w1", "h1", item), nil)
			},
				statemachine.StatusClaimed, statemachine.StepAwaitingAck},
			{"start", func() (workqueue.View, error) { return b.Start(t.Context(), item.WorkID, by("w1", "s1", item)) },
				statemachine.StatusRunning, statemachine.StepInProgress},
			{"heartbeat", func() (workqueue.View, error) {
				return b.Heartbeat(t.Context(), item.WorkID, by("w1", "h2", item), nil)
			},
				statemachine.StatusRunning, statemachine.StepInProgress},
			{"complete", func() (workqueue.View, error) {
				return b.Complete(t.Context(), item.WorkID, by("w1", "e1", item), statemachine.Product{ResultRef: []byte(`{"uri":"s3://r"}`)})
			}, statemachine.StatusSucceeded, statemachine.StepSucceeded},
		} {
			view, err := verb.call()
			if err != nil {
				t.Fatalf("%s: %v", verb.name, err)
			}
			step := b.step(message.JobID)
			if view.Item.Status != verb.item || step.State != verb.step {
				t.Errorf("after %s the item is %s and the step %s", verb.name, view.Item.Status, step.State)
			}
			if view.Item.Status == statemachine.StatusRunning && !view.Item.LeaseExpiresAt.Equal(step.LeaseExpiresAt) {
				t.Errorf("after %s the item's lease is %s, the step's %s", verb.name, view.Item.LeaseExpiresAt, step.LeaseExpiresAt)
			}
			item = view.Item
		}
		events, _, err := b.Events(t.Context(), item.WorkID, 0, 100)
		musttest.NoError(t, err)
		if err := statemachine.ValidateItemHistory(item, events); err != nil {
			t.Error(err)
		}
	})
}

func TestQueue_ClaimAndStartInOneCall(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		message := b.work()
		views := b.claim(t, "w1", "c1", 1, true)
		if len(views) != 1 || views[0].Item.Status != statemachine.StatusRunning {
			t.Fatalf("claimed %+v", views)
		}
		if step := b.step(message.JobID); step.State != statemachine.StepInProgress {
			t.Errorf("step is %s", step.State)
		}
	})
}

func TestQueue_ARepeatGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work()
		b.work()
		first := b.claim(t, "w1", "c1", 1, true)
		again := b.claim(t, "w1", "c1", 1, true)
		if len(again) != 1 || again[0].Item.WorkID != first[0].Item.WorkID || len(again[0].Directive) == 0 {
			t.Fatalf("the repeated claim answered %+v", again)
		}
		item := first[0].Item
		request := by("w1", "e1", item)
		one, err := b.Complete(t.Context(), item.WorkID, request, statemachine.Product{})
		musttest.NoError(t, err)
		two, err := b.Complete(t.Context(), item.WorkID, request, statemachine.Product{})
		if err != nil || two.Item.Rev != one.Item.Rev {
			t.Errorf("the repeated complete answered %v at rev %d, first %d", err, two.Item.Rev, one.Item.Rev)
		}
	})
}

func TestQueue_MarkedTwiceIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		message := b.work()
		b.mark(message)
		if views := b.claim(t, "w1", "c1", 5, false); len(views) != 1 {
			t.Errorf("claimed %d items", len(views))
		}
		b.mark(message)
		if views := b.claim(t, "w2", "c2", 5, false); len(views) != 0 {
			t.Error("a copy was handed out beside the claimed item")
		}
	})
}

func TestQueue_AnItemIsRequeuedAfterItsWorkerDied(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		message := b.work()
		old := b.claim(t, "w1", "c1", 1, true)[0].Item
		stalled, err := b.Stall(t.Context(), old.WorkID, by("operator", "x1", old))
		if err != nil || stalled.Item.Status != statemachine.StatusStalled {
			t.Fatalf("stall: %v, item %s", err, stalled.Item.Status)
		}
		_, err = b.Complete(t.Context(), old.WorkID, by("w1", "e1", stalled.Item), statemachine.Product{})
		assertCode(t, err, apierror.IllegalTransition)
		if _, err := b.Requeue(t.Context(), old.WorkID, by("operator", "x2", stalled.Item)); err != nil {
			t.Fatalf("requeue: %v", err)
		}
		fresh := b.claim(t, "w2", "c2", 1, true)
		if len(fresh) != 1 || fresh[0].Item.WorkID != old.WorkID || fresh[0].Item.AttemptNo != 2 || fresh[0].Item.Attempt != 2 {
			t.Fatalf("claimed %+v", fresh)
		}
		_, err = b.Heartbeat(t.Context(), old.WorkID, by("w1", "h1", old), nil)
		assertCode(t, err, apierror.NotOwner)
		if step := b.step(message.JobID); step.Spent != (statemachine.Spent{}) {
			t.Errorf("an operator's stall spent %+v", step.Spent)
		}
	})
}

func TestQueue_AfterAFailureTheNextAttemptIsANewItem(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		message := b.work()
		old := b.claim(t, "w1", "c1", 1, true)[0].Item
		failed, err := b.Fail(t.Context(), old.WorkID, by("w1", "f1", old), workqueue.Failure{Retryable: true, Code: "busy"})
		if err != nil || failed.Item.Status != statemachine.StatusFailed || failed.Item.Error.Code != "busy" {
			t.Fatalf("fail: %v, %+v", err, failed.Item)
		}
		b.ledger.Apply(message.JobID, statemachine.Retry{})
		fresh := b.claim(t, "w1", "c2", 1, true)
		if len(fresh) != 1 || fresh[0].Item.WorkID == old.WorkID || fresh[0].Item.AttemptNo != 2 {
			t.Fatalf("claimed %+v", fresh)
		}
	})
}

// The queue and the ledger report the same failure, even if its worker named no code.
func TestQueue_AFailureHasTheCodeOfItsStep(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]workqueue.Failure{
		"named":                {Code: "corrupt_pdf"},
		"unnamed":              {},
		"retryable, named":     {Retryable: true, Code: "busy"},
		"retryable, not named": {Retryable: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothStores(t, func(t *testing.T, b *bundle) {
				message := b.work()
				item := b.claim(t, "w1", "c1", 1, true)[0].Item
				failed, err := b.Fail(t.Context(), item.WorkID, by("w1", "f1", item), failure)
				musttest.NoError(t, err)
				got, of := failed.Item.Error.Code, b.step(message.JobID).LastErrorCode
				if got != of || failure.Code != "" && got != failure.Code {
					t.Errorf("the item says %q and its step %q, want %q", got, of, failure.Code)
				}
			})
		})
	}
}

func TestQueue_ItemsFollowTheLedger(t *testing.T) {
	t.Parallel()
	report := func(status statemachine.ResultStatus) func(statemachine.Pair) statemachine.Event {
		return func(p statemachine.Pair) statemachine.Event {
			return statemachine.Result{StepID: "step", Pair: p, Status: status, ErrorCode: "e"}
		}
	}
	always := func(e statemachine.Event) func(statemachine.Pair) statemachine.Event {
		return func(statemachine.Pair) statemachine.Event { return e }
	}
	const gone = statemachine.ItemStatus("gone")
	tests := []struct {
		name  string
		until statemachine.ItemStatus
		event func(statemachine.Pair) statemachine.Event
		want  statemachine.ItemStatus
	}{
		{"RESULT by HTTP on a running item", statemachine.StatusRunning, report(statemachine.ResultSucceeded), statemachine.StatusSucceeded},
		{"failure by HTTP on a running item", statemachine.StatusRunning, report(statemachine.ResultFailedRetry), statemachine.StatusFailed},
		{"final failure by HTTP", statemachine.StatusRunning, report(statemachine.ResultFailedFinal), statemachine.StatusFailed},
		{"RESULT by HTTP on a claimed item", statemachine.StatusClaimed, report(statemachine.ResultSucceeded), statemachine.StatusSucceeded},
		{"failure by HTTP on a claimed item", statemachine.StatusClaimed, report(statemachine.ResultFailedRetry), statemachine.StatusFailed},
		{"ACK by HTTP on a claimed item", statemachine.StatusClaimed, func(p statemachine.Pair) statemachine.Event {
			return statemachine.Ack{StepID: "step", Pair: p}
		}, statemachine.StatusRunning},
		{"cancel before a claim", statemachine.StatusQueued, always(statemachine.Cancel{}), gone},
		{"pause before a claim", statemachine.StatusQueued, always(statemachine.Pause{}), gone},
		{"cancel of a running item waits", statemachine.StatusRunning, always(statemachine.Cancel{}), statemachine.StatusRunning},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothStores(t, func(t *testing.T, b *bundle) {
				message := b.work()
				if test.until != statemachine.StatusQueued {
					b.claim(t, "w1", "c1", 1, test.until == statemachine.StatusRunning)
				}
				pair := statemachine.Pair{AttemptNo: message.AttemptNo, LeaseID: message.LeaseID}
				b.ledger.Apply(message.JobID, test.event(pair))
				view, err := b.Get(t.Context(), message.OutboxID)
				got := view.Item.Status
				if err != nil {
					assertCode(t, err, apierror.WorkNotFound)
					got = gone
				}
				if got != test.want {
					t.Errorf("item is %s, want %s", got, test.want)
				}
				if views := b.claim(t, "w9", "c9", 5, true); len(views) != 0 {
					t.Error("the item was handed out")
				}
			})
		})
	}
}

func TestQueue_TenantsTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	for _, tenant := range []string{"a", "a", "a", "a", "b", "c"} {
		b.accept(tenant, "ocr", "OCR")
	}
	var order []string
	for _, view := range b.claim(t, "w1", "c1", 5, true) {
		order = append(order, view.Item.TenantID)
	}
	if got := strings.Join(order, ""); got != "abcaa" {
		t.Errorf("claimed in the order %s, want abcaa", got)
	}
}

func TestQueue_FiltersNarrowAClaim(t *testing.T) {
	t.Parallel()
	for kind, request := range map[string]workqueue.ClaimRequest{
		"embed EMBED": {Services: []string{"embed"}}, "ocr LARGE": {Services: []string{"ocr"}, StepTypes: []string{"LARGE"}},
		"ocr OCR": {StepTypes: []string{"OCR"}},
	} {
		b := setup(t, false)
		b.accept("a", "ocr", "OCR")
		b.accept("a", "ocr", "LARGE")
		b.accept("a", "embed", "EMBED")
		request.Owner, request.RequestID, request.Max = "w", "1", 5
		views, err := b.Claim(t.Context(), request)
		if err != nil || len(views) != 1 || views[0].Item.Service+" "+views[0].Item.StepType != kind {
			t.Errorf("%s: claimed %+v (%v)", kind, views, err)
		}
	}
}

func TestQueue_AnotherProcessFindsWhatThisOneEnqueued(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	b.work()
	other := reopen(t, b.store)
	if views := other.claim(t, "w1", "c1", 5, true); len(views) != 1 {
		t.Errorf("claimed %d items", len(views))
	}
}

func TestQueue_AWaitingClaimIsWokenByAnEnqueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		done := make(chan int)
		go func() {
			views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Wait: time.Minute})
			if err != nil {
				t.Errorf("claim: %v", err)
			}
			done <- len(views)
		}()
		synctest.Wait()
		begin := time.Now()
		b.work()
		if got := <-done; got != 1 || !time.Now().Equal(begin) {
			t.Errorf("claimed %d items after %s", got, time.Since(begin))
		}
	})
}

func TestQueue_UnknownItems(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	for _, id := range []string{"nonsense", "no-such-job.0.1"} {
		_, err := b.Get(t.Context(), id)
		assertCode(t, err, apierror.WorkNotFound)
	}
}

func assertCode(t *testing.T, err error, want apierror.Code) {
	t.Helper()
	var known *apierror.Error
	if !errors.As(err, &known) || known.Code != want {
		t.Errorf("answered %v, want %s", err, want)
	}
}
