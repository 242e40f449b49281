package pebblestore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// childEnv is set in a process that runs a test whose store ends it.
const childEnv = "PEBBLESTORE_TEST_CHILD"

// childStatus is the exit status of a store's end that is as expected.
const childStatus = 70

// inChild runs the test in another process and fails unless a store ends that process, as
// [ends] has it, and the output has these texts. It reports whether this is that process,
// which runs the rest of the test.
func inChild(t *testing.T, wants ...string) bool {
	t.Helper()
	return inChildWithStatus(t, childStatus, wants...)
}

func inChildWithStatus(t *testing.T, status int, wants ...string) bool {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		return true
	}
	var parts []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=2m", "-test.run="+strings.Join(parts, "/"))
	child.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir())
	output, err := child.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != status {
		t.Errorf("the process ended with %v, want status %d:\n%s", err, status, output)
	}
	for _, want := range wants {
		if !strings.Contains(string(output), want) {
			t.Errorf("the process does not say %q:\n%s", want, output)
		}
	}
	return false
}

// ends returns the Fatal of a store that may end the process of [inChild]: it prints the
// cause, and ends the process with the expected status if the check does not fail the test.
func ends(t *testing.T, check func(cause error)) func(cause error) {
	return func(cause error) {
		say("the store ends the process:", cause)
		if check(cause); t.Failed() {
			exit(1)
		}
		exit(childStatus)
	}
}

// say writes to the output of a process of a test.
func say(args ...any) { _, _ = fmt.Fprintln(os.Stdout, args...) }

// exit ends a process of a test.
func exit(status int) { os.Exit(status) } //nolint:revive // The end of the process is what the test is about.
