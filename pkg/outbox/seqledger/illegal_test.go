package seqledger_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

func TestTheFactsAreLogged(t *testing.T) {
	t.Parallel()
	illegal := &seqledger.IllegalTransitionError{
		Seq: 41, From: seqledger.TerminalSuccess, To: seqledger.TerminalFail, Owner: "relay-3",
		At:     time.Date(2026, time.March, 1, 13, 0, 0, 5_000_000, time.FixedZone("CET", 3600)),
		Reason: "not in the transition table",
	}
	const message = `illegal transition of seq 41 from TERMINAL_SUCCESS(3) to TERMINAL_FAIL(5) ` +
		`by owner "relay-3" at 2026-03-01T12:00:00.005Z: not in the transition table`
	if got := illegal.Error(); got != message {
		t.Errorf("message\n got %s\nwant %s", got, message)
	}

	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Error("halt", "illegal", illegal)
	for _, fact := range []string{
		"illegal.seq=41", "illegal.from=TERMINAL_SUCCESS", "illegal.to=TERMINAL_FAIL",
		"illegal.owner=relay-3", "illegal.at=2026-03-01T13:00:00.005+01:00",
	} {
		if !strings.Contains(out.String(), fact) {
			t.Errorf("log line %q lacks %s", out.String(), fact)
		}
	}
}

// TestNothingMovesAfterAnIllegalTransition: production's hook ends the process;
// until then, or if a test's hook does not, the window stays halted.
func TestNothingMovesAfterAnIllegalTransition(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	dispatched, _ := f.in(t, seqledger.Dispatched)
	inFlight, lease := f.in(t, seqledger.InFlight)
	failed, _ := f.in(t, seqledger.TerminalFail)
	if _, err := f.Commit(dispatched, t0); err == nil {
		t.Fatal("the commit of a DISPATCHED seq was allowed")
	}
	before := f.Counters()

	calls := map[string]func() error{
		"Take":   func() error { _, err := f.Take(at(60)); return err },
		"Begin":  func() error { _, err := f.Begin(dispatched, "anna", at(60)); return err },
		"Beat":   func() error { _, err := f.Heartbeat(lease, at(60)); return err },
		"Finish": func() error { _, err := f.Finish(lease, seqledger.TerminalSuccess, at(60)); return err },
		"Cancel": func() error { return f.Cancel(inFlight, at(60)) },
		"Retry":  func() error { _, err := f.Retry(failed, timeout, at(60)); return err },
		"Commit": func() error { _, err := f.Commit(failed, at(60)); return err },
		"Expire": func() error { _, err := f.Reclaim(at(60)); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, seqledger.ErrHalted) {
			t.Errorf("%s: error %v, want ErrHalted", name, err)
		} else if !strings.Contains(err.Error(), "illegal transition of seq 1 from DISPATCHED(1) to COMMITTED(7)") {
			t.Errorf("%s: error %q does not say what halted the window", name, err)
		}
	}
	if after := f.Counters(); after != before {
		t.Errorf("counters went from %+v to %+v", before, after)
	}
	if len(f.fatal) != 1 {
		t.Errorf("the hook was called %d times, want once", len(f.fatal))
	}
}

// TestTheHookMayReadTheWindow: no lock is held while the hook runs.
func TestTheHookMayReadTheWindow(t *testing.T) {
	t.Parallel()
	var window *seqledger.Window
	var seen seqledger.Counters
	window = seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        64,
		Fatal:         func(*seqledger.IllegalTransitionError) { seen = window.Counters() },
	})
	f := &fixture{Window: window}
	f.in(t, seqledger.Dispatched)
	if err := window.Cancel(2, t0); err == nil {
		t.Error("the cancellation of an UNSEEN seq was allowed")
	}
	if want := (seqledger.Counters{Dispatched: 1}); seen != want {
		t.Errorf("the hook saw %+v, want %+v", seen, want)
	}
}
