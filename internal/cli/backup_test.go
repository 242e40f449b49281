package cli_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// backupLine returns a line whose check of a backup passes if the backup says that it is
// complete.
func backupLine(t *testing.T, server string) *line {
	t.Helper()
	l := newLine(t, server)
	l.CheckBackup = func(r io.Reader, progress func(done, total int64)) (cli.CheckedBackup, error) {
		text, err := io.ReadAll(r)
		progress(int64(len(text)), int64(len(text)))
		if err == nil && !strings.HasSuffix(string(text), "whole") {
			err = errors.New("000004.sst: its content was altered")
		}
		return cli.CheckedBackup{Version: "v1.2.3\x1b[2J", TakenAt: api.NewTime(now), Files: 3, Bytes: 5 << 20}, err
	}
	return l
}

// sends starts a server that sends that text as a backup, and breaks off if the text says so.
func sends(t *testing.T, text string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.Method+r.URL.Path != "POST/v1/admin/backup" || err != nil {
			t.Errorf("%s %s %s", r.Method, r.URL, body)
		}
		_, _ = io.WriteString(w, text)
		if strings.HasSuffix(text, "broken off") {
			http.NewResponseController(w).Flush() //nolint:errcheck // The connection ends anyway.
			panic(http.ErrAbortHandler)
		}
	})
}

// expectFile fails the test unless the file holds that text, or does not exist if the text is
// empty, and there is no incomplete backup next to it.
func expectFile(t *testing.T, name, want string) {
	t.Helper()
	got, err := os.ReadFile(name)
	if string(got) != want || (want == "") != errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file holds %q, %v, want %q", got, err, want)
	}
	if left, err := filepath.Glob(name + ".*"); len(left) > 0 || err != nil {
		t.Errorf("half of a backup is left: %v, %v", left, err)
	}
}

func TestBackup_IsKeptOnceItIsComplete(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lucius.backup")
	l := backupLine(t, sends(t, "this is whole"))
	out, err := l.run(t, "backup", "--to", file, "--reason", "monday")
	if want := file + " holds the store as of 2026-01-27T12:00:00Z: 3 files with 5.0 MiB, from Lucius v1.2.3\uFFFD[2J\n"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	expectFile(t, file, "this is whole")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others can read it: %v, %v", info.Mode(), err)
	}
	for want, args := range map[string][]string{
		"already exists": {"backup", "--to", file}, "name another": {"backup", "--to", filepath.Dir(file), "--force"},
	} {
		if _, err := l.run(t, args...); cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	l.must(t, "backup", "--to", file, "--force")
	forPrograms(t, l, cli.CheckedBackup{Version: "v1.2.3\x1b[2J", TakenAt: api.NewTime(now), Files: 3, Bytes: 5 << 20}, "backup", "--force", "--to", file)
	if out, err = l.run(t, "backup", "--to", "-"); err != nil || out != "this is whole" {
		t.Errorf("to standard output: %q, %v", out, err)
	}
	l.Interactive = true
	if _, err := l.run(t, "backup", "--to", file, "--force"); err != nil || !strings.Contains(l.notes.String(), "backup 13.0 b of 13.0 b") {
		t.Errorf("the progress is %q, %v", l.notes.String(), err)
	}
}

// The file of an incomplete backup is reported but not removed, because its command may still
// be running.
func TestBackup_ReportsAnIncompleteOne(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "[lucius].backup")
	begun, other := file+".123.partial", filepath.Join(filepath.Dir(file), "other.backup.1.partial")
	for _, name := range []string{begun, other} {
		musttest.WriteFile(t, name, "this is")
	}
	l := backupLine(t, sends(t, "this is whole"))
	l.must(t, "backup", "--to", file)
	if want := begun + " is left over from an unfinished backup: remove it, unless that backup is still running\n"; l.notes.String() != want {
		t.Errorf("it says %q, want %q", l.notes.String(), want)
	}
	if _, err := os.Stat(begun); err != nil {
		t.Error(err)
	}
}

func TestBackup_LeavesNothingIfItFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server, to string
		code       int
		says       string
	}{
		"no file named": {sends(t, ""), "", cli.ExitUsage, "--to"},
		"no folder":     {sends(t, ""), "none/lucius.backup", cli.ExitUsage, "cannot be written"},
		"broken off":    {sends(t, "this is broken off"), "lucius.backup", cli.ExitUnavailable, "the server aborted the backup"},
		"altered":       {sends(t, "this is altered"), "lucius.backup", cli.ExitFailed, "not kept: 000004.sst: its content was altered"},
		"not allowed":   {answers(t, map[string]any{"POST /v1/admin/backup": apierror.Forbidden}), "lucius.backup", cli.ExitForbidden, "ask for a token"},
		"no data folder": {answers(t, map[string]any{"POST /v1/admin/backup": apierror.NotFound}), "lucius.backup", cli.ExitNotFound,
			"No such resource"},
		"no server": {"http://127.0.0.1:1", "lucius.backup", cli.ExitUnavailable, "cannot reach"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := test.to
			if to != "" {
				to = filepath.Join(t.TempDir(), to)
			}
			_, err := backupLine(t, test.server).run(t, "backup", "--to", to)
			if cli.ExitCode(err) != test.code || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%d %v, want %d %q", cli.ExitCode(err), err, test.code, test.says)
			}
			if to != "" {
				expectFile(t, to, "")
			}
		})
	}
	l := backupLine(t, sends(t, "whole"))
	l.Terminal = true
	if _, err := l.run(t, "backup", "--to", "-"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("to a terminal: %v", err)
	}
	l = backupLine(t, sends(t, "whole"))
	l.Stdout = full{}
	if _, err := l.run(t, "backup", "--to", "-"); cli.ExitCode(err) != cli.ExitFailed || !strings.Contains(err.Error(), "write the backup: no space") {
		t.Errorf("to a full disk: %v", err)
	}
}

// Two concurrent backups to one file, for instance of a cron job that overlaps itself, do not
// write into each other.
func TestBackup_TwiceToTheSameFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lucius.backup")
	first := backupLine(t, sends(t, "the first is whole"))
	check := first.CheckBackup
	first.CheckBackup = func(r io.Reader, progress func(done, total int64)) (cli.CheckedBackup, error) {
		checked, err := check(r, progress)
		if _, err := backupLine(t, sends(t, "the second is broken off")).run(t, "backup", "--to", file); err == nil {
			t.Error("the second is kept")
		}
		return checked, err
	}
	first.must(t, "backup", "--to", file)
	expectFile(t, file, "the first is whole")
}

// full is a writer that fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }
