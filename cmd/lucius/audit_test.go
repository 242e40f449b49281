package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// auditCommand runs lucius audit.
func auditCommand(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	return auditIn(t, nil, args...)
}

// auditIn runs lucius audit with those environment variables.
func auditIn(t *testing.T, variables map[string]string, args ...string) (stdout string, code int) {
	t.Helper()
	out, notes := &output{}, &output{}
	p := &program{Env: cli.Env{Stdout: out, Stderr: notes, Environment: entries(variables)}}
	err := p.run(context.WithoutCancel(t.Context()), append([]string{"audit"}, args...))
	if err == nil {
		return out.String(), 0
	}
	return out.String() + err.Error(), exitCode(err)
}

// auditFolder fails unless an audit finds nothing wrong in the folder. No server may have it
// open.
func auditFolder(t *testing.T, dir string, flags ...string) {
	t.Helper()
	if out, code := auditCommand(t, append(flags, "--data-dir", dir)...); code != 0 {
		t.Errorf("the audit of what is left:\n%s", out)
	}
}

// finish carries a job through its three steps.
func finish(t *testing.T, s *testServer, jobID string) {
	t.Helper()
	for range 3 {
		item := s.claim(t, uuid.NewString(), true)
		response, err := s.client.CompleteWorkWithResponse(t.Context(), item.WorkID, api.WorkCompletion{
			Owner: "w", ExpectedRev: item.Rev, RequestID: "done-" + item.WorkID,
		})
		if err != nil || response.JSON200 == nil {
			t.Fatalf("complete: %v, %s", err, bodyOf(response))
		}
	}
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded {
		t.Fatalf("the job is %s", job.State)
	}
}

func TestAudit_OfACleanFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serveOn(t, dir, longTimeouts...)
	finish(t, s, s.submit(t))
	if out, code := auditCommand(t, "--data-dir", dir); code != cli.ExitUsage || !strings.Contains(out, "in use by another process") {
		t.Errorf("beside a server the audit ends with %d: %s", code, out)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
	if err := p.run(interrupted, []string{"audit", "--data-dir", dir}); exitCode(err) != cli.ExitInterrupted {
		t.Errorf("interrupted, the audit ends with %v", err)
	}
	out, code := auditCommand(t, "--data-dir", dir, "--quiescent")
	if code != 0 || !strings.Contains(out, "1 jobs, 1 SUCCEEDED") || !strings.HasSuffix(out, ": 0 violations, 0 late\n") {
		t.Errorf("the audit ends with %d: %s", code, out)
	}
}

func TestAudit_OfADamagedFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serveOn(t, dir)
	jobID := s.submit(t)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if out, code := auditCommand(t, "--data-dir", dir); code != 0 {
		t.Errorf("with a job under way the audit ends with %d: %s", code, out)
	}
	if out, code := auditCommand(t, "--data-dir", dir, "--quiescent"); code != cli.ExitFailed || !strings.Contains(out, "it is DISPATCHING") {
		t.Errorf("when nothing should be left the audit ends with %d: %s", code, out)
	}
	damaged := t.TempDir()
	if err := os.CopyFS(damaged, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	store, err := pebblestore.Open(pebblestore.Options{Dir: damaged})
	if err != nil {
		t.Fatal(err)
	}
	key := tablestore.Key{Table: "luciusledger", Partition: jobID, Row: "EVENT:000000000001"}
	_, err = store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: key}})
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	out, code := auditCommand(t, "--data-dir", damaged)
	if code != cli.ExitFailed || !strings.Contains(out, "violation journal: job "+jobID) || !strings.HasSuffix(out, "1 violations") {
		t.Errorf("with a change missing the audit ends with %d: %s", code, out)
	}
	out, _ = auditCommand(t, "--data-dir", damaged, "-o", "json")
	var report audit.Report
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&report); err != nil || len(report.Findings) != 1 {
		t.Errorf("as JSON: %v, %+v", err, report)
	}
}

func TestAudit_SaysWhyItCannotBeDone(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"no data directory":                 {"--data-dir", filepath.Join(t.TempDir(), "none")},
		`takes no arguments, but was given`: {"what"},
		"unknown flag: --what":              {"--what"},
	} {
		if out, code := auditCommand(t, args...); code != cli.ExitUsage || !strings.Contains(out, want) {
			t.Errorf("%v ends with %d: %s", args, code, out)
		}
	}
	if out, code := auditIn(t, map[string]string{"LUCIUS_STORAGE_BACKEND": "memory"}); code != cli.ExitUsage {
		t.Errorf("the memory store was audited: %s", out)
	}
	if out, code := auditCommand(t, "-h"); code != 0 {
		t.Errorf("help ends with %d: %s", code, out)
	}
}
