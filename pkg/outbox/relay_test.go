package outbox_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// The row is marked once the bus has its message, and not before.
func TestRelay_PublishesAndMarksCommittedRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		ids, release := hung(t, b, "t")
		if agg := b.ledger.Read(ids[0]); agg.Steps[0].State != statemachine.StepDispatching || agg.Outbox.State != statemachine.OutboxPending {
			t.Errorf("during the publish step is %s, row %s", agg.Steps[0].State, agg.Outbox.State)
		}
		time.Sleep(2 * time.Second)
		release()
		time.Sleep(time.Second) // Concurrent projections may delay each other.
		if diff := cmp.Diff([]string{"marked 2s"}, b.sent); diff != "" {
			t.Errorf("(-want +answers):\n%s", diff)
		}
		agg := b.ledger.Read(ids[0])
		if agg.Steps[0].State != statemachine.StepAwaitingAck || agg.Outbox.State != statemachine.OutboxSent {
			t.Errorf("step is %s, row %s", agg.Steps[0].State, agg.Outbox.State)
		}
		if c := b.Window().Counters(); c.Committed != 1 || c.Dispatched+c.InFlight+c.Terminal != 0 {
			t.Errorf("window holds %+v", c)
		}
	})
}

func TestRelay_ACrashBetweenPublishAndMarkPublishesTheSameAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.accept()
		message := b.ledger.MessageOf(id)
		_ = b.bus.Publish(t.Context(), []ledger.Message{message}) // Then the process crashes.
		time.Sleep(16 * time.Second)
		b.ledger.Expire(ledger.Timer)
		if n, err := b.RunOnce(t.Context()); n != 1 || err != nil {
			t.Fatalf("took up %d rows, %v", n, err)
		}
		want := []string{id + ".0.1/1", id + ".0.1/1"}
		if diff := cmp.Diff(want, b.bus.ids()); diff != "" {
			t.Error(diff)
		}
		if !cmp.Equal(b.bus.messages[0].Directive, b.bus.messages[1].Directive) {
			t.Error("the second publish has other bytes")
		}
		if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxSent {
			t.Errorf("row is %s", state)
		}
	})
}

func TestRelay_ARejectedMessageIsRetriedWithANewPair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.bus.forever = &outbox.RejectedError{Reason: "malformed"}
		defer b.start(t)()
		id := b.accept()
		synctest.Wait()
		if agg := b.ledger.Read(id); agg.Steps[0].Spent.Dispatch != 1 || !agg.Outbox.Rejected {
			t.Errorf("spent %+v, row %+v", agg.Steps[0].Spent, agg.Outbox)
		}
		time.Sleep(2 * time.Minute)
		want := []string{id + ".0.1/1", id + ".0.1/2"}
		if diff := cmp.Diff(want, b.bus.ids()); diff != "" {
			t.Error(diff)
		}
		agg := b.ledger.Read(id)
		if agg.Job.State != statemachine.JobFailedFinal || agg.Job.ErrorCode != statemachine.ErrorDispatchExhausted {
			t.Errorf("job is %s, %s", agg.Job.State, agg.Job.ErrorCode)
		}
	})
}

func TestRelay_AnUnknownOutcomeIsTriedAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.bus.answers = []error{outbox.ErrUncertain, errors.New("link lost"), nil}
		defer b.start(t)()
		id := b.accept()
		time.Sleep(5 * time.Second)
		same := id + ".0.1/1"
		if diff := cmp.Diff([]string{same, same, same}, b.bus.ids()); diff != "" {
			t.Error(diff)
		}
		if agg := b.ledger.Read(id); agg.Outbox.State != statemachine.OutboxSent || agg.Steps[0].Spent != (statemachine.Spent{}) {
			t.Errorf("row is %s, spent %+v", agg.Outbox.State, agg.Steps[0].Spent)
		}
	})
}

// A pause that begins while a publish is tried again ends the tries, and the row waits
// for the end of the pause.
func TestRelay_APauseCancelsAnotherTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		hang := make(chan struct{})
		b.bus.hang, b.bus.answers = hang, []error{outbox.ErrUncertain}
		defer b.start(t)()
		id := b.accept()
		synctest.Wait()
		b.held.Store(true)
		close(hang)
		time.Sleep(9 * time.Second)
		if n := len(b.bus.ids()); n != 1 || b.saw(outbox.Uncertain) != 1 {
			t.Errorf("%d tries, %d left to the schedule", n, b.saw(outbox.Uncertain))
		}
		if c := b.Window().Counters(); c.Committed != 1 || c.Dispatched != 0 || c.InFlight != 0 {
			t.Errorf("the window counts %+v", c)
		}
		if row := b.ledger.Read(id).Outbox; row.State != statemachine.OutboxPending {
			t.Errorf("the row is %s", row.State)
		}
		b.held.Store(false)
		time.Sleep(7 * time.Second)
		b.ledger.Expire(ledger.Timer)
		time.Sleep(2 * time.Second)
		if row := b.ledger.Read(id).Outbox; row.State != statemachine.OutboxSent {
			t.Errorf("after the pause the row is %s", row.State)
		}
	})
}

func TestRelay_AnOutageSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.bus.mu.Lock()
		b.bus.forever = &outbox.OutageError{Entity: "topic-1", Err: errors.New("disabled")}
		b.bus.mu.Unlock()
		defer b.start(t)()
		first, second := b.accept(), b.accept()
		for range 30 {
			time.Sleep(10 * time.Second)
			b.ledger.Expire(ledger.Timer)
		}
		for _, id := range []string{first, second} {
			agg := b.ledger.Read(id)
			if agg.Steps[0].AttemptNo != 1 || agg.Steps[0].Spent != (statemachine.Spent{}) || agg.Outbox.State != statemachine.OutboxPending {
				t.Errorf("attempt %d, spent %+v, row %s", agg.Steps[0].AttemptNo, agg.Steps[0].Spent, agg.Outbox.State)
			}
		}
		if b.saw(outbox.Gated) == 0 {
			t.Error("the circuit never held a row back")
		}
		b.bus.mu.Lock()
		b.bus.forever = nil
		b.bus.mu.Unlock()
		for range 30 {
			time.Sleep(10 * time.Second)
			b.ledger.Expire(ledger.Timer)
		}
		for _, id := range []string{first, second} {
			if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxSent {
				t.Errorf("after the outage the row is %s", state)
			}
		}
	})
}

func TestRelay_APublisherThatHangsIsAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		hang := make(chan struct{})
		b.bus.hang = hang
		stop := b.start(t)
		id := b.accept()
		time.Sleep(14 * time.Second)
		b.bus.mu.Lock()
		b.bus.hang = nil
		b.bus.mu.Unlock()
		other := b.accept()
		synctest.Wait()
		if state := b.ledger.Read(other).Outbox.State; state != statemachine.OutboxSent {
			t.Errorf("another row is %s", state)
		}
		close(hang)
		synctest.Wait()
		if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxPending {
			t.Errorf("the late outcome reached the ledger: row is %s", state)
		}
		time.Sleep(5 * time.Second)
		b.ledger.Expire(ledger.Timer)
		time.Sleep(2 * time.Second)
		if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxSent {
			t.Errorf("the safety net left the row %s", state)
		}
		stop()
		if log := b.log.String(); !strings.Contains(log, "owner=replica-7/handoff-0") {
			t.Errorf("the log does not name the owner of the lease:\n%s", log)
		}
	})
}

func TestRelay_AMessageThatDoesNotFitTheHandoffIsFoundLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var ids []string
		for range 12 {
			ids = append(ids, b.accept())
		}
		if b.handoff.Waiting() != 8 || b.handoff.Dropped() != 4 {
			t.Errorf("%d inside, %d dropped", b.handoff.Waiting(), b.handoff.Dropped())
		}
		stop := b.start(t)
		time.Sleep(16 * time.Second)
		b.ledger.Expire(ledger.Timer)
		time.Sleep(2 * time.Second)
		stop()
		for _, id := range ids {
			if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxSent {
				t.Errorf("row is %s", state)
			}
		}
		if n := len(b.bus.ids()); n != 12 {
			t.Errorf("published %d times", n)
		}
	})
}

func TestRelay_PublishesItsHandoffWhenItStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		ids := []string{b.accept(), b.accept(), b.accept()}
		stop := b.start(t)
		stop()
		for _, id := range ids {
			if state := b.ledger.Read(id).Outbox.State; state != statemachine.OutboxSent {
				t.Errorf("row is %s", state)
			}
		}
	})
}

func TestNewRelay_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	if _, err := outbox.NewRelay(outbox.Config{Deadline: -1}); err == nil || !strings.Contains(err.Error(), "Deadline") {
		t.Errorf("a relay with a negative deadline: %v", err)
	}
}

func TestOperator_Retry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		waiting, sent := b.accept(), b.accept()
		b.ledger.Send(sent, statemachine.Published{OutboxID: sent + ".0.1", AttemptNo: 1})
		operator := outbox.NewOperator(b.ledger.Ledger, nil)
		report, err := operator.Retry(t.Context(), outbox.RetryRequest{
			OutboxIDs: []string{waiting + ".0.1", sent + ".0.1", waiting + ".0.7", "nonsense", "gone.0.1", waiting + ".9.1"},
		})
		if err != nil || report.Matched != 6 || report.Retried != 1 || len(report.Skipped) != 5 {
			t.Errorf("%+v, %v", report, err)
		}
		if spent := b.ledger.Read(waiting).Steps[0].Spent; spent != (statemachine.Spent{}) {
			t.Errorf("spent %+v", spent)
		}
		if _, err := operator.Retry(t.Context(), outbox.RetryRequest{JobID: "gone"}); err == nil {
			t.Error("a job that is not there was retried")
		}
	})
}

// Each field of the filter narrows the selection, and no other row is made due.
func TestOperator_RetrySelectsByTheFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobs := map[string]string{}
		jobs["waiting"] = b.acceptIn("t", 1)
		row := b.ledger.Read(jobs["waiting"]).Outbox
		for _, event := range []statemachine.Event{
			statemachine.Published{OutboxID: row.ID, AttemptNo: 1},
			statemachine.Ack{StepID: "one", Pair: statemachine.Pair{AttemptNo: 1, LeaseID: row.LeaseID}},
			statemachine.Stall{StepID: "one", AttemptNo: 1}, // FAILED_RETRY, and not due until a retry.
		} {
			b.ledger.Send(jobs["waiting"], event)
		}
		jobs["old"] = b.acceptIn("t", 1)
		time.Sleep(2 * time.Hour)
		jobs["of u"] = b.acceptIn("u", 1)
		jobs["of lane 2"] = b.acceptIn("t", 2)
		sent := b.acceptIn("t", 1)
		b.ledger.Send(sent, statemachine.Published{OutboxID: sent + ".0.1", AttemptNo: 1})
		two := 2
		for _, test := range []struct {
			name   string
			filter outbox.RetryRequest
			want   []string
		}{
			{"old ones", outbox.RetryRequest{Filter: search.Filter{UnchangedSince: time.Now().Add(-time.Hour)}}, []string{"old", "waiting"}},
			{"a tenant's", outbox.RetryRequest{Filter: search.Filter{TenantID: "u"}}, []string{"of u"}},
			{"a lane's", outbox.RetryRequest{Filter: search.Filter{Lane: &two}}, []string{"of lane 2"}},
			{"a job's", outbox.RetryRequest{JobID: jobs["old"]}, []string{"old"}},
			{"a job of another tenant", outbox.RetryRequest{JobID: jobs["old"], Filter: search.Filter{TenantID: "u"}}, nil},
			{"a sent one", outbox.RetryRequest{JobID: sent}, nil},
			{"rows by their ids", outbox.RetryRequest{OutboxIDs: []string{jobs["of u"] + ".0.1", sent + ".0.1"}}, []string{"of u"}},
			{"a row of another tenant", outbox.RetryRequest{OutboxIDs: []string{jobs["of u"] + ".0.1"}, Filter: search.Filter{TenantID: "t"}}, nil},
			{"all", outbox.RetryRequest{}, []string{"of lane 2", "of u", "old", "waiting"}},
		} {
			time.Sleep(time.Minute)
			report, err := outbox.NewOperator(b.ledger.Ledger, nil).Retry(t.Context(), test.filter)
			var got []string
			for _, name := range slices.Sorted(maps.Keys(jobs)) {
				if b.ledger.Read(jobs[name]).Outbox.DueAt.Equal(time.Now()) || b.ledger.Read(jobs[name]).Outbox.CreatedAt.Equal(time.Now()) {
					got = append(got, name)
				}
			}
			matched := max(len(test.want), len(test.filter.OutboxIDs)) // Each named id counts.
			if err != nil || !slices.Equal(got, test.want) || report.Retried != len(test.want) || report.Matched != matched {
				t.Errorf("%s: %q are due, want %q; %+v, %v", test.name, got, test.want, report, err)
			}
		}
		report, err := outbox.NewOperator(b.ledger.Ledger, nil).Retry(t.Context(), outbox.RetryRequest{Limit: 2})
		if err != nil || report.Matched != 2 {
			t.Errorf("at most two: %+v, %v", report, err)
		}
	})
}

// The publish deadline bounds the publish alone. Otherwise a row that a slow store takes long
// to mark would never be marked, but published again and again.
func TestRelay_ASlowStoreMarksARowAfterThePublishDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int64 // Each call; it ends early with its context.
		store := storetest.Hooked(ledgertest.Split(), func(ctx context.Context, _ *storetest.Request, do func(context.Context) error) error {
			select {
			case <-time.After(time.Duration(takes.Load())):
				return do(ctx)
			case <-ctx.Done():
				return errors.Join(tablestore.ErrUnavailable, ctx.Err())
			}
		})
		b := setupOn(t, store, statemachine.BusServiceBus)
		id := b.acceptOf("t")
		takes.Store(int64(8 * time.Second)) // Twice that is more than the deadline of 10 s.
		stop := b.start(t)
		time.Sleep(time.Minute)
		takes.Store(0)
		stop()
		b.wantRow(t, id, statemachine.OutboxSent)
		if len(b.bus.ids()) != 1 || b.saw(outbox.Marked) != 1 {
			t.Errorf("published %q, %d marked", b.bus.ids(), b.saw(outbox.Marked))
		}
	})
}
