package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

func TestBackup_IsRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, file, restored := filepath.Join(dir, "data"), filepath.Join(dir, "lucius.backup"), filepath.Join(dir, "restored")
	tokens := filepath.Join(dir, "tokens.yaml")
	admin := addCaller(t, tokens, "admin", "admin:*", "submit:*", "read:*", "platform:*")
	tenant := addCaller(t, tokens, "tenant", "admin:tenant_a")
	s := serveOn(t, data, append(longTimeouts, "--auth-file", tokens)...)
	by := &caller{url: s.url, token: admin, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	command := strings.Replace(ingestFor("tenant_a", "k"), `{}}`, `{"language":"en"}}`, 1)
	accepted := by.want(t, http.StatusAccepted, "POST", "/v1/commands", command).body
	c := terminalOf(t, s.url, admin)
	terminalOf(t, s.url, tenant).want(cli.ExitForbidden, "admin for all tenants", "backup", "--to", file)
	c.want(0, file+" holds the store as of ", "backup", "--to", file)
	c.want(cli.ExitUsage, "already exists", "backup", "--to", file)
	c.want(0, file+" is whole: a store made ", "restore", file, "--check")

	out := c.want(0, "restored "+restored+": a store made ", "restore", file, "--data-dir", restored)
	if !strings.Contains(out, "\n1 jobs, 1 ") || !strings.Contains(out, " 0 violations, ") {
		t.Errorf("lucius restore says\n%s", out)
	}
	c.want(cli.ExitRefused, "is not empty", "restore", file, "--data-dir", restored)
	c.want(cli.ExitRefused, "is in use", "restore", file, "--data-dir", data)
	c.want(cli.ExitUsage, "--data-dir", "restore", file)
	c.want(cli.ExitRefused, "is not a directory", "restore", file, "--data-dir", tokens)
	c.want(cli.ExitFailed, tokens+": backup cannot be used: manifest.json: it is no file of lucius backup", "restore", tokens, "--check")
	c.want(cli.ExitUsage, "is a folder", "restore", data, "--check")
	c.want(cli.ExitUsage, "no such file", "restore", file+".none", "--data-dir", restored)
	interruptRestore(t, file)

	// The command is known, and the job continues, as in the first server.
	other := serveOn(t, restored, append(longTimeouts, "--auth-file", tokens)...)
	again := *by
	again.url = other.url
	if got := again.want(t, http.StatusAccepted, "POST", "/v1/commands", command).body; jobOf(t, got) != jobOf(t, accepted) {
		t.Errorf("the command is accepted as %s, and was as %s", got, accepted)
	}
	again.want(t, http.StatusOK, "POST", "/v1/work:claim", `{"owner":"o","request_id":"r","wait_seconds":60}`)

	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	altered := filepath.Join(dir, "altered.backup")
	whole[len(whole)/2] ^= 0x10
	for _, content := range [][]byte{whole, whole[:len(whole)/2], nil} {
		if err := os.WriteFile(altered, content, 0o600); err != nil {
			t.Fatal(err)
		}
		c.want(cli.ExitFailed, altered+": backup cannot be used: ", "restore", altered, "--check")
		c.want(cli.ExitFailed, altered+": backup cannot be used: ", "restore", altered, "--data-dir", filepath.Join(dir, "altered"))
		if _, err := os.Stat(filepath.Join(dir, "altered")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a bad backup leaves a folder: %v", err)
		}
	}
}

// A forged backup could name a version that a terminal obeys.
func TestRestore_QuotesTheVersion(t *testing.T) {
	t.Parallel()
	out := &output{}
	p := &program{Env: cli.Env{Stdout: out}}
	err := p.describe("it is whole", &pebblestore.BackupManifest{Version: "v9\x1b[2J"})
	if err != nil || !strings.HasSuffix(out.String(), `backed up by Lucius "v9\x1b[2J"`+"\n") {
		t.Errorf("it says %q, %v", out.String(), err)
	}
}

// Ctrl-C ends a restore that waits for its input, and leaves no folder.
func TestRestore_Interrupted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "restored")
	for _, args := range [][]string{{"restore", "-", "--check"}, {"restore", "-", "--data-dir", dir}} {
		input, sender := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		p := &program{Env: cli.Env{Stdin: input, Stdout: io.Discard, Stderr: io.Discard}}
		time.AfterFunc(10*time.Millisecond, interrupt)
		if err := p.run(ctx, args); exitCode(err) != cli.ExitInterrupted || strings.Contains(err.Error(), "cannot be used") {
			t.Errorf("%v ends with %v", args, err)
		}
		_ = sender.Close()
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

// interruptRestore interrupts a restore once the backup is read. It leaves no folder.
func interruptRestore(t *testing.T, backup string) {
	t.Helper()
	file, err := os.Open(backup)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // It was only read.
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	dir := t.TempDir()
	p := &program{Env: cli.Env{Stdout: io.Discard, Stderr: io.Discard}}
	err = p.runRestore(ctx, backup, file, filepath.Join(dir, "data"))
	if exitCode(err) != cli.ExitInterrupted || strings.Contains(err.Error(), "read") {
		t.Errorf("it ends with %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("it leaves %v, %v", files, err)
	}
}

// jobOf returns the job of an accepted command.
func jobOf(t *testing.T, body string) string {
	t.Helper()
	var accepted api.CommandAccepted
	if err := json.Unmarshal([]byte(body), &accepted); err != nil {
		t.Fatal(err)
	}
	return accepted.JobID
}

func TestBackup_IsOfADataFolder(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(longTimeouts, "--storage-backend", "memory")...)
	terminalOf(t, s.url, "").want(cli.ExitNotFound, "Only a store in a data folder has backups", "backup", "--to", filepath.Join(t.TempDir(), "b"))
}

// While a client reads a backup slowly, the server accepts commands but no second backup,
// and it frees the disk when the client disconnects.
func TestBackup_OfASlowClient(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	s := serveOn(t, data, longTimeouts...)
	large := func(n int) {
		noise := make([]byte, 90_000)
		_, _ = rand.Read(noise) // This never fails.
		payload, _ := json.Marshal(map[string]string{"language": "en", "noise": base64.StdEncoding.EncodeToString(noise)})
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, api.Command{
			TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", IdempotencyKey: fmt.Sprint("k", n),
			InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`), Payload: payload,
		})
		if err != nil || response.JSON202 == nil {
			t.Fatalf("submit: %v, %s", err, bodyOf(response))
		}
	}
	for n := range 90 { // more than the buffers of a connection can hold
		large(n)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	begun, err := client.Post(s.url+"/v1/admin/backup", "", http.NoBody)
	if err != nil || begun.StatusCode != http.StatusOK {
		t.Fatalf("backup: %v, %v", begun, err)
	}
	defer func() { _ = begun.Body.Close() }()
	if _, err := os.Stat(filepath.Join(data, "BACKUP")); err != nil {
		t.Errorf("the backup is over: %v", err)
	}
	large(1000)
	second, err := client.Post(s.url+"/v1/admin/backup", "", http.NoBody)
	if err != nil || second.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a second backup: %v, %v", second, err)
	}
	_ = second.Body.Close()
	if err := begun.Body.Close(); err != nil {
		t.Error(err)
	}
	waittest.Until(t, "the copy is deleted", func() bool {
		_, err := os.Stat(filepath.Join(data, "BACKUP"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// A line that a crash cut short does not corrupt the next one.
func TestArchive_GoesOnAfterATornLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	torn := filepath.Join(dir, "jobs-2026-01.jsonl")
	if err := os.WriteFile(torn, []byte(`{"jobId":"j0","sta`), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	a := &archive{dir: dir}
	for _, id := range []string{"j1", "j2"} {
		job := &ledger.Archived{History: []ledger.HistoryEntry{{Transition: statemachine.Transition{Type: "job.accepted"}, Rev: 1, At: at}}}
		job.Job = statemachine.Job{ID: id, TenantID: "t", State: statemachine.JobSucceeded, CreatedAt: at, CompletedAt: at, Rev: 1}
		if err := a.add(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	out := terminalOf(t, "", "").want(cli.ExitFailed, "1 lines of the archive are damaged", "archive", "read", dir)
	if !strings.Contains(out, "\nj1 ") || !strings.Contains(out, "\nj2 ") {
		t.Errorf("the archive holds\n%s", out)
	}
}
