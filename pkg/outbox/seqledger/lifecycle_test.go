package seqledger_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// fatal is not a state: it means that the call halts the window.
const fatal seqledger.State = 99

// methods is the effect of each method that takes a seq.
var methods = []struct {
	name string
	call func(*fixture, seqledger.Seq) error
	// tries is the state that a refused call attempts.
	tries seqledger.State
	// leaves is the state after the call, indexed by the code of the state
	// before.
	leaves [8]seqledger.State
}{
	{
		name: "Begin",
		call: func(f *fixture, seq seqledger.Seq) error {
			_, err := f.Begin(seq, "anna", t0)
			return err
		},
		tries:  seqledger.InFlight,
		leaves: [8]seqledger.State{fatal, seqledger.InFlight, fatal, fatal, fatal, fatal, fatal, fatal},
	},
	{
		name:  "Cancel",
		call:  func(f *fixture, seq seqledger.Seq) error { return f.Cancel(seq, t0) },
		tries: seqledger.TerminalCancel,
		leaves: [8]seqledger.State{
			fatal, seqledger.TerminalCancel, seqledger.TerminalCancel, fatal, fatal, fatal, fatal, fatal,
		},
	},
	{
		name:   "Retry of a retryable class",
		call:   retryAs(timeout),
		tries:  seqledger.Dispatched,
		leaves: [8]seqledger.State{fatal, fatal, fatal, fatal, fatal, seqledger.Dispatched, fatal, fatal},
	},
	{
		name:   "Retry of a class that is not retryable",
		call:   retryAs(poison),
		tries:  seqledger.Dispatched,
		leaves: [8]seqledger.State{fatal, fatal, fatal, fatal, fatal, seqledger.TerminalFail, fatal, fatal},
	},
	{
		name: "Commit",
		call: func(f *fixture, seq seqledger.Seq) error {
			_, err := f.Commit(seq, t0)
			return err
		},
		tries: seqledger.Committed,
		leaves: [8]seqledger.State{
			fatal, fatal, fatal,
			seqledger.Committed, seqledger.Committed, seqledger.Committed, seqledger.Committed, seqledger.Committed,
		},
	},
}

func retryAs(class seqledger.Class) func(*fixture, seqledger.Seq) error {
	return func(f *fixture, seq seqledger.Seq) error {
		_, err := f.Retry(seq, class, t0)
		return err
	}
}

func TestEveryMethodInEveryState(t *testing.T) {
	t.Parallel()
	for _, method := range methods {
		for _, from := range allStates {
			t.Run(fmt.Sprintf("%s in %s", method.name, from), func(t *testing.T) {
				t.Parallel()
				f := newWindow(t)
				seq, lease := f.in(t, from)
				owner := ""
				if method.name == "Begin" || (lease != nil && from != seqledger.Committed) {
					owner = "anna"
				}
				err := method.call(f, seq)
				if want := method.leaves[from]; want != fatal {
					f.wantState(t, seq, want)
					f.wantLegal(t)
					return
				}
				f.wantIllegal(t, err, seqledger.IllegalTransitionError{
					Seq: seq, From: from, To: method.tries, Owner: owner, At: t0,
				})
			})
		}
	}
}

// TestFinishUnderAHeldLease checks the effect of each outcome on a seq in
// flight.
func TestFinishUnderAHeldLease(t *testing.T) {
	t.Parallel()
	for _, outcome := range append([]seqledger.State{99}, allStates...) {
		t.Run(outcome.String(), func(t *testing.T) {
			t.Parallel()
			f := newWindow(t)
			seq, lease := f.in(t, seqledger.InFlight)
			held, err := f.Finish(lease, outcome, at(3))
			if !outcome.Terminal() {
				f.wantIllegal(t, err, seqledger.IllegalTransitionError{Seq: seq, From: seqledger.InFlight, To: outcome, Owner: "anna", At: at(3)})
				return
			}
			if !held || err != nil {
				t.Errorf("Finish = %t, %v, want held", held, err)
			}
			f.wantState(t, seq, outcome)
		})
	}
}

// TestSecondTerminalEventIsFatal has the owner finish twice, with other calls
// on the seq in between.
func TestSecondTerminalEventIsFatal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		first   seqledger.State
		between func(t *testing.T, f *fixture, seq seqledger.Seq)
		from    seqledger.State
	}{
		{"at once", seqledger.TerminalSuccess, func(*testing.T, *fixture, seqledger.Seq) {}, seqledger.TerminalSuccess},
		{"after the commit", seqledger.TerminalSkip, func(t *testing.T, f *fixture, seq seqledger.Seq) {
			f.commit(t, seq)
		}, seqledger.Committed},
		{"after a retry", seqledger.TerminalFail, func(t *testing.T, f *fixture, seq seqledger.Seq) {
			mustRetry(t, f, seq)
		}, seqledger.Dispatched},
		{"during the next attempt", seqledger.TerminalFail, func(t *testing.T, f *fixture, seq seqledger.Seq) {
			mustRetry(t, f, seq)
			f.begin(t, seq, "bert", t0)
		}, seqledger.InFlight},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newWindow(t)
			seq, lease := f.in(t, test.first)
			test.between(t, f, seq)

			held, err := f.Finish(lease, seqledger.TerminalSuccess, at(2))

			if held {
				t.Error("held = true")
			}
			f.wantIllegal(t, err, seqledger.IllegalTransitionError{
				Seq: seq, From: test.from, To: seqledger.TerminalSuccess, Owner: "anna", At: at(2),
				Reason: "second terminal event of attempt 1",
			})
		})
	}
}

func mustRetry(t *testing.T, f *fixture, seq seqledger.Seq) {
	t.Helper()
	if retried, err := f.Retry(seq, timeout, t0); !retried || err != nil {
		t.Fatalf("Retry = %t, %v", retried, err)
	}
}

// TestALeaseOfAnotherWindowIsFatal: only a bug passes a lease of another
// window.
func TestALeaseOfAnotherWindowIsFatal(t *testing.T) {
	t.Parallel()
	one, other := newWindow(t), newWindow(t)
	seq, _ := one.in(t, seqledger.InFlight)
	_, foreign := other.in(t, seqledger.InFlight)
	_, err := one.Finish(foreign, seqledger.TerminalSuccess, t0)
	one.wantIllegal(t, err, seqledger.IllegalTransitionError{
		Seq: seq, From: seqledger.InFlight, To: seqledger.TerminalSuccess, Owner: "anna", At: t0,
	})
}

func TestBeginNeedsAnOwner(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq := f.take(t)
	lease, err := f.Begin(seq, "", t0)
	if lease != nil {
		t.Error("got a lease")
	}
	f.wantIllegal(t, err, seqledger.IllegalTransitionError{
		Seq: seq, From: seqledger.Dispatched, To: seqledger.InFlight, At: t0, Reason: "entering IN_FLIGHT needs an owner",
	})
}

func TestRetryKeepsTheSeqAndCountsAttempts(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq := f.take(t)
	for attempt := 1; attempt <= 3; attempt++ {
		lease := f.begin(t, seq, fmt.Sprintf("owner-%d", attempt), t0)
		if lease.Seq() != seq || lease.Attempt() != attempt || lease.Owner() != fmt.Sprintf("owner-%d", attempt) {
			t.Errorf("lease is of seq %d, attempt %d, owner %s", lease.Seq(), lease.Attempt(), lease.Owner())
		}
		if _, err := f.Finish(lease, seqledger.TerminalFail, t0); err != nil {
			t.Fatal(err)
		}
		retried, err := f.Retry(seq, timeout, t0)
		if want := attempt < 3; err != nil || retried != want {
			t.Errorf("retry after attempt %d = %t, %v, want %t", attempt, retried, err, want)
		}
	}
	f.wantState(t, seq, seqledger.TerminalFail)
	if got := f.Inspect(seq).Attempts; got != 3 {
		t.Errorf("%d attempts, want 3", got)
	}
	f.commit(t, seq)
	f.wantLegal(t)
}

func TestCommitIsIdempotentLongAfterTheSeqLeftTheWindow(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	first, _ := f.in(t, seqledger.TerminalSuccess)
	late, _ := f.in(t, seqledger.TerminalFail) // Settles last, without delaying others.
	f.commit(t, first)
	for range 1000 {
		f.in(t, seqledger.Committed)
	}
	for range 2 {
		if changed, err := f.Commit(first, t0); changed || err != nil {
			t.Errorf("replayed commit = %t, %v, want a no-op", changed, err)
		}
	}
	f.commit(t, late)
	if got, want := f.Counters(), (seqledger.Counters{Committed: 1002}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
	f.wantLegal(t)
}

func TestTheWindowIsBounded(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	var last seqledger.Seq
	for range 64 {
		last = f.take(t)
	}
	if seq, err := f.Take(t0); seq != 0 || !errors.Is(err, seqledger.ErrWindowFull) {
		t.Errorf("Take beyond the window = %d, %v, want ErrWindowFull", seq, err)
	}
	if got := f.Counters().Open(); got != 64 {
		t.Errorf("%d seqs open, want 64", got)
	}
	if err := f.Cancel(1, t0); err != nil {
		t.Fatal(err)
	}
	f.commit(t, 1)
	if seq := f.take(t); seq != last+1 {
		t.Errorf("took seq %d, want %d: a refused Take uses no seq up", seq, last+1)
	}
	f.wantLegal(t)
}

func TestCounters(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	for _, s := range allStates[1:] {
		f.in(t, s)
	}
	f.in(t, seqledger.InFlight)
	want := seqledger.Counters{Dispatched: 1, InFlight: 2, Terminal: 4, Committed: 1}
	if got := f.Counters(); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
	if got := want.Open(); got != 7 {
		t.Errorf("Open = %d, want 7", got)
	}
}
