package callbacks_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// throttling is setup with a use case that records what is closed.
func throttling(t *testing.T) (*worker, *ledgertest.Ledger, *[]statemachine.Closure) {
	t.Helper()
	w, l := setup(t)
	var closed []statemachine.Closure
	w.Service = callbacks.New(callbacks.Config{
		Ledger: l.Ledger, Closer: func(_ context.Context, c statemachine.Closure) { closed = append(closed, c) },
	})
	w.Caller = "ocr-worker"
	return w, l, &closed
}

// throttled returns a RESULT of a worker whose service wants no more work for a minute.
func (w *worker) throttled() statemachine.Event {
	return statemachine.Result{
		StepID: w.StepID, Pair: w.pair, Status: statemachine.ResultFailedRetry, ErrorCode: "HTTP_429",
		RetryAfter: time.Minute, Throttled: statemachine.ThrottleService,
	}
}

// A throttled RESULT that was applied closes its service once: its repeat does not, and neither
// does any other report.
func TestThrottle_ClosesTheServiceOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, closed := throttling(t)
		w.EveryTenant = func(string) bool { return true }
		for _, event := range []statemachine.Event{w.ack(), w.heartbeat(), w.throttled(), w.throttled()} {
			if _, err := w.apply(t.Context(), event); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Now().UTC()
		want := []statemachine.Closure{{
			Service: l.Read(w.JobID).Steps[0].Service, Until: now.Add(time.Minute), ResultAt: now,
			Actor: "ocr-worker", Reason: "HTTP_429",
		}}
		if diff := cmp.Diff(want, *closed); diff != "" {
			t.Errorf("closed (-want +got):\n%s", diff)
		}
	})
}

// A caller without rights for all tenants closes the service only for the tenant of its job.
func TestThrottle_ClosesNoMoreThanTheCallerMay(t *testing.T) {
	t.Parallel()
	w, _, closed := throttling(t)
	if _, err := w.apply(t.Context(), w.throttled()); err != nil {
		t.Fatal(err)
	}
	if len(*closed) != 1 || (*closed)[0].TenantID != "tenant_a" {
		t.Errorf("closed %+v", *closed)
	}
}

// A RESULT that the job refuses, or that comes after the end of its attempt, closes nothing: a
// worker that was fenced, or guesses, cannot stop a service.
func TestThrottle_OfARefusedOrLateResultClosesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before  func(*worker, *ledgertest.Ledger)
		refused bool
	}{
		"a guessed lease": {func(w *worker, _ *ledgertest.Ledger) { w.pair.LeaseID = "guessed" }, true},
		"an attempt that was replaced": {func(w *worker, l *ledgertest.Ledger) {
			time.Sleep(time.Hour)
			l.Send(w.JobID, statemachine.DeadlinePassed{})
			time.Sleep(time.Hour)
			l.Send(w.JobID, statemachine.DeadlinePassed{})
		}, true},
		"an attempt that ended otherwise": {func(w *worker, l *ledgertest.Ledger) {
			l.Send(w.JobID, w.result(statemachine.ResultFailedFinal))
		}, true},
		"an attempt whose deadline has passed": {func(w *worker, l *ledgertest.Ledger) {
			time.Sleep(time.Hour)
			l.Send(w.JobID, statemachine.DeadlinePassed{})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, l, closed := throttling(t)
				if _, err := w.apply(t.Context(), w.ack()); err != nil {
					t.Fatal(err)
				}
				test.before(w, l)
				if _, err := w.apply(t.Context(), w.throttled()); (err != nil) != test.refused {
					t.Errorf("the RESULT: %v, want refused %t", err, test.refused)
				}
				if len(*closed) > 0 {
					t.Errorf("closed %+v", *closed)
				}
			})
		})
	}
}
