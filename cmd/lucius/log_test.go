package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/cli"
)

// A stop logs two lines, and none that would alarm an operator.
func TestLog_SaysHowTheServerStops(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	log := serveAndStop(t, "--data-dir", dir)
	for _, want := range []string{`"msg":"shutting down","cause":"the operator stops it","grace":"20s"`, `"msg":"stopped"`} {
		if strings.Count(log, want) != 1 {
			t.Errorf("%s is missing in:\n%s", want, log)
		}
	}
	if strings.Contains(log, `"WARN"`) || strings.Contains(log, `"ERROR"`) {
		t.Errorf("the log of a normal stop has a warning:\n%s", log)
	}
}

// The messages of workers are logged.
func TestLog_EscapesControlCharacters(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"error_message":"\u001b\u009b2J\u202e"`, "text": `error_message="\x1b\u009b2J\u202e"`} {
		out := &output{}
		log, err := newLogger(out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("job ended", "error_message", "\x1b\u009b2J\u202e"); !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q, want %s", format, out.String(), want)
		}
	}
}

// serveAndStop runs a server until it serves, stops it, and returns its log.
func serveAndStop(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	log := &output{}
	p := &program{Env: cli.Env{Stdout: writerFunc(func(text []byte) (int, error) {
		stop(errors.New("the operator stops it"))
		return len(text), nil
	}), Stderr: log}}
	args = append([]string{"serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols"}, args...)
	if err := p.run(ctx, args); err != nil {
		t.Fatal(err)
	}
	return log.String()
}

// writerFunc adapts a function to [io.Writer].
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// Secrets that other users of the host can read are worth a warning.
func TestLog_WarnsOfFilesThatOthersCanRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, tokens := filepath.Join(dir, "data"), filepath.Join(dir, "tokens.yaml")
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokenCommand(t, "new", "--name", "ci", "--role", "read:tenant_a", "--file", tokens); err != nil {
		t.Fatal(err)
	}
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		if err := errors.Join(os.Chmod(tokens, mode), os.Chmod(data, mode|0o110)); err != nil {
			t.Fatal(err)
		}
		log := serveAndStop(t, "--data-dir", data, "--auth-file", tokens)
		for setting, path := range map[string]string{"LUCIUS_AUTH_FILE": tokens, "LUCIUS_DATA_DIR": data} {
			if got := strings.Contains(log, fmt.Sprintf(`"setting":%q,"path":%q`, setting, path)); got != warned {
				t.Errorf("%s with mode %o: warned %v, want %v:\n%s", setting, mode, got, warned, log)
			}
		}
	}
}

// An SDK quotes the URL of a request, which may hold a signature.
func TestLog_MasksSecrets(t *testing.T) {
	t.Parallel()
	const url = "https://account.table.core.windows.net/Tables?sv=1&sig=hunter2"
	for _, format := range []string{"json", "text"} {
		out := &output{}
		log, err := newLogger(out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("failed", "error", fmt.Errorf("get %s: refused", url), "url", url, "tries", 3)
		if got := out.String(); strings.Contains(got, "hunter2") || strings.Count(got, "sig=(set)") != 2 || !strings.Contains(got, "3") {
			t.Errorf("%s: logged %s", format, got)
		}
	}
}

// A stop with hundreds of rows in progress must not cause hundreds of warnings.
func TestLog_IsQuietAboutWorkThatAStopHasCancelled(t *testing.T) {
	t.Parallel()
	running, stop := context.WithCancel(t.Context())
	elsewhere := t.Context()
	out := &output{}
	log, err := newLogger(out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	cancelled := fmt.Errorf("read the row: %w", context.Canceled)
	log.With("a", 1).WithGroup("g").WarnContext(running, "not taken up", "jobId", "j", "error", cancelled)
	log.ErrorContext(running, "not handled", "error", cancelled)
	if got := out.String(); got != "" {
		t.Errorf("logged %s", got)
	}
	log.WarnContext(running, "another error", "error", errors.New("the disk is full"))
	log.WarnContext(elsewhere, "another context", "error", cancelled)
	log.InfoContext(running, "the stop itself", "cause", cancelled)
	if got := strings.Count(out.String(), "\n"); got != 3 {
		t.Errorf("%d lines, want 3:\n%s", got, out.String())
	}
}
