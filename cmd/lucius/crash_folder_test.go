//go:build integration && !race

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/cli"
)

// expectLost fails unless the server ends by itself, and its log says once that it lost its
// folder.
func (p *process) expectLost() {
	p.t.Helper()
	p.expectEnd(cli.ExitLost, "data directory was removed or replaced while it was open: ")
	if !strings.Contains(p.said.String(), p.site.data) {
		p.t.Errorf("the log does not name the folder: %s", p.said.String())
	}
}

// expectEnd fails unless the server ends by itself with the status, and its log says once why.
func (p *process) expectEnd(status int, why string) {
	p.t.Helper()
	p.wait()
	if said := p.said.String(); p.cmd.ProcessState.ExitCode() != status || strings.Count(said, why) != 1 || strings.Contains(said, "goroutine ") {
		p.t.Errorf("the server ended with %s, want status %d and once %q", p.ending(), status, why)
	}
}

// TestFolder_RemovedUnderAServer removes the folder of a server under load. What
// was acknowledged before is lost with the disk's files; nothing is acknowledged
// afterwards: the server ends.
func TestFolder_RemovedUnderAServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start()
	l, _ := startClients(s, 5*time.Millisecond)
	l.more()
	if os.RemoveAll(s.data) != nil { // The server created a file in the meantime.
		if err := os.RemoveAll(s.data); err != nil {
			t.Fatal(err)
		}
	}
	server.expectLost()
	if _, err := os.Stat(s.data); !os.IsNotExist(err) {
		t.Errorf("the folder is there again: %v", err)
	}
}

// TestFolder_MovedUnderAServer moves the folder of a server under load away and
// starts another server at its path. The first one ends and leaves the other's files alone;
// with its folder back it has all that it acknowledged.
func TestFolder_MovedUnderAServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.start()
	l := startLoad(s, 5*time.Millisecond)
	l.more()
	move(t, s.data, s.data+".first")
	other := newSite(t)
	other.data = s.data
	second := other.start()
	otherLoad := startLoad(other, 5*time.Millisecond)
	first.expectLost()
	jobs := otherLoad.drain()
	second.terminate()
	auditClean(t, other.data, jobs)

	move(t, s.data, s.data+".second")
	move(t, s.data+".first", s.data)
	first = s.start()
	jobs = l.drain()
	first.terminate()
	auditClean(t, s.data, jobs)
}

// TestFolder_DamageIsRefused removes a file that identifies the store, or one of its tables:
// the server refuses to start and changes nothing. Once the file is restored, all data is
// there.
func TestFolder_DamageIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start("--log-level", "info")
	jobs := startLoad(s, 5*time.Millisecond).drain()
	server.terminate()
	if said := server.said.String(); !strings.Contains(said, `"msg":"new store made","dir":"`+s.data) {
		t.Errorf("the log does not say that a new store was made: %s", said)
	}
	server = s.start("--log-level", "info") // It flushes the log to tables.
	server.terminate()
	if said := server.said.String(); !strings.Contains(said, `"msg":"store opened","dir":"`+s.data) || !strings.Contains(said, `"opened":2`) {
		t.Errorf("the log does not say that the store was opened: %s", said)
	}
	whole := s.data
	for pattern, reason := range map[string]string{
		"marker.manifest.*":       "marker.manifest.* is missing",
		"marker.format-version.*": "marker.format-version.* is missing",
		"*.sst":                   ".sst is missing, which was there at the last stop",
	} {
		s.data = filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(s.data, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		damaged, err := filepath.Glob(filepath.Join(s.data, pattern))
		if err != nil || len(damaged) == 0 {
			t.Fatalf("no file %s: %v", pattern, err)
		}
		if err := os.Remove(damaged[0]); err != nil {
			t.Fatal(err)
		}
		before := sizes(t, s.data)
		s.expectRefused(reason)
		s.expectRefused("restore the directory from a backup")
		if diff := cmp.Diff(before, sizes(t, s.data)); diff != "" {
			t.Errorf("without %s the refused start changed the folder (-before +after):\n%s", pattern, diff)
		}
		content, err := os.ReadFile(filepath.Join(whole, filepath.Base(damaged[0])))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(damaged[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		auditClean(t, s.data, jobs)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// sizes returns the sizes of the files in a folder by their names.
func sizes(t *testing.T, dir string) map[string]int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, entry := range entries {
		found[entry.Name()] = sizeOf(t, filepath.Join(dir, entry.Name()))
	}
	return found
}
