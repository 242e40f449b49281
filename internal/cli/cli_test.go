package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the time of all tests.
var now = time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)

// line is a command line with its environment.
type line struct {
	cli.Env

	out, notes bytes.Buffer
}

// newLine returns the environment of a command that calls the server, without contexts.
func newLine(t *testing.T, server string, variables ...string) *line {
	t.Helper()
	l := &line{}
	l.Env = cli.Env{
		Stdin: strings.NewReader(""), Stdout: &l.out, Stderr: &l.notes, DefaultURL: server, Now: func() time.Time { return now },
		Sleep:       func(context.Context, time.Duration) {},
		Environment: append([]string{"LUCIUS_CONFIG=" + filepath.Join(t.TempDir(), "lucius", "contexts.yaml")}, variables...),
	}
	return l
}

// run runs a command, and returns its output and its error.
func (l *line) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	l.out.Reset()
	l.notes.Reset()
	err := cli.Run(t.Context(), cli.Root(&l.Env), args)
	return l.out.String(), err
}

// must runs a command that must succeed, and returns its output.
func (l *line) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.run(t, args...)
	musttest.NoError(t, err)
	return out
}

// serve starts a server whose clock is the tests', and returns its URL.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.Format(http.TimeFormat))
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// answers is a server that answers each request for "METHOD /path" with a value, or with a
// problem if the value is a apierror.Code.
func answers(t *testing.T, all map[string]any) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		value, ok := all[r.Method+" "+r.URL.Path]
		if !ok {
			t.Errorf("%s %s is not expected", r.Method, r.URL.Path)
		}
		status, mediaType := http.StatusOK, "application/json"
		if code, ok := value.(apierror.Code); ok {
			status, mediaType = code.Status(), "application/problem+json"
			value = api.Problem{Code: code, Status: int32(status), Title: code.Title(), Type: code.Type()}
		}
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(value); err != nil {
			t.Error(err)
		}
	})
}

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		musttest.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	}
	musttest.Golden(t, path, got, *update)
}

// forPrograms runs a command with each output format for programs. The output must be the
// server's answer, in the API's own type, and leave a terminal alone.
func forPrograms[T any](t *testing.T, l *line, answered T, args ...string) {
	t.Helper()
	for _, format := range []string{"json", "yaml"} {
		out := l.must(t, append(args, "-o", format)...)
		if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && unicode.In(r, unicode.Cc, unicode.Bidi_Control) }) {
			t.Errorf("%s has control characters: %q", format, out)
		}
		var value any
		if err := yaml.Unmarshal([]byte(out), &value); format == "yaml" && err != nil {
			t.Fatal(err)
		} else if format == "yaml" {
			out = encode(t, value)
		}
		var printed T
		decoder := json.NewDecoder(strings.NewReader(out))
		decoder.DisallowUnknownFields()
		musttest.NoError(t, decoder.Decode(&printed))
		if diff := cmp.Diff(encode(t, answered), encode(t, printed)); diff != "" {
			t.Errorf("%s (-answered +printed):\n%s", format, diff)
		}
	}
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	musttest.NoError(t, err)
	return string(text)
}

// TestHelp compares the help of each command, which must have an example.
func TestHelp(t *testing.T) {
	t.Parallel()
	l := newLine(t, "http://127.0.0.1:8080")
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		if cmd.Name() == "completion" || cmd.Name() == "help" { // These are cobra's own.
			return
		}
		out, err := l.run(t, append(path, "--help")...)
		if err != nil {
			t.Errorf("%v: %v", path, err)
		}
		if cmd.Example == "" && cmd.Runnable() {
			t.Errorf("%v has no example", path)
		}
		golden(t, filepath.Join("help", strings.Join(append([]string{"lucius"}, path...), "-")+".txt"), strings.TrimRight(out, "\n")+"\n")
		for _, sub := range cmd.Commands() {
			walk(sub, append(slices.Clip(path), sub.Name()))
		}
	}
	walk(cli.Root(&l.Env), nil)
}

func TestMan_WritesAPageForEachCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newLine(t, "").must(t, "man", "--dir", dir)
	text, err := os.ReadFile(filepath.Join(dir, "lucius-jobs-get.1"))
	if err != nil || !bytes.Contains(text, []byte("Show a job with its steps")) {
		t.Errorf("%v:\n%s", err, text)
	}
	if _, err := newLine(t, "").run(t, "man", "--dir", filepath.Join(dir, "none")); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("a folder that is not there: %v", err)
	}
}
