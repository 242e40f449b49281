package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// With the pull queue the relay only marks rows that a pause held back: no other row is
// ever PENDING.
func TestRelay_OfThePullQueueMarksRowsThatAPauseHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		b := setupOn(t, store, statemachine.BusQueue)
		prompt := b.accept()
		if agg := b.ledger.Read(prompt); agg.Outbox.State != statemachine.OutboxSent || b.handoff.Waiting() != 0 {
			t.Errorf("row is %s, and %d wait for the relay", agg.Outbox.State, b.handoff.Waiting())
		}
		b.held.Store(true)
		b.known.Store(true)
		paused := b.accept()
		if n, err := b.RunOnce(t.Context()); n != 0 || err != nil || b.saw(outbox.Held) != 1 {
			t.Errorf("took up %d rows (%v), held back %d", n, err, b.saw(outbox.Held))
		}
		b.held.Store(false)
		before := b.ledger.Read(paused)
		counter.Reset()
		if n, err := b.RunOnce(t.Context()); n != 1 || err != nil {
			t.Fatalf("took up %d rows, %v", n, err)
		}
		agg := b.ledger.Read(paused)
		if agg.Outbox.State != statemachine.OutboxSent || agg.Job.Rev != before.Job.Rev+1 || agg.Steps[0].AttemptNo != 1 {
			t.Errorf("row is %s at rev %d of attempt %d", agg.Outbox.State, agg.Job.Rev, agg.Steps[0].AttemptNo)
		}
		if _, queued := agg.Queued(); !queued {
			t.Errorf("step is %s until %s", agg.Steps[0].State, agg.Steps[0].LeaseExpiresAt)
		}
		if commits := counter.Counts().Commits; commits != 1 {
			t.Errorf("the mark took %d commits", commits)
		}
		if n, err := b.RunOnce(t.Context()); n != 0 || err != nil {
			t.Errorf("took up %d rows again, %v", n, err)
		}
	})
}

// If two relays mark one row, the compare-and-swap lets one of them succeed.
func TestRelay_OfThePullQueueMarksOnceAtTwoProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Split()
		first, second := setupOn(t, store, statemachine.BusQueue), setupOn(t, store, statemachine.BusQueue)
		first.known.Store(true)
		var ids []string
		for range 20 {
			ids = append(ids, first.accept())
		}
		for _, stop := range []func(){first.start(t), second.start(t)} {
			defer stop()
		}
		time.Sleep(10 * time.Second)
		for _, id := range ids {
			if agg := first.ledger.Read(id); agg.Outbox.State != statemachine.OutboxSent || agg.Job.Rev != 2 || agg.Steps[0].AttemptNo != 1 {
				t.Errorf("row is %s at rev %d of attempt %d", agg.Outbox.State, agg.Job.Rev, agg.Steps[0].AttemptNo)
			}
		}
		if n := first.saw(outbox.Marked) + second.saw(outbox.Marked); n != len(ids) {
			t.Errorf("%d marks of %d rows", n, len(ids))
		}
	})
}

// A row that is PENDING for one bus gets a new pair before it is published on another:
// workers of the first bus may know the old pair.
func TestRelay_GivesARowOfAnotherBusANewPair(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]statemachine.Bus{
		"from Service Bus to the pull queue": statemachine.BusQueue,
		"from the pull queue to Service Bus": statemachine.BusServiceBus,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := statemachine.BusQueue
				if to == from {
					from = statemachine.BusServiceBus
				}
				store := ledgertest.Split()
				before := setupOn(t, store, from)
				before.known.Store(true)
				id := before.accept()
				pair := before.ledger.Read(id).Steps[0].LeaseID
				b := setupOn(t, store, to)
				for range 3 { // Once, and only after its new pair is committed.
					if _, err := b.RunOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				agg := b.ledger.Read(id)
				if agg.Outbox.Bus != to || agg.Outbox.State != statemachine.OutboxSent || agg.Steps[0].AttemptNo != 2 ||
					agg.Steps[0].LeaseID == pair || agg.Steps[0].Spent != (statemachine.Spent{}) {
					t.Errorf("row %+v of step %+v", agg.Outbox, agg.Steps[0])
				}
				if ids := b.bus.ids(); len(ids) != 1 || ids[0] != id+".0.1/2" {
					t.Errorf("published %v", ids)
				}
				if _, queued := agg.Queued(); queued != (to == statemachine.BusQueue) {
					t.Errorf("queued is %t", queued)
				}
			})
		})
	}
}
