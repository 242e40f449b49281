package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// briefBench are the arguments of a short benchmark.
var briefBench = []string{
	"bench", "--load", "one step", "--duration", "200ms", "--warm-up", "0", "--finished", "0", "--live", "0", "--waiting", "0",
}

// Its servers must not join the store of a real server.
func TestBench_ServersIgnoreTheEnvironment(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, briefBench...)
	cmd.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND=postgres", "LUCIUS_POSTGRES_URL=postgres://127.0.0.1:1/real", "LUCIUS_AUTH_FILE=/none")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "one step") {
		t.Errorf("%v, %s", err, out)
	}
}
