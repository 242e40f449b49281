package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/auth"
)

// tokenCommand runs lucius token.
func tokenCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	out, notes := &output{}, &output{}
	p := &program{Env: cli.Env{Stdout: out, Stderr: notes}}
	err = p.run(t.Context(), append([]string{"token"}, args...))
	return out.String(), notes.String(), err
}

// callerWith returns the caller of the file that has the token.
func callerWith(t *testing.T, path, token string) auth.Caller {
	t.Helper()
	file, err := auth.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	request.Header.Set("Authorization", "Bearer "+token)
	caller, err := auth.New(auth.Config{File: file}).Authenticate(request)
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

func TestTokenNew_PrintsTheTokenAndWhatToAdd(t *testing.T) {
	t.Parallel()
	stdout, stderr, err := tokenCommand(t, "new", "--name", "ci", "--role", "submit:tenant_a", "--role", "platform:*:ocr,embed")
	if err != nil {
		t.Fatal(err)
	}
	token, stanza, _ := strings.Cut(stdout, "\n\n")
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte("version: 1\ncallers:\n"+stanza), 0o600); err != nil {
		t.Fatal(err)
	}
	caller := callerWith(t, path, token)
	if caller.Name() != "ci" || !caller.May(auth.Submit, "tenant_a") || !caller.MayServe("x", "embed") || caller.MayServe("x", "index") {
		t.Errorf("the caller is %+v of\n%s", caller, stdout)
	}
	if strings.Contains(stanza+stderr, token) {
		t.Error("the token is printed twice")
	}
}

func TestTokenNew_AddsToTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	var tokens []string
	for _, args := range [][]string{
		{"new", "--file", path, "--name", "ci", "--role", "submit:tenant_a"},
		{"new", "--file", path, "--name", "ops", "--role", "admin:*"},
		{"new", "--file", path, "--name", "ci"},
	} {
		stdout, _, err := tokenCommand(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, strings.TrimSuffix(stdout, "\n"))
	}
	for i, name := range []string{"ci", "ops", "ci"} {
		if caller := callerWith(t, path, tokens[i]); caller.Name() != name {
			t.Errorf("token %d is that of %q, want %q", i, caller.Name(), name)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		if strings.Contains(string(text), token) {
			t.Error("the file holds a token")
		}
	}
}

func TestToken_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"old"}, {"new"}, {"new", "--name", "ci", "more"}, {"new", "--name", "ci", "--role", "chef:*"}} {
		if _, _, err := tokenCommand(t, args...); exitCode(err) != cli.ExitUsage {
			t.Errorf("%v answered %v", args, err)
		}
	}
	for want, args := range map[string][]string{
		`role is "chef"`:         {"new", "--name", "ci", "--role", "chef:*"},
		"unknown flag: --what":   {"new", "--what"},
		`name is "c i"`:          {"new", "--name", "c i", "--role", "read:*"},
		"at least one role":      {"new", "--name", "ci", "--file", filepath.Join(t.TempDir(), "tokens.yaml")},
		"write the token file: ": {"new", "--name", "ci", "--role", "read:*", "--file", filepath.Join(t.TempDir(), "none", "tokens.yaml")},
	} {
		stdout, _, err := tokenCommand(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) || stdout != "" {
			t.Errorf("%v answered %q, %v", args, stdout, err)
		}
	}
}

func TestTokenNew_SaysWhatToDoWithAFileThatItCannotEdit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	before := "version: 1\ncallers: [{name: a, tokens: ['" + auth.HashToken(auth.NewToken()) + "'], roles: [{role: read, tenants: [t]}]}]\n"
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := tokenCommand(t, "new", "--file", path, "--name", "ci", "--role", "read:*")
	if !errors.Is(err, auth.ErrEdit) || stdout != "" {
		t.Fatalf("answered %q, %v", stdout, err)
	}
	for _, want := range []string{"not to lists in brackets", "without --file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
