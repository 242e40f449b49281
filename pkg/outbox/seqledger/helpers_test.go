package seqledger_test

import (
	"errors"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

const leaseDuration = 10 * time.Second

// t0 is when the tests begin; at returns the time that many seconds later.
var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// timeout is a retryable class like LeaseExpired, poison is not retryable.
const (
	timeout seqledger.Class = "timeout"
	poison  seqledger.Class = "poison"
)

var allStates = []seqledger.State{
	seqledger.Unseen, seqledger.Dispatched, seqledger.InFlight,
	seqledger.TerminalSuccess, seqledger.TerminalSkip, seqledger.TerminalFail, seqledger.TerminalCancel,
	seqledger.Committed,
}

// tb is the interface that the helpers use of a test, a benchmark or a
// property.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// fixture is a window whose hook records.
type fixture struct {
	*seqledger.Window
	fatal []*seqledger.IllegalTransitionError
}

func newWindow(t tb) *fixture {
	t.Helper()
	f := &fixture{}
	window := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        64,
		Retry: seqledger.Policy{
			MaxAttempts: 3,
			Retryable:   []seqledger.Class{timeout, seqledger.LeaseExpired},
		},
		Fatal: func(e *seqledger.IllegalTransitionError) { f.fatal = append(f.fatal, e) },
	})
	f.Window = window
	return f
}

// in moves a new seq to the state, by legal moves at t0 and under the owner
// "anna". It returns the lease of its only attempt, or nil if there was none.
func (f *fixture) in(t tb, state seqledger.State) (seqledger.Seq, *seqledger.Lease) {
	t.Helper()
	if state == seqledger.Unseen {
		return seqledger.Seq(f.Counters().Open() + f.Counters().Committed + 1), nil
	}
	seq := f.take(t)
	if state == seqledger.Dispatched {
		return seq, nil
	}
	lease := f.begin(t, seq, "anna", t0)
	outcome := state
	switch state {
	case seqledger.InFlight:
		return seq, lease
	case seqledger.Committed:
		outcome = seqledger.TerminalSuccess
	}
	if held, err := f.Finish(lease, outcome, t0); !held || err != nil {
		t.Fatalf("Finish(%s) = %t, %v", outcome, held, err)
	}
	if state == seqledger.Committed {
		f.commit(t, seq)
	}
	return seq, lease
}

func (f *fixture) take(t tb) seqledger.Seq {
	t.Helper()
	seq, err := f.Take(t0)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	return seq
}

func (f *fixture) begin(t tb, seq seqledger.Seq, owner string, now time.Time) *seqledger.Lease {
	t.Helper()
	lease, err := f.Begin(seq, owner, now)
	if err != nil {
		t.Fatalf("Begin(%d, %q): %v", seq, owner, err)
	}
	return lease
}

func (f *fixture) commit(t tb, seq seqledger.Seq) {
	t.Helper()
	if changed, err := f.Commit(seq, t0); !changed || err != nil {
		t.Fatalf("Commit(%d) = %t, %v", seq, changed, err)
	}
}

func (f *fixture) wantState(t tb, seq seqledger.Seq, want seqledger.State) {
	t.Helper()
	if got := f.Inspect(seq).State; got != want {
		t.Errorf("seq %d is %s, want %s", seq, got, want)
	}
}

// wantLegal fails the test if anything halted the window.
func (f *fixture) wantLegal(t tb) {
	t.Helper()
	if len(f.fatal) > 0 {
		t.Errorf("window halted: %v", f.fatal[0])
	}
}

// wantIllegal checks that err is the illegal transition, that the hook got the
// same one, and that the window has halted.
func (f *fixture) wantIllegal(t tb, err error, want seqledger.IllegalTransitionError) {
	t.Helper()
	var got *seqledger.IllegalTransitionError
	if !errors.As(err, &got) {
		t.Fatalf("error is %v, want an illegal transition", err)
	}
	if want.Reason == "" {
		want.Reason = got.Reason
	}
	if *got != want {
		t.Errorf("illegal transition\n got %+v\nwant %+v", *got, want)
	}
	if !slices.Equal(f.fatal, []*seqledger.IllegalTransitionError{got}) {
		t.Errorf("hook was called with %v, want only %v", f.fatal, got)
	}
	f.wantState(t, want.Seq, want.From)
	if _, err := f.Take(t0); !errors.Is(err, seqledger.ErrHalted) {
		t.Errorf("Take after the illegal transition: error %v, want ErrHalted", err)
	}
}
