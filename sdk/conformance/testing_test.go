//go:build sdk

package conformance_test

import (
	"os"
	"os/exec"
	"testing"
)

// TestTesting runs the tests of lucius.testing in Python and lucius/testing in TypeScript, which
// start the server by themselves.
func TestTesting(t *testing.T) {
	t.Parallel()
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"python":     {"python3", "-B", "-W", "error", "conformance_testing.py"},
		"typescript": {"node", "--test", "dist/conformance/testing.js"},
	}
	for _, sdk := range sdks {
		command, ok := tests[sdk.name]
		if !ok {
			continue // Go has luciustest, which runs the server in the test's process.
		}
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			sdk.present(t)
			cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
			cmd.Dir = sdk.dir
			cmd.Env = append(os.Environ(), "LUCIUS_BINARY="+binary)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
