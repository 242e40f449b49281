package outbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A paused row stays in the schedule, spends no attempt, and is published when the pause
// ends.
func TestRelay_LeavesPausedRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.held.Store(true)
		defer b.start(t)()
		id := b.accept()
		for range 10 {
			time.Sleep(time.Minute)
			b.ledger.Expire(ledger.Timer)
		}
		agg := b.ledger.Read(id)
		if len(b.bus.ids()) != 0 || agg.Outbox.State != statemachine.OutboxPending || agg.Steps[0].AttemptNo != 1 {
			t.Fatalf("published %v, the row is %+v", b.bus.ids(), agg.Outbox)
		}
		if b.saw(outbox.Held) == 0 {
			t.Error("Observe was not called with Held")
		}
		b.held.Store(false)
		time.Sleep(3 * time.Second)
		if agg := b.ledger.Read(id); len(b.bus.ids()) != 1 || agg.Outbox.State != statemachine.OutboxSent {
			t.Errorf("published %v, the row is %s", b.bus.ids(), agg.Outbox.State)
		}
	})
}

// A row that a pause holds back is withdrawn when its job expires: the sweeper does not know the job,
// whose entry is one for the relay.
func TestRelay_WithdrawsAPausedRowWhenItsJobExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.held.Store(true)
		b.known.Store(true)
		defer b.start(t)()
		cmd := b.command("t", 1)
		cmd.Job.NotAfter = time.Now().Add(time.Minute)
		id := b.ledger.Submit(cmd)
		time.Sleep(59 * time.Second)
		b.ledger.Expire(ledger.Timer)
		if agg := b.ledger.Read(id); agg.Job.State.Terminal() {
			t.Errorf("the job is %s before its not_after", agg.Job.State)
		}
		time.Sleep(3 * time.Second)
		b.ledger.Expire(ledger.Timer)
		agg := b.ledger.Read(id)
		if agg.Job.ErrorCode != statemachine.ErrorExpired || len(b.bus.ids()) != 0 {
			t.Errorf("the job is %s (%s), published are %v", agg.Job.State, agg.Job.ErrorCode, b.bus.ids())
		}
	})
}

// A relay that finds an expired row due withdraws it, and publishes nothing.
func TestRelay_PublishesNothingOfAnExpiredJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.held.Store(true)
		b.known.Store(true)
		cmd := b.command("t", 1)
		cmd.Job.NotAfter = time.Now().Add(time.Minute)
		id := b.ledger.Submit(cmd)
		b.held.Store(false)
		time.Sleep(2 * time.Minute)
		if _, err := b.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if agg := b.ledger.Read(id); agg.Job.ErrorCode != statemachine.ErrorExpired || len(b.bus.ids()) != 0 {
			t.Errorf("the job is %s (%s), published are %v", agg.Job.State, agg.Job.ErrorCode, b.bus.ids())
		}
	})
}

// A row that was accepted while its dispatch was paused does not wait for the safety net
// when the pause ends: the next passes find it, as far as a ramp allows.
func TestRelay_FindsRowsAcceptedDuringAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.held.Store(true)
		b.known.Store(true)
		defer b.start(t)()
		for range 3 {
			b.accept()
		}
		time.Sleep(2500 * time.Millisecond)
		if b.handoff.Waiting() != 0 || len(b.bus.ids()) != 0 {
			t.Errorf("%d waiting in the handoff, published %v", b.handoff.Waiting(), b.bus.ids())
		}
		b.held.Store(false)
		time.Sleep(time.Second)
		if n := len(b.bus.ids()); n != 3 {
			t.Errorf("published %d within a pass after the pause", n)
		}
	})
}

// A pass reads at most its limit of rows that are held back, and the next pass continues
// after them, so that all rows are read eventually.
func TestRelay_ABacklogThatIsHeldBackHidesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		for range 40 { // Ten times the pass limit.
			b.accept()
		}
		time.Sleep(16 * time.Second)
		b.ledger.Expire(ledger.Timer)
		b.held.Store(true)
		for range 20 {
			if n, err := b.RunOnce(t.Context()); n != 0 || err != nil {
				t.Fatalf("took up %d, %v", n, err)
			}
		}
		if read := b.saw(outbox.Held); read > 20*2*4 {
			t.Errorf("read %d rows in 20 passes over 2 shards", read)
		}
		b.held.Store(false)
		for range 40 {
			if _, err := b.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(b.bus.ids()); n != 40 {
			t.Errorf("published %d", n)
		}
	})
}
