package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// terminal runs commands against a server.
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

// run runs a command. It returns what was printed, followed by the error, and the exit code.
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

// want runs a command that must exit with that code and print that text.
func (c *terminal) want(code int, says string, args ...string) string {
	c.t.Helper()
	out, got := c.run(args...)
	if got != code || !strings.Contains(out, says) {
		c.t.Errorf("lucius %s ends with %d, want %d and %q:\n%s", strings.Join(args, " "), got, code, says, out)
	}
	return out
}

// decode runs a command with -o json and decodes what it prints into the API's type.
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
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(longTimeouts, "--auth-file", file)...)
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

// commandFor returns a command for the document, as JSON.
func commandFor(document string) string {
	return `{"tenant_id":"tenant_a","request_type":"doc.ingest","schema_version":"1","doc_id":"` + document + `",` +
		`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"payload":{"language":"en"}}`
}

// A user submits commands, sees why one waits and why it failed, and reruns it.
func TestCLI_TellsOfAJobFromItsCommandToItsEnd(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), longTimeouts...)
	c := terminalOf(t, s.url, "")
	c.stdin = commandFor("1")
	accepted := decode[api.CommandAccepted](c, "submit", "-")
	id := accepted.JobID
	if again := decode[api.CommandAccepted](c, "submit", "-"); again.JobID != id || !again.Replayed {
		t.Errorf("the same command again: %+v", again)
	}
	c.want(0, "waits in the queue for a worker of extract", "why", id)
	c.want(0, "Paused job "+id, "jobs", "pause", id, "--reason", "wrong file")
	c.want(0, "The job is paused by local", "why", id)
	c.want(0, ": wrong file.", "why", id)
	c.want(cli.ExitRefused, "", "jobs", "rerun", id)
	c.want(0, "Resumed job "+id, "jobs", "resume", id)

	item := s.claim(t, "claim", true)
	c.want(0, "w runs extract", "why", id)
	response, err := s.client.FailWorkWithResponse(t.Context(), item.WorkID, api.WorkFailure{
		Owner: "w", ExpectedRev: item.Rev, RequestID: "failed", Error: api.ReportedError{Code: "bad_scan", Message: "The page is blank."},
	})
	if err != nil || response.JSON200 == nil {
		t.Fatalf("fail: %v, %s", err, bodyOf(response))
	}
	c.want(0, "extract failed for good", "why", id)
	c.want(0, "after 1 attempt: bad_scan: The page is blank.", "why", id)
	c.want(0, "w       any", "workers", "--service", "extract")
	c.want(0, "failed   bad_scan", "workers", "show", "w")
	c.want(cli.ExitNotFound, "no worker none", "workers", "show", "none")
	if page := decode[api.JobPage](c, "jobs", "list", "--state", "failed_final", "--created-after", "1h"); len(page.Jobs) != 1 || page.Jobs[0].JobID != id {
		t.Errorf("the failed jobs are %+v", page.Jobs)
	}
	if page := decode[api.JobPage](c, "jobs", "list", "--created-before", "1h"); len(page.Jobs) != 0 {
		t.Errorf("jobs of an hour ago are %+v", page.Jobs)
	}
	c.want(cli.ExitFailed, "FAILED_FINAL", "jobs", "watch", id)
	c.want(cli.ExitAttention, "1 job failed for good at extract: bad_scan", "attention")
	c.want(0, "is acknowledged until ", "attention", "mark", "error:extract:bad_scan", "--note", "a blank page")
	c.want(0, ": “a blank page”, returns ", "attention")

	rerun := decode[api.CommandAccepted](c, "jobs", "rerun", id).JobID
	c.want(0, "lucius why "+rerun, "why", id)
	finish(t, s, rerun)
	c.want(0, "job.succeeded", "jobs", "watch", rerun)
	c.want(0, "The job succeeded", "why", rerun)
	if history := decode[api.EventPage](c, "jobs", "events", rerun); len(history.Events) < 10 {
		t.Errorf("the history has %d entries", len(history.Events))
	}
	c.want(0, "SUCCEEDED", "jobs", "rerun", id, "--wait") // There is one rerun.
}

// One file submits many commands, and one command tells who stopped a job.
func TestCLI_SubmitsManyAndStopsThem(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), longTimeouts...)
	c := terminalOf(t, s.url, "")
	path := filepath.Join(t.TempDir(), "commands.jsonl")
	lines := []string{strings.Replace(commandFor("bad"), "doc.ingest", "doc.burn", 1)}
	for i := range 150 {
		lines = append(lines, commandFor(fmt.Sprint(i)))
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	c.want(cli.ExitRefused, "150 accepted, 0 accepted before, 1 refused\n\nLINE  CODE                  WHY\n1 ", "submit", path)
	c.want(cli.ExitRefused, "0 accepted, 150 accepted before, 1 refused", "submit", path)
	page := decode[api.JobPage](c, "jobs", "list", "--limit", "120", "--tenant", "tenant_a")
	if len(page.Jobs) != 120 || page.NextPageToken == "" {
		t.Errorf("%d jobs are listed, and the next page is %q", len(page.Jobs), page.NextPageToken)
	}
	a, b := page.Jobs[0].JobID, page.Jobs[1].JobID
	c.want(cli.ExitUsage, "add --yes", "jobs", "cancel", a, b)
	c.want(0, "Cancelled job "+b, "jobs", "cancel", a, b, "--yes", "--reason", "not needed")
	c.want(0, "The job was cancelled by local", "why", b)
	c.want(0, ": not needed.", "why", b)
	waittest.Until(t, "the overview has counted", func() bool {
		all := decode[api.Overview](c, "overview")
		return all.Jobs["DISPATCHING"] == 148 && all.Backlog == 148
	})
	c.want(0, "148 DISPATCHING", "overview")
}

func TestCLI_SpeaksTLSWithACertificateOfTheCaller(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), newAuthority(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	ca.issue(t, dir, "lucius", "cert.pem", "key.pem")
	ca.issue(t, dir, "reader", "reader.pem", "reader.key")
	callers := "version: 1\ncallers:\n  - name: reader\n    certificates: ['cn:reader']\n    roles: [{role: read, tenants: [tenant_a]}]\n"
	authorities := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw})
	err := errors.Join(os.WriteFile(at("ca.pem"), authorities, 0o600), os.WriteFile(at("callers.yaml"), []byte(callers), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, at("data"), append(longTimeouts, "--auth-file", at("callers.yaml"), "--tls-cert", at("cert.pem"), "--tls-key", at("key.pem"),
		"--tls-client-ca", at("ca.pem"))...)
	c := terminalOf(t, s.url, "")
	c.want(cli.ExitUnavailable, "name the authority's certificate with --ca-file", "jobs", "list")
	c.want(cli.ExitForbidden, "Authentication is required", "jobs", "list", "--ca-file", at("ca.pem"))
	c.want(0, "", "context", "set", "prod", "--url", s.url, "--ca-file", at("ca.pem"), "--client-cert", at("reader.pem"), "--client-key", at("reader.key"))
	c.want(0, "JOB", "jobs", "list", "--tenant", "tenant_a")
	c.want(cli.ExitForbidden, "ask for a token", "jobs", "list", "--tenant", "tenant_b")
}

// Each command of the program has a group in its help, and an example.
func TestCLI_ShowsHowToUseEachCommand(t *testing.T) {
	t.Parallel()
	p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	for _, cmd := range p.commands() {
		if walk(cmd); cmd.GroupID == "" {
			t.Errorf("%s has no group", cmd.Name())
		}
	}
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
