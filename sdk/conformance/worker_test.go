//go:build sdk

package conformance_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/lucius-project/lucius/internal/waittest"
)

// line is what a conformance worker writes.
type line struct {
	Event   string `json:"event"`
	JobID   string `json:"jobId"`
	Attempt int    `json:"attempt"`
	Cause   string `json:"cause"`
}

// worker is the process of a conformance worker.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}
	said  bytes.Buffer // What it wrote to standard error, once it has ended.
	token string       // the file that it reads its token from

	mu    sync.Mutex
	lines []line
}

// startWorker starts the SDK's conformance worker on the proxy, with further settings.
func startWorker(t *testing.T, sdk *sdk, url string, grace int, settings ...string) *worker {
	t.Helper()
	w := &worker{t: t, ended: make(chan struct{}), token: filepath.Join(t.TempDir(), "token")}
	w.writeToken(t, "the first token")
	w.cmd = exec.Command(sdk.command[0], sdk.command[1:]...)
	w.cmd.Dir = sdk.dir
	w.cmd.Env = append(os.Environ(), "LUCIUS_URL="+url, "LUCIUS_TOKEN=", "LUCIUS_TOKEN_FILE="+w.token, "CONFORMANCE_PARALLEL=24",
		fmt.Sprint("CONFORMANCE_GRACE_SECONDS=", grace), "CONFORMANCE_ANY_STEP=", "CONFORMANCE_LEASE_SECONDS=90",
		"CONFORMANCE_SERVICE=conformance")
	w.cmd.Env = append(w.cmd.Env, settings...)
	w.cmd.Stderr = &w.said
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Errorf("the worker wrote %q", lines.Text())
			}
			w.mu.Lock()
			w.lines = append(w.lines, l)
			w.mu.Unlock()
		}
		_ = w.cmd.Wait() // Its state is looked at.
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // It may have ended.
		<-w.ended
		if t.Failed() {
			t.Logf("the worker wrote:\n%s", w.said.String())
		}
	})
	return w
}

// writeToken replaces the worker's token.
func (w *worker) writeToken(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(w.token, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// all returns what the worker has written.
func (w *worker) all() []line {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// wrote returns whether the worker has written the line.
func (w *worker) wrote(want line) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.lines, want)
}

// await waits until the worker has written the line.
func (w *worker) await(t *testing.T, want line) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("the worker writes %+v", want), func() bool { return w.wrote(want) })
}

// started waits until the handler of the job's first attempt has begun.
func (w *worker) started(t *testing.T, job string) {
	t.Helper()
	w.await(t, line{Event: "started", JobID: job, Attempt: 1})
}

// terminate sends SIGTERM.
func (w *worker) terminate() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
}

// exits expects the worker to end by itself, with status 0.
func (w *worker) exits(t *testing.T) {
	t.Helper()
	waittest.Receive(t, "the worker ends after SIGTERM", w.ended)
	if !w.cmd.ProcessState.Success() {
		t.Errorf("the worker: %s", w.cmd.ProcessState)
	}
}
