package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/internal/cli"
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

// When its terminal is closed, or it is interrupted, it stops its server and deletes its files.
func TestBench_LeavesNothingBehind(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	heedHangups(t)
	for _, ended := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		t.Run(ended.String(), func(t *testing.T) {
			t.Parallel()
			temporary := t.TempDir()
			cmd := exec.CommandContext(t.Context(), binary, "bench", "--load", bench.Retention, "--retention-duration", "1h",
				"--duration", "200ms", "--warm-up", "0", "--finished", "0", "--live", "0", "--waiting", "0")
			cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
			progress, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(progress)
			for line := ""; !strings.HasPrefix(line, bench.Retention); {
				if line, err = lines.ReadString('\n'); err != nil {
					t.Fatalf("%q, %v, %v", line, err, cmd.Wait())
				}
			}
			if err := cmd.Process.Signal(ended); err != nil {
				t.Error(err)
			}
			rest, err := io.ReadAll(lines) // to the end of the output, which the server shares
			if !strings.HasSuffix(string(rest), "lucius: interrupted, and nothing was measured\n") {
				t.Errorf("it ends with %q, %v", rest, err)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != cli.ExitInterrupted {
				t.Error(err)
			}
			if files, err := os.ReadDir(temporary); err != nil || len(files) != 0 {
				t.Errorf("it left %v, %v", files, err)
			}
		})
	}
}
