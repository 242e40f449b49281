//go:build integration && !race

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// TestPause_AServerThatStoodStillGoesOn stops the server's process under load
// for longer than a lease, as a suspended host does, so that the workers' calls hang.
// Nothing is lost or applied twice.
func TestPause_AServerThatStoodStillGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start()
	l := startLoad(s, 20*time.Millisecond)
	for range 2 {
		l.more()
		server.signal(syscall.SIGSTOP)
		time.Sleep(waittest.Scale(2500 * time.Millisecond)) // Longer than a lease, and much longer than the ACK timeout.
		server.signal(syscall.SIGCONT)
	}
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
}

// TestPause_AServerThatStoodStillFencesNoWorker stops the server's process while workers
// hold steps, for longer than their leases. The server hears the workers before it acts on
// the leases: none of these steps is done twice.
func TestPause_AServerThatStoodStillFencesNoWorker(t *testing.T) {
	t.Parallel()
	const jobs = 8
	lease := waittest.Scale(12 * time.Second) // Workers have a third of it to report after the stop.
	s := newSite(t)
	server := s.start("--lease-duration", lease.String())
	l := &load{t: t, site: s, accepted: map[string]string{}}
	for i := range jobs {
		l.mustSubmit("tenant_0", fmt.Sprint("key-", 10*i)) // No job has a date or waits for another: see submit.
	}
	ctx, rest := context.WithCancel(t.Context())
	defer rest()
	inHand, goneOn := make(chan struct{}, jobs), make(chan struct{})
	w := newWorker(t, siteURL, s.http, "worker", func(_ context.Context, task *lucius.Task) (any, error) {
		if task.StepID == "extract" && task.AttemptNo == 1 {
			inHand <- struct{}{}
			<-goneOn
		}
		return lucius.URI("s3://result"), nil
	})
	l.workers.Go(func() { _ = w.Run(ctx) }) // A failure shows in the jobs.
	for range jobs {
		waittest.Receive(t, "the worker holds the first step of each job", inHand)
	}
	server.signal(syscall.SIGSTOP)
	time.Sleep(lease + lease/6)
	close(goneOn)
	server.signal(syscall.SIGCONT)
	for name, id := range l.jobs() {
		l.await(name, id)
		job, err := s.client.GetJobWithResponse(t.Context(), id, nil)
		if err != nil || job.JSON200 == nil {
			t.Fatal(err)
		}
		if step := job.JSON200.Steps[0]; step.StepID != "extract" || step.AttemptNo != 1 {
			t.Errorf("step %s of job %s took %d attempts: %s", step.StepID, id, step.AttemptNo, step.LastErrorCode)
		}
	}
	rest()
	l.workers.Wait()
	server.terminate()
	auditClean(t, s.data, l.jobs())
}

// TestPause_AWorkerThatStoodStillIsFenced stops a worker's process for longer than its
// lease while it holds a step. Another worker does the step, and the first one's report
// after it continues changes nothing.
func TestPause_AWorkerThatStoodStillIsFenced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start()
	first := s.startWorker()
	l := &load{t: t, site: s, accepted: map[string]string{}}
	if !l.submit(t.Context(), "tenant_0", "key") {
		t.Fatal("the command was not accepted")
	}
	first.expectWord("working")
	first.signal(syscall.SIGSTOP)

	ctx, rest := context.WithCancel(t.Context())
	second := newWorker(t, siteURL, s.http, "second", func(context.Context, *lucius.Task) (any, error) {
		return lucius.URI("s3://from-the-second"), nil
	})
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	id := l.jobs()["tenant_0/key"]
	l.await("tenant_0/key", id)
	first.signal(syscall.SIGCONT)
	first.end()
	rest()
	if err := <-done; err != nil {
		t.Errorf("the second worker: %v", err)
	}

	if !strings.Contains(first.said.String(), "result refused") && !strings.Contains(first.said.String(), "lease lost") {
		t.Errorf("the worker that stood still was not refused: %s", first.said.String())
	}
	job, err := s.client.GetJobWithResponse(t.Context(), id, nil)
	if err != nil || job.JSON200 == nil {
		t.Fatal(err)
	}
	step := job.JSON200.Steps[0]
	if step.AttemptNo < 2 || string(step.ResultRef) != `{"uri":"s3://from-the-second"}` {
		t.Errorf("step ended in attempt %d with %s", step.AttemptNo, step.ResultRef)
	}
	server.terminate()
	auditClean(t, s.data, l.jobs())
}

// workerProcess is a worker in a separate process; see helpWork.
type workerProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	end   func()
	lines *bufio.Reader
	said  strings.Builder
}

// startWorker starts a worker process for the current server.
func (s *site) startWorker() *workerProcess {
	s.t.Helper()
	w := &workerProcess{t: s.t, cmd: exec.Command(os.Args[0])}
	w.cmd.Env = append(os.Environ(), helpEnv+"=worker", helpURL+"=http://"+s.address.Load().(string))
	w.cmd.Stderr = &w.said
	in, err := w.cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	w.lines = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // It may have ended.
		_ = w.cmd.Wait()
	})
	w.end = func() {
		_ = in.Close()
		if err := w.cmd.Wait(); err != nil {
			w.t.Errorf("the worker did not end well: %v: %s", err, w.said.String())
		}
	}
	return w
}

func (w *workerProcess) signal(signal syscall.Signal) { _ = w.cmd.Process.Signal(signal) }

// expectWord waits until the worker prints that word.
func (w *workerProcess) expectWord(word string) {
	w.t.Helper()
	if line, err := w.lines.ReadString('\n'); strings.TrimSpace(line) != word {
		w.t.Fatalf("the worker said %q, %v", line, err)
	}
}
