package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rejection is a refused ACK of a step with a lease of that name.
func rejection(step, lease string) ledger.Rejection {
	now := tablestore.Now()
	return ledger.Rejection{
		StepID: step, Kind: "ACK", AttemptNo: 1, LeaseDigest: lease, Cause: "stale_attempt", First: now, Last: now, Count: 1,
	}
}

// TestRejections_KeepTheNewest: replicas record in any order, and their clocks differ.
func TestRejections_KeepTheNewest(t *testing.T) {
	t.Parallel()
	var r ledger.Rejections
	at := time.Date(2000, 1, 1, 0, 0, 10, 0, time.UTC)
	for i, after := range []time.Duration{0, 5 * time.Second, -5 * time.Second, 3 * time.Second} {
		seen := at.Add(after)
		r.Add(ledger.Rejection{StepID: "one", RequestID: fmt.Sprint(i), First: seen, Last: seen, Count: 1})
	}
	got := r.Kept[0]
	if len(r.Kept) != 1 || got.Count != 4 || !got.First.Equal(at) || !got.Last.Equal(at.Add(5*time.Second)) || got.RequestID != "1" {
		t.Errorf("kept %+v", r.Kept)
	}
}

func TestRejections_HaveBounds(t *testing.T) {
	t.Parallel()
	var r ledger.Rejections
	for step := range 6 {
		for i := range 20 {
			r.Add(rejection(fmt.Sprint("step", step), fmt.Sprint(i)))
		}
	}
	if len(r.Kept) != 64 || r.More != 6*20-64 {
		t.Errorf("%d are kept, %d more", len(r.Kept), r.More)
	}
	perStep := map[string]int{}
	for i := range r.Kept {
		perStep[r.Kept[i].StepID]++
	}
	if len(perStep) != 4 || perStep["step0"] != 16 {
		t.Errorf("kept by step: %v", perStep)
	}
	r.Add(rejection("step0", "3"))
	if r.Kept[3].Count != 2 || r.More != 6*20-64 {
		t.Error("a repeat of one that is kept is not counted there")
	}
}

// A rejection never stands before a change that a reader of the history may have passed:
// it moves to the revisions that were made while it was written.
func TestReject_FollowsTheJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.Submit(command("k"))
	one := func(lease string) {
		t.Helper()
		if err := b.Reject(t.Context(), job, &ledger.Rejections{Kept: []ledger.Rejection{rejection("one", lease)}}); err != nil {
			t.Fatal(err)
		}
	}
	one("before")
	changes := []statemachine.Event{statemachine.Pause{}, statemachine.Resume{}}
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if batch[0].Key.Row == "CALLBACKS" && len(changes) > 0 {
			event := changes[0]
			changes = changes[1:]
			b.Apply(job, event)
		}
		return commit()
	})
	one("while it changes")
	one("after")
	b.store.set(nil)
	got, err := b.Rejected(t.Context(), job)
	if err != nil || len(got.Kept) != 3 || got.Total() != 3 {
		t.Fatalf("recorded %+v: %v", got, err)
	}
	for i, want := range []int64{1, 3, 3} {
		if got.Kept[i].Rev != want {
			t.Errorf("the record of %s is at rev %d, want %d", got.Kept[i].LeaseDigest, got.Kept[i].Rev, want)
		}
	}
}

// purgeDue purges the job whose retention is over.
func (b *bundle) purgeDue(t *testing.T) {
	t.Helper()
	for _, entry := range b.Entries(ledger.Retention, time.Now()) {
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeDone {
			t.Fatalf("%s, %v", outcome, err)
		}
	}
}

// A rejection that is recorded during or after the purge of its job leaves no row.
func TestReject_APurgedJobLeavesNoRecord(t *testing.T) {
	t.Parallel()
	for name, purgeFirst := range map[string]bool{"after the purge": true, "while the purge runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := split()
				var archived *ledger.Archived
				b := keeper(t, store, func(_ context.Context, job *ledger.Archived) error { archived = job; return nil })
				job := b.ended(t)
				record := func() error {
					return b.Reject(t.Context(), job, &ledger.Rejections{Kept: []ledger.Rejection{rejection("one", "l")}})
				}
				if err := record(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(48 * time.Hour)
				if purgeFirst {
					b.purgeDue(t)
				} else {
					store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
						if batch[0].Key.Row == "CALLBACKS" && batch[0].Verb != tablestore.Discard {
							store.set(nil)
							b.purgeDue(t)
						}
						return commit()
					})
				}
				if err := record(); err != nil {
					t.Fatal(err)
				}
				rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: "luciusledger", Partition: job})
				if err != nil || len(rows) != 0 {
					t.Errorf("%d rows are left: %v", len(rows), err)
				}
				if last := archived.History[len(archived.History)-1]; last.Type != statemachine.EventCallbackRejected || last.ID != "one" {
					t.Errorf("the archive ends with %+v", last)
				}
			})
		})
	}
}
