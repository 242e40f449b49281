package callbacks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// worker reports on the attempt of its directive.
type worker struct {
	*callbacks.Service
	callbacks.Callback
	pair   statemachine.Pair
	report statemachine.Report
}

// apply applies the event as the worker's report.
func (w *worker) apply(ctx context.Context, event statemachine.Event) (callbacks.Answer, error) {
	w.Event = event
	return w.Apply(ctx, w.Callback)
}

func (w *worker) ack() statemachine.Event {
	return statemachine.Ack{StepID: w.StepID, Pair: w.pair, Report: w.report}
}

func (w *worker) heartbeat() statemachine.Event {
	return statemachine.Heartbeat{StepID: w.StepID, Pair: w.pair, Report: w.report}
}

func (w *worker) result(status statemachine.ResultStatus) statemachine.Event {
	return statemachine.Result{StepID: w.StepID, Pair: w.pair, Report: w.report, Status: status}
}

// setup returns the worker of a new job's step, and the ledger.
func setup(t *testing.T) (*worker, *ledgertest.Ledger) {
	t.Helper()
	return setupOn(t, ledgertest.Atomic())
}

// setupOn is setup on an empty store.
func setupOn(t *testing.T, store tablestore.Store) (*worker, *ledgertest.Ledger) {
	t.Helper()
	l := ledgertest.Publishing(t, ledger.Config{Store: store})
	l.Submit(ledgertest.Command("tenant_a", "h"))
	m := l.Handoff.Last()
	return &worker{
		Service:  callbacks.New(callbacks.Config{Ledger: l.Ledger}),
		Callback: callbacks.Callback{JobID: m.JobID, StepID: m.StepID, TenantID: "tenant_a", RequestID: "r1"},
		pair:     ledgertest.Pair(m),
	}, l
}

func TestService_AWorkerReports(t *testing.T) {
	t.Parallel()
	w, l := setup(t)
	answer, err := w.apply(t.Context(), w.ack())
	if err != nil || answer.Outcome != statemachine.Applied || answer.StepState != statemachine.StepInProgress ||
		answer.JobState != statemachine.JobInProgress || answer.LeaseExpiresAt.IsZero() || answer.CancelRequested {
		t.Fatalf("ACK: %+v, %v", answer, err)
	}
	history, _, err := l.History(t.Context(), w.JobID, 0, 100)
	if last := history[len(history)-1]; err != nil || last.Actor != "platform" || last.RequestID != "r1" {
		t.Errorf("the history says %+v, %v", last, err)
	}
	if again, err := w.apply(t.Context(), w.ack()); err != nil || again.Outcome != statemachine.Duplicate {
		t.Errorf("the repeated ACK: %+v, %v", again, err)
	}
	for _, control := range []struct {
		event         statemachine.Event
		pause, cancel bool
	}{{statemachine.Pause{}, true, false}, {statemachine.Resume{}, false, false}, {statemachine.Cancel{}, false, true}} {
		l.Send(w.JobID, control.event)
		beat, err := w.apply(t.Context(), w.heartbeat())
		if err != nil || beat.PauseRequested != control.pause || beat.CancelRequested != control.cancel || beat.LeaseExpiresAt.Before(answer.LeaseExpiresAt) {
			t.Errorf("heartbeat after %T: %+v, %v", control.event, beat, err)
		}
	}
	done, err := w.apply(t.Context(), w.result(statemachine.ResultSucceeded))
	if err != nil || done.StepState != statemachine.StepSucceeded || done.JobState != statemachine.JobCancelled {
		t.Errorf("RESULT: %+v, %v", done, err)
	}
}

// The sender's time and correlation id are stored in the step by each applied callback, and
// in the history by each that makes a revision.
func TestService_StoresWhatTheSenderReports(t *testing.T) {
	t.Parallel()
	w, l := setup(t)
	for i, test := range []struct {
		event func() statemachine.Event
		kept  bool // the callback is applied
		entry bool // the callback is in the history
	}{
		{w.ack, true, true},
		{w.ack, false, false},
		{w.heartbeat, true, false},
		{func() statemachine.Event { return w.result(statemachine.ResultFailedRetry) }, true, true},
		{w.heartbeat, false, false},
	} {
		agg := l.Read(w.JobID)
		want, rev := agg.Steps[0].LastReport, agg.Job.Rev
		w.report = statemachine.Report{Timestamp: fmt.Sprintf("0001-01-01T00:00:0%d.000Z", i), CorrelationID: fmt.Sprint("c", i)}
		if _, err := w.apply(t.Context(), test.event()); (err == nil) != (test.kept || i == 1) {
			t.Fatalf("callback %d: %v", i, err)
		}
		if test.kept {
			want = w.report
		}
		if got := l.Read(w.JobID).Steps[0].LastReport; got != want {
			t.Errorf("after callback %d the step has %+v, want %+v", i, got, want)
		}
		history, _, err := l.History(t.Context(), w.JobID, rev, 100)
		if err != nil || len(history) > 0 != test.entry {
			t.Errorf("callback %d has %d entries in the history: %v", i, len(history), err)
		}
		for _, entry := range history {
			if entry.Report != w.report {
				t.Errorf("callback %d is in the history with %+v", i, entry.Report)
			}
		}
	}
}

// A worker that lost its attempt and repeats its ACK learns that it is a repeat, and does
// not get the lease of the current attempt.
func TestService_ARepeatOfAnEarlierAttemptIsGivenNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l := setup(t)
		if _, err := w.apply(t.Context(), w.ack()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.apply(t.Context(), w.result(statemachine.ResultFailedRetry)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		l.Send(w.JobID, statemachine.DeadlinePassed{})
		agg := l.Read(w.JobID)
		next := &worker{Service: w.Service, Callback: w.Callback, pair: statemachine.Pair{AttemptNo: 2, LeaseID: agg.Steps[0].LeaseID}}
		if answer, err := next.apply(t.Context(), next.ack()); err != nil || answer.LeaseExpiresAt.IsZero() {
			t.Fatalf("the next attempt's ACK: %+v, %v", answer, err)
		}
		if again, err := w.apply(t.Context(), w.ack()); err != nil || !again.LeaseExpiresAt.IsZero() {
			t.Errorf("the repeated ACK: %+v, %v", again, err)
		}
	})
}

// A worker that mixes up its leases learns that, but not which lease is right.
func TestService_AWrongLeaseIsNamed(t *testing.T) {
	t.Parallel()
	w, _ := setup(t)
	right := w.pair.LeaseID
	w.pair.LeaseID = "guessed"
	_, err := w.apply(t.Context(), w.ack())
	if told := apierror.From(err).Summary(); told != `lease_id is not the lease of attempt 1 of step "one"` || strings.Contains(told, right) {
		t.Errorf("told %q", told)
	}
}

func TestService_RefusalsHaveTheirCodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		call func(*worker) error
		code apierror.Code
	}{
		{"a guessed lease", func(w *worker) error {
			w.pair.LeaseID = "guessed"
			_, err := w.apply(t.Context(), w.ack())
			return err
		}, apierror.StaleAttempt},
		{"another attempt", func(w *worker) error {
			w.pair.AttemptNo = 2
			_, err := w.apply(t.Context(), w.heartbeat())
			return err
		}, apierror.StaleAttempt},
		{"an unknown step", func(w *worker) error {
			w.StepID = "two"
			_, err := w.apply(t.Context(), w.ack())
			return err
		}, apierror.StepNotFound},
		{"an unknown job", func(w *worker) error {
			w.JobID = "gone"
			_, err := w.apply(t.Context(), w.ack())
			return err
		}, apierror.JobNotFound},
		{"another tenant's job", func(w *worker) error {
			w.TenantID = "tenant_b"
			_, err := w.apply(t.Context(), w.ack())
			return err
		}, apierror.JobNotFound},
		{"a contradiction", func(w *worker) error {
			if _, err := w.apply(t.Context(), w.result(statemachine.ResultFailedRetry)); err != nil {
				return err
			}
			_, err := w.apply(t.Context(), w.result(statemachine.ResultSucceeded))
			return err
		}, apierror.ContradictoryResult},
		{"a heartbeat after the end", func(w *worker) error {
			if _, err := w.apply(t.Context(), w.result(statemachine.ResultSucceeded)); err != nil {
				return err
			}
			_, err := w.apply(t.Context(), w.heartbeat())
			return err
		}, apierror.IllegalTransition},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, _ := setup(t)
			err := test.call(w)
			if known, ok := errors.AsType[*apierror.Error](err); !ok || known.Code != test.code {
				t.Errorf("answered %v, want %s", err, test.code)
			}
		})
	}
}
