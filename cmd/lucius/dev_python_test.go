//go:build integration && !race

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The worker of the starter project works off the example.
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
	worker := exec.CommandContext(t.Context(), "python3", "worker.py")
	worker.Dir, worker.Env = dir, append(os.Environ(), "LUCIUS_URL="+url)
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	dev.until("job.succeeded")
	_ = worker.Process.Kill()
	_ = worker.Wait()
	dev.end()
}
