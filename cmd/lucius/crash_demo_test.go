//go:build integration && !race

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

// TestCrash_TheDemoGoesOn kills lucius demo, with its server and its workers, at points of
// its work. Run again, it ends; and it needs no file of a clone.
func TestCrash_TheDemoGoesOn(t *testing.T) {
	t.Parallel()
	for name, points := range map[string][]string{
		"an accepted command that is not answered": {"after.whole.accept:3"},
		"a claim that is not answered":             {"before.answer.claim:1"},
		"steps in the hands of workers":            {"after.whole.ack:5"},
		"a result that is not stored":              {"before.whole.result:7"},
		"one crash after another":                  {"before.answer.complete:2", "after.whole.result:3", "before.answer.claim:1", "after.open:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, point := range points {
				killable, err := buildKillable()
				if err != nil {
					t.Fatal(err)
				}
				out, err := runDemo(t, killable, dir, killEnv+"="+point)
				var ended *exec.ExitError
				if !errors.As(err, &ended) || ended.ExitCode() != -1 {
					t.Fatalf("at %s the demo ended otherwise: %v\n%s", point, err, out)
				}
			}
			plain, err := buildPlain()
			if err != nil {
				t.Fatal(err)
			}
			out, err := runDemo(t, plain, dir)
			all := fmt.Sprintf("%d of %d documents ingested", documents(t), documents(t))
			if err != nil || !strings.Contains(out, all) {
				t.Errorf("%v:\n%s", err, out)
			}
			auditFolder(t, filepath.Join(dir, "lucius-demo", "store"), "--quiescent")
		})
	}
}

// runDemo runs lucius demo in the folder, and gives up before the default lease of 15 minutes ends.
func runDemo(t *testing.T, binary, dir string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), min(waittest.Bound(t), 14*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "demo")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("the demo hangs:\n%s", out)
	}
	return string(out), err
}
