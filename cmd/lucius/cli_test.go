package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
)

// terminal runs command lines of a person who calls a server.
type terminal struct {
	t         *testing.T
	variables []string
	stdin     string
}

// terminalOf returns a terminal for the server, with a token if it is not empty.
func terminalOf(t *testing.T, server, token string) *terminal {
	t.Helper()
	return &terminal{t: t, variables: []string{
		"LUCIUS_CONFIG=" + filepath.Join(t.TempDir(), "contexts.yaml"), "LUCIUS_URL=" + server, "LUCIUS_TOKEN=" + token,
	}}
}

// run runs a command line. It returns what was printed, followed by the error, and the exit code.
func (c *terminal) run(args ...string) (out string, code int) {
	c.t.Helper()
	stdout := &output{}
	p := &program{Env: cli.Env{Stdin: strings.NewReader(c.stdin), Stdout: stdout, Stderr: &output{}, Environment: c.variables}}
	err := p.run(c.t.Context(), args)
	if err != nil {
		return stdout.String() + err.Error(), exitCode(err)
	}
	return stdout.String(), 0
}

// want runs a command line that must end with that code and say that.
func (c *terminal) want(code int, says string, args ...string) string {
	c.t.Helper()
	out, got := c.run(args...)
	if got != code || !strings.Contains(out, says) {
		c.t.Errorf("lucius %s ends with %d, want %d and %q:\n%s", strings.Join(args, " "), got, code, says, out)
	}
	return out
}

// decode runs a command line with -o json and decodes what it prints into the API's type.
func decode[T any](c *terminal, args ...string) (answer T) {
	c.t.Helper()
	decoder := json.NewDecoder(strings.NewReader(c.want(0, "", append(args, "-o", "json")...)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&answer); err != nil {
		c.t.Errorf("lucius %s: %v", strings.Join(args, " "), err)
	}
	return answer
}

func TestCLI_CallsTheServerAsTheCaller(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	reader := addCaller(t, file, "reader", "read:tenant_a", "submit:tenant_a")
	stranger := addCaller(t, file, "stranger", "platform:tenant_b:ocr")
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(patient, "--auth-file", file)...)
	by := &caller{url: s.url, token: reader, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	var accepted api.CommandAccepted
	if err := json.Unmarshal([]byte(by.want(t, 202, "POST", "/v1/commands", strings.Replace(ingestFor("tenant_a", "k"), `{}}`, `{"language":"en"}}`, 1)).body), &accepted); err != nil {
		t.Fatal(err)
	}
	c := terminalOf(t, s.url, reader)
	c.want(0, "tenant       tenant_a", "jobs", "get", accepted.JobID)
	if job := decode[api.Job](c, "jobs", "get", accepted.JobID); job.JobID != accepted.JobID || len(job.Steps) != 3 {
		t.Errorf("the job is printed as %+v", job)
	}
	c.want(cli.ExitNotFound, "lucius jobs list shows", "jobs", "get", "0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7c8b")
	terminalOf(t, s.url, "").want(cli.ExitForbidden, "--token-file", "jobs", "get", accepted.JobID)
	terminalOf(t, s.url, stranger).want(cli.ExitForbidden, "ask for a token", "jobs", "get", accepted.JobID)
}

// A server's environment may hold the variables of the commands that call it.
func TestCLI_ItsVariablesAreNoMisspelledSettings(t *testing.T) {
	t.Parallel()
	c := terminalOf(t, "", "")
	help := c.want(0, "LUCIUS_URL", "jobs", "get", "--help") + c.want(0, "LUCIUS_CONFIG", "context", "--help")
	var environment []string
	for _, name := range regexp.MustCompile(`LUCIUS_\w+`).FindAllString(help, -1) {
		environment = append(environment, name+"=x")
	}
	if _, err := config.Load(nil, environment); err != nil || len(environment) < 8 {
		t.Errorf("%d variables: %v", len(environment), err)
	}
}
