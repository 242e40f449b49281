//go:build integration && !race

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

// TestCrash_OfGoRunEndsItsProgram kills what started a server from Go's build cache, as
// kill -9 of go run does. The server stops by itself, and its folder is free.
func TestCrash_OfGoRunEndsItsProgram(t *testing.T) {
	t.Parallel()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	cached := filepath.Join(t.TempDir(), "go-build", "lucius")
	if err := os.MkdirAll(filepath.Dir(cached), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(binary, cached); err != nil { // With a symbolic link, the process would see the path of its target.
		t.Fatal(err)
	}
	shell := exec.Command("sh", append([]string{"-c", `"$@"; true`, "sh", cached}, s.arguments(nil)...)...)
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "lucius serves") {
		t.Fatalf("%q, %v", line, err)
	}
	if err := shell.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(waittest.Bound(t), func() { _ = out.Close() }).Stop()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 { // This reads to the end of the output, which the server shared.
		t.Errorf("%q, %v", rest, err)
	}
	_ = shell.Wait() // It was killed.
	auditFolder(t, s.data)
}
