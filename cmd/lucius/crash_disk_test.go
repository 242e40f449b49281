//go:build integration && !race

package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/waittest"
)

// fullAfter is how large a file of the server may get, in blocks of 512 bytes:
// a few hundred changes.
const fullAfter = 6000

// TestDisk_FullLosesNothing lets the log of the store grow until the system takes no more of
// it, in the middle of a write, as on a disk without space. The server ends and says why. Once
// there is space again, the next one continues with all that was acknowledged.
func TestDisk_FullLosesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	limited := []string{"-c", fmt.Sprintf(`ulimit -f %d && exec "$0" "$@"`, fullAfter), binary}
	server, serves := s.launch(exec.Command("sh", append(limited, s.arguments(nil)...)...))
	if !serves {
		t.Fatalf("the server did not come up: %s", server.ending())
	}
	l := startLoad(s, 5*time.Millisecond)
	server.expectEnd(cli.ExitFailed, "local store has failed and must be opened again")
	before := len(l.jobs())
	server = s.start()
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
	t.Logf("%d commands accepted before the disk was full, %d in all", before, len(jobs))
}

// expectUnready waits until the server says that it is not ready.
func (s *site) expectUnready() {
	s.t.Helper()
	waittest.Until(s.t, "the server is not ready", func() bool {
		response, err := s.client.GetReadinessWithResponse(s.t.Context())
		if err != nil {
			s.t.Fatalf("readyz: %v", err)
		}
		return response.StatusCode() == http.StatusServiceUnavailable
	})
}

// expectReady waits until the server says that it is ready.
func (s *site) expectReady() {
	s.t.Helper()
	waittest.Until(s.t, "the server is ready", func() bool {
		ready, err := s.client.GetReadinessWithResponse(s.t.Context())
		return err == nil && ready.StatusCode() == http.StatusOK
	})
}

// TestDisk_SecondServerIsRefused starts another server on a data directory that
// one has open: it ends with a sentence, and the first goes on.
func TestDisk_SecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.start()
	l := startLoad(s, 5*time.Millisecond)
	second := newSite(t)
	second.data = s.data
	for range 3 {
		l.more()
		second.expectRefused("data directory is in use by another process")
	}
	jobs := l.drain()
	first.terminate()
	auditClean(t, s.data, jobs)
}

// expectRefused fails unless a server on the site ends at once, with status 1
// and one sentence that names the setting, the directory and the reason.
func (s *site) expectRefused(reason string) {
	s.t.Helper()
	binary, err := buildPlain()
	if err != nil {
		s.t.Fatal(err)
	}
	p, serves := s.launch(exec.Command(binary, s.arguments(nil)...))
	if serves {
		p.kill()
		s.t.Fatalf("the server came up, though %s", reason)
	}
	said := p.said.String()
	for _, want := range []string{"LUCIUS_DATA_DIR", s.data, reason} {
		if p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said, want) {
			s.t.Errorf("the server ended with %s, want status 1 and %q", p.ending(), want)
		}
	}
	if strings.Count(said, "lucius:") != 1 || strings.Contains(said, "goroutine ") {
		s.t.Errorf("the server said more than a sentence: %s", said)
	}
}
