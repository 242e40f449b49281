package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// hung accepts a row for each tenant and runs the relay for the rest of the test; its bus
// hangs while it publishes these rows.
func hung(t *testing.T, b *bundle, tenants ...string) (ids []string, release func()) {
	t.Helper()
	hang := make(chan struct{})
	b.bus.hang = hang
	for _, tenant := range tenants {
		ids = append(ids, b.acceptOf(tenant))
	}
	stop := b.start(t)
	t.Cleanup(stop)
	synctest.Wait()
	return ids, func() {
		b.bus.mu.Lock()
		b.bus.hang = nil
		b.bus.mu.Unlock()
		close(hang)
		synctest.Wait()
	}
}

func (b *bundle) wantRow(t *testing.T, id string, want statemachine.OutboxState) {
	t.Helper()
	agg := b.ledger.Read(id)
	got := statemachine.OutboxState("none")
	if agg.Outbox != nil {
		got = agg.Outbox.State
	}
	if got != want {
		t.Errorf("row of %s is %s, want %s", agg.Job.TenantID, got, want)
	}
}

// A lease lasts for half of the publish deadline; heartbeats extend it for the rest.
func TestRelay_ASlowPublishKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		ids, release := hung(t, b, "t")
		time.Sleep(9 * time.Second)
		if c := b.Window().Counters(); c.InFlight != 1 {
			t.Errorf("before the deadline the window counts %+v", c)
		}
		release()
		b.wantRow(t, ids[0], statemachine.OutboxSent)
		if n := b.saw(outbox.Marked); n != 1 || b.saw(outbox.Uncertain) != 0 {
			t.Errorf("%d marked, %d uncertain", n, b.saw(outbox.Uncertain))
		}
	})
}

// A pause that begins during a publish cancels that publish alone, after a grace period.
func TestRelay_APauseCancelsAPublishInProgress(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pause     time.Duration
		cancelled int
		want      statemachine.OutboxState
	}{
		"longer than the grace": {7 * time.Second, 1, statemachine.OutboxPending},
		"within the grace":      {3 * time.Second, 0, statemachine.OutboxSent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				ids, release := hung(t, b, "t", "other")
				b.held.Store(true)
				time.Sleep(test.pause)
				if n := b.saw(outbox.Held); n != test.cancelled {
					t.Errorf("%d cancelled in the pause, want %d", n, test.cancelled)
				}
				if c := b.Window().Counters(); c.Committed != uint64(test.cancelled) || c.InFlight != 2-c.Committed {
					t.Errorf("the window counts %+v", c)
				}
				b.held.Store(false)
				release()
				b.wantRow(t, ids[0], test.want)
				b.wantRow(t, ids[1], statemachine.OutboxSent)
				time.Sleep(16 * time.Second)
				b.ledger.Expire(ledger.Timer)
				time.Sleep(2 * time.Second)
				b.wantRow(t, ids[0], statemachine.OutboxSent) // The schedule had it.
				if n := len(b.bus.ids()); n != 2+test.cancelled {
					t.Errorf("published %v", b.bus.ids())
				}
			})
		})
	}
}

// A publish that no row waits for no longer occupies its worker.
func TestRelay_APauseEndsAPublishThatNothingWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.bus.obeys = true
		hung(t, b, "t")
		b.held.Store(true)
		b.bus.mu.Lock()
		b.bus.hang = nil
		b.bus.mu.Unlock()
		time.Sleep(6 * time.Second) // Less than the deadline.
		id := b.acceptOf("other")
		synctest.Wait()
		b.wantRow(t, id, statemachine.OutboxSent)
	})
}

// A row is not published again if it was withdrawn, or a worker reported on it, while the
// outcome of its publish was unknown.
func TestRelay_DoesNotRetryASettledRow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event func(row *statemachine.Outbox) statemachine.Event
		want  int // tries
	}{
		"withdrawn by a cancel": {func(*statemachine.Outbox) statemachine.Event { return statemachine.Cancel{} }, 1},
		"withdrawn by a pause":  {func(*statemachine.Outbox) statemachine.Event { return statemachine.Pause{} }, 1},
		"answered by a worker": {func(row *statemachine.Outbox) statemachine.Event {
			return statemachine.Ack{StepID: "one", Pair: statemachine.Pair{AttemptNo: 1, LeaseID: row.LeaseID}}
		}, 1},
		"neither": {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				b.bus.answers = []error{outbox.ErrUncertain}
				ids, release := hung(t, b, "t")
				if test.event != nil {
					b.ledger.Send(ids[0], test.event(b.ledger.Read(ids[0]).Outbox))
				}
				release()
				time.Sleep(9 * time.Second)
				if n, skipped := len(b.bus.ids()), b.saw(outbox.Skipped); n != test.want || skipped != 2-test.want {
					t.Errorf("%d tries, %d skipped", n, skipped)
				}
				if c := b.Window().Counters(); c.Committed != 1 || c.Dispatched+c.InFlight+c.Terminal != 0 {
					t.Errorf("the window counts %+v", c)
				}
			})
		})
	}
}
