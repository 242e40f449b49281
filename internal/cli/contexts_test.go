package cli_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

// who is a server that answers with a problem whose detail is the token it got.
func who(t *testing.T, name string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"code":"invalid_envelope","detail":"%s got %s"}`, name, r.Header.Get("Authorization"))
	})
}

// Flags take precedence over the context that a flag names, that over variables, and those over
// the current context. The credentials of a context go only to its own server.
func TestContexts_ChooseServerAndToken(t *testing.T) {
	t.Parallel()
	a, b := who(t, "A"), who(t, "B")
	file := filepath.Join(t.TempDir(), "token")
	musttest.WriteFile(t, file, "of-file\n")
	l := newLine(t, a)
	for _, args := range [][]string{
		{"context", "set", "a", "--url", a, "--token", "of-a"}, {"context", "set", "b", "--url", b, "--token-file", file},
	} {
		if out, err := l.run(t, args...); err != nil || out != "" {
			t.Fatalf("%v: %v, %s", args, err, out)
		}
	}
	path := l.Environment
	for _, test := range []struct {
		variables, flags []string
		want             string
	}{
		{nil, nil, "A got Bearer of-a"}, // The first context is current.
		{nil, []string{"--context", "b"}, "B got Bearer of-file"},
		{[]string{"LUCIUS_CONTEXT=b"}, nil, "B got Bearer of-file"},
		{[]string{"LUCIUS_CONTEXT=b"}, []string{"--context", "a"}, "A got Bearer of-a"},
		{[]string{"LUCIUS_URL=" + b}, nil, "B got "}, // B must not get the token of A.
		{nil, []string{"--url", b}, "B got "},
		{nil, []string{"--context", "a", "--url", b}, "B got "},
		{[]string{"LUCIUS_URL=" + b, "LUCIUS_TOKEN=of-env"}, nil, "B got Bearer of-env"},
		{[]string{"LUCIUS_TOKEN=of-env"}, nil, "A got Bearer of-env"},
		{[]string{"LUCIUS_URL=" + b, "LUCIUS_TOKEN=of-env"}, []string{"--context", "a"}, "A got Bearer of-a"},
		{[]string{"LUCIUS_URL=" + a}, nil, "A got Bearer of-a"}, // It is the context's server.
		{[]string{"LUCIUS_TOKEN=of-env"}, []string{"--token-file", file}, "A got Bearer of-file"},
		{[]string{"LUCIUS_TOKEN=of-env"}, []string{"--token", "of-flag"}, "A got Bearer of-flag"},
		{[]string{"LUCIUS_TOKEN=old", "LUCIUS_TOKEN=new"}, []string{"--url", b}, "B got Bearer new"},
	} {
		l.Environment = append(slices.Clip(path), test.variables...)
		_, err := l.run(t, append([]string{"jobs", "get", "x"}, test.flags...)...)
		if fmt.Sprint(err) != test.want {
			t.Errorf("%v %v: %v, want %s", test.variables, test.flags, err, test.want)
		}
	}
}

func TestContexts_AreKeptInAFileOfTheOwner(t *testing.T) {
	t.Parallel()
	l := newLine(t, "")
	path := strings.TrimPrefix(l.Environment[0], "LUCIUS_CONFIG=")
	run := func(code int, want string, args ...string) {
		t.Helper()
		out, err := l.run(t, append([]string{"context"}, args...)...)
		if cli.ExitCode(err) != code || !strings.Contains(out+fmt.Sprint(err), want) || strings.Contains(out+fmt.Sprint(err), "geheim") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
	run(2, "name the server with --url", "set", "prod")
	run(0, "", "set", "prod", "--url", "https://lucius.example.com", "--token", "geheim")
	run(0, "", "set", "dev", "--url", "http://127.0.0.1:8080")
	run(0, "", "set", "prod", "--ca-file", "ca.pem") // keeps the rest
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	golden(t, "context-list.txt", l.must(t, "context", "list"))
	run(0, `"ca_file": "/`, "list", "-o", "json")
	run(3, `there is no context "test"`, "use", "test")
	run(0, "", "use", "dev")
	run(0, "", "delete", "dev")
	run(3, `there is no context "dev"`, "delete", "dev")
	run(2, "a context has a token or a token file, not both", "set", "prod", "--token", "a", "--token-file", "b")
	run(0, "", "set", "prod", "--token-file", "b") // replaces the token
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "geheim") || !strings.Contains(string(text), "current: prod") {
		t.Errorf("the file: %v\n%s", err, text)
	}
	musttest.WriteFile(t, path, "contexts: {a: {uri: x}}\n")
	run(2, "contexts.yaml cannot be read", "list")
	musttest.WriteFile(t, path, "contexts:\n  a:\n    token: geheim\n  b: [\n")
	run(2, "contexts.yaml cannot be read: [4:6]", "list") // without the line before, which has a token
	for _, name := range []string{"", "a b", "a\nb", "-a", "a: b"} {
		run(2, "the context's name is", "set", "--url", "http://x", "--", name)
	}
	if l.notes.Len() > 0 {
		t.Errorf("of a file of the owner it says %s", &l.notes)
	}
	musttest.NoError(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o640)))
	run(2, `--output is "xml"`, "list", "-o", "xml")
	if run(0, "NAME", "list"); !strings.Contains(l.notes.String(), "chmod 600 "+path) {
		t.Errorf("of a file that others can read it says %s", &l.notes)
	}
}
