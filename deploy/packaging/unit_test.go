//go:build systemd

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit_IsWhatSystemdReads has systemd check the unit.
func TestUnit_IsWhatSystemdReads(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatalf("install the package systemd: %v", err)
	}
	text, err := os.ReadFile("../systemd/lucius.service")
	if err != nil {
		t.Fatal(err)
	}
	// It also looks for the binary.
	binary := filepath.Join(t.TempDir(), "lucius")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "lucius.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/lucius", binary)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "lucius.service") {
		t.Errorf("systemd says: %v\n%s", err, out)
	}
}
