package waittest_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

func TestScale_StaysWithinItsFactors(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]float64{0: 1, waittest.Quiet: 1, 3 * waittest.Quiet: 3, time.Minute: 4} {
		if got := waittest.SlownessOf(took); got != want {
			t.Errorf("work of %s is %g times as slow, want %g", took, got, want)
		}
	}
	if got := waittest.Scale(time.Second); got < time.Second || got > 4*time.Second || got != waittest.Scale(time.Second) {
		t.Errorf("a second is %s, then %s", got, waittest.Scale(time.Second))
	}
}

func TestWaits_EndWithTheirEvent(t *testing.T) {
	t.Parallel()
	calls := 0
	waittest.Until(t, "the third call", func() bool { calls++; return calls == 3 })
	ready := make(chan int, 1)
	ready <- calls
	if got := waittest.Receive(t, "a number", ready); got != 3 {
		t.Errorf("it received %d", got)
	}
	bound, ctx := waittest.Bound(t), waittest.Context(t)
	if end, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil || time.Until(end) > bound {
		t.Errorf("the context ends at %s", end)
	}
}

// TestWaits_InVain runs itself with a -timeout that leaves the waits a fifth of a second.
func TestWaits_InVain(t *testing.T) {
	t.Parallel()
	const which = "LUCIUS_TEST_WAIT"
	waits := map[string]func(){
		"until":   func() { waittest.Until(t, "a moon of cheese", func() bool { return false }) },
		"receive": func() { waittest.Receive(t, "a moon of cheese", make(chan int)) },
	}
	if wait := waits[os.Getenv(which)]; wait != nil {
		wait()
		return
	}
	said := regexp.MustCompile(`waittest_test\.go:\d+: waited \d+s in vain, on a machine .*: a moon of cheese\n`)
	for name := range waits {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWaits_InVain$", "-test.timeout=10.2s")
		cmd.Env = append(os.Environ(), which+"="+name)
		out, err := cmd.CombinedOutput()
		if err == nil || !said.Match(out) {
			t.Errorf("%s ends with %v:\n%s", name, err, out)
		}
	}
}
