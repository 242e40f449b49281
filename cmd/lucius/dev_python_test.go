//go:build integration && !race

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The worker of the starter project works off the example, with the SDK of the clone, and passes its test.
func TestInit_ThePythonWorker(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := exec.CommandContext(t.Context(), binary, "init")
	write.Dir = dir
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("init: %v, %s", err, out)
	}
	dev := startDev(t, binary, dir, "--workers=false", "--verbose")
	url := strings.Fields(dev.until("lucius serves "))[2]
	sdk, err := filepath.Abs("../../sdk/python")
	if err != nil {
		t.Fatal(err)
	}
	python := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "python3", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "LUCIUS_URL="+url, "PYTHONPATH="+sdk, "PYTHONDONTWRITEBYTECODE=1")
		return cmd
	}
	if out, err := python("-m", "unittest").CombinedOutput(); err != nil || !strings.Contains(string(out), "Ran 4 tests") {
		t.Errorf("its test: %v, %s", err, out)
	}
	worker := python("worker.py")
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	dev.until("job.succeeded")
	_ = worker.Process.Kill()
	_ = worker.Wait()
	dev.end()
}
