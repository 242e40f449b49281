//go:build integration && !race

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// backups is how often a server under load is backed up and killed.
const backups = 2

// TestCrash_ABackupUnderLoadIsWhole backs up a server while clients submit commands and
// workers execute them, and kills it right after. The restored store passes the audit and has
// every command that was acknowledged before the backup began, and a server on it completes
// their jobs.
func TestCrash_ABackupUnderLoadIsWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start()
	l := startLoad(s, 5*time.Millisecond)
	for n := range backups {
		time.Sleep(400 * time.Millisecond)
		before := l.jobs()
		file := filepath.Join(t.TempDir(), fmt.Sprint(n, ".backup"))
		runLucius(t, "backup", "--url", "http://"+s.address.Load().(string), "--to", file)
		server.kill()

		other := newSite(t)
		said := runLucius(t, "restore", file, "--data-dir", other.data)
		if !strings.Contains(said, " 0 violations, ") {
			t.Errorf("lucius restore says\n%s", said)
		}
		restored := other.start()
		stored := listJobs(t, other.client, api.ListJobsParams{})
		for name, id := range before {
			if !slices.Contains(stored, id) {
				t.Errorf("job %s of the accepted command %s is not in the backup", id, name)
			}
		}
		rest := startLoad(other, 5*time.Millisecond)
		for _, id := range stored { // Also those that were accepted during the backup.
			rest.await("in the backup", id)
		}
		jobs := rest.drain() // Its commands have the same keys as those in the backup.
		for name, id := range before {
			if found, sent := jobs[name]; sent && found != id {
				t.Errorf("command %s was accepted as %s and, after the restore, as %s", name, id, found)
			}
		}
		restored.terminate()
		auditRows(t, other)
		t.Logf("backup %d has %d commands", n, len(before))
		server = s.start()
	}
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
}

// runLucius runs a command of the binary, which must succeed, and returns what it printed.
func runLucius(t *testing.T, args ...string) string {
	t.Helper()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(binary, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("lucius %s: %v\n%s", strings.Join(args, " "), err, said)
	}
	return string(said)
}
