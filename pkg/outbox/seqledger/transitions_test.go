package seqledger_test

import (
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

type pair struct{ from, to seqledger.State }

// contract is the specification's list, written out by hand.
var contract = map[pair]int{
	{seqledger.Unseen, seqledger.Dispatched}:         1,
	{seqledger.Dispatched, seqledger.InFlight}:       2,
	{seqledger.InFlight, seqledger.TerminalSuccess}:  3,
	{seqledger.InFlight, seqledger.TerminalSkip}:     4,
	{seqledger.InFlight, seqledger.TerminalFail}:     5,
	{seqledger.Dispatched, seqledger.TerminalCancel}: 6,
	{seqledger.InFlight, seqledger.TerminalCancel}:   7,
	{seqledger.TerminalSuccess, seqledger.Committed}: 8,
	{seqledger.TerminalSkip, seqledger.Committed}:    9,
	{seqledger.TerminalFail, seqledger.Committed}:    10,
	{seqledger.TerminalCancel, seqledger.Committed}:  11,
	{seqledger.TerminalFail, seqledger.Dispatched}:   12,
}

func forEveryPair(t *testing.T, check func(t *testing.T, p pair)) {
	t.Helper()
	for _, from := range allStates {
		for _, to := range allStates {
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				check(t, pair{from, to})
			})
		}
	}
}

func TestTheTableIsTheContract(t *testing.T) {
	t.Parallel()
	forEveryPair(t, func(t *testing.T, p pair) {
		if _, want := contract[p]; seqledger.Legal(p.from, p.to) != want {
			t.Errorf("Legal = %t, want %t", !want, want)
		}
	})
}

func TestTransitionsNameTheirRules(t *testing.T) {
	t.Parallel()
	edges := seqledger.Transitions()
	if len(edges) != len(contract) {
		t.Errorf("%d transitions, want %d", len(edges), len(contract))
	}
	for _, edge := range edges {
		if want := contract[pair{edge.From, edge.To}]; edge.Rule != want {
			t.Errorf("%s to %s is under rule %d, want %d", edge.From, edge.To, edge.Rule, want)
		}
		if want := edge.From.Terminal() && edge.To == seqledger.Dispatched; edge.Guarded != want {
			t.Errorf("%s to %s: Guarded = %t, want %t", edge.From, edge.To, edge.Guarded, want)
		}
	}
}

func TestStatesOutOfRangeAreNeverLegal(t *testing.T) {
	t.Parallel()
	const beyond seqledger.State = 8
	for _, s := range append([]seqledger.State{beyond, 255}, allStates...) {
		if seqledger.Legal(beyond, s) || seqledger.Legal(s, beyond) {
			t.Errorf("a move between %s and %s is legal", s, beyond)
		}
	}
}

func TestStateCodesAndNames(t *testing.T) {
	t.Parallel()
	names := []string{
		"UNSEEN", "DISPATCHED", "IN_FLIGHT", "TERMINAL_SUCCESS",
		"TERMINAL_SKIP", "TERMINAL_FAIL", "TERMINAL_CANCEL", "COMMITTED", "State(8)",
	}
	for code, want := range names {
		if got := seqledger.State(code).String(); got != want {
			t.Errorf("code %d is %s, want %s", code, got, want)
		}
	}
	for _, s := range allStates {
		if want := s >= 3 && s <= 6; s.Terminal() != want {
			t.Errorf("%s.Terminal() = %t, want %t", s, !want, want)
		}
	}
}

// legalBy maps each pair of the contract to the method that makes the move, on
// a new window with one seq in the pair's prior state.
var legalBy = map[pair]func(*fixture, seqledger.Seq, *seqledger.Lease) error{
	{seqledger.Unseen, seqledger.Dispatched}: func(f *fixture, seq seqledger.Seq, _ *seqledger.Lease) error {
		got, err := f.Take(t0)
		if got != seq {
			return fmt.Errorf("took seq %d, want %d", got, seq)
		}
		return err
	},
	{seqledger.Dispatched, seqledger.InFlight}: func(f *fixture, seq seqledger.Seq, _ *seqledger.Lease) error {
		_, err := f.Begin(seq, "anna", t0)
		return err
	},
	{seqledger.InFlight, seqledger.TerminalSuccess}:  finishWith(seqledger.TerminalSuccess),
	{seqledger.InFlight, seqledger.TerminalSkip}:     finishWith(seqledger.TerminalSkip),
	{seqledger.InFlight, seqledger.TerminalFail}:     finishWith(seqledger.TerminalFail),
	{seqledger.InFlight, seqledger.TerminalCancel}:   finishWith(seqledger.TerminalCancel),
	{seqledger.Dispatched, seqledger.TerminalCancel}: cancel,
	{seqledger.TerminalSuccess, seqledger.Committed}: commit,
	{seqledger.TerminalSkip, seqledger.Committed}:    commit,
	{seqledger.TerminalFail, seqledger.Committed}:    commit,
	{seqledger.TerminalCancel, seqledger.Committed}:  commit,
	{seqledger.TerminalFail, seqledger.Dispatched}: func(f *fixture, seq seqledger.Seq, _ *seqledger.Lease) error {
		retried, err := f.Retry(seq, timeout, t0)
		if !retried {
			return fmt.Errorf("not retried: %w", err)
		}
		return err
	},
}

func finishWith(outcome seqledger.State) func(*fixture, seqledger.Seq, *seqledger.Lease) error {
	return func(f *fixture, _ seqledger.Seq, lease *seqledger.Lease) error {
		held, err := f.Finish(lease, outcome, t0)
		if !held {
			return fmt.Errorf("not held: %w", err)
		}
		return err
	}
}

func cancel(f *fixture, seq seqledger.Seq, _ *seqledger.Lease) error { return f.Cancel(seq, t0) }

func commit(f *fixture, seq seqledger.Seq, _ *seqledger.Lease) error {
	changed, err := f.Commit(seq, t0)
	if !changed {
		return fmt.Errorf("not changed: %w", err)
	}
	return err
}

func TestEveryLegalPairPasses(t *testing.T) {
	t.Parallel()
	for p := range contract {
		t.Run(fmt.Sprintf("%s to %s", p.from, p.to), func(t *testing.T) {
			t.Parallel()
			f := newWindow(t)
			seq, lease := f.in(t, p.from)
			if err := legalBy[p](f, seq, lease); err != nil {
				t.Fatal(err)
			}
			f.wantState(t, seq, p.to)
			f.wantLegal(t)
		})
	}
}

func TestEveryIllegalPairIsFatal(t *testing.T) {
	t.Parallel()
	forEveryPair(t, func(t *testing.T, p pair) {
		if _, legal := contract[p]; legal {
			return // TestEveryLegalPairPasses covers it.
		}
		f := newWindow(t)
		seq, _ := f.in(t, p.from)
		before := f.Counters()

		err := f.Move(seq, p.to, "bert", at(7))

		f.wantIllegal(t, err, seqledger.IllegalTransitionError{Seq: seq, From: p.from, To: p.to, Owner: "bert", At: at(7)})
		if after := f.Counters(); after != before {
			t.Errorf("counters went from %+v to %+v", before, after)
		}
	})
}
