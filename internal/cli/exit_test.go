package cli_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// Each problem code has a sentence and an exit code.
func TestErrors_OfTheServer(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, code := range apierror.Codes() {
		if status := code.Status(); status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			continue // The command repeats such requests: see below.
		}
		l := newLine(t, answers(t, map[string]any{"GET /v1/jobs/x": code}))
		_, err := l.run(t, "jobs", "get", "x")
		fmt.Fprintf(&table, "%-26s %d  %v\n", code, cli.ExitCode(err), err)
	}
	golden(t, "errors.txt", table.String())
}

func TestErrors_NameFlagsInsteadOfFields(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":"forbidden","status":403,"detail":"This requires the role read for all tenants; name a tenant_id of yours."}`)
	})
	_, err := newLine(t, url).run(t, "jobs", "list")
	want := "This requires the role read for all tenants: name one of your tenants with --tenant, or ask for a token that covers all"
	if cli.ExitCode(err) != cli.ExitForbidden || fmt.Sprint(err) != want {
		t.Errorf("answered %v", err)
	}
}

func TestErrors_HideAPasswordInTheURL(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"http://user:secret@host", "ftp://user:secret@host", "user:secret@host", "http://user:secret%zz@host"} {
		_, err := newLine(t, server).run(t, "jobs", "list")
		if cli.ExitCode(err) != cli.ExitUsage || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// A variable that is not set must not widen what a command selects.
func TestErrors_OfFlagsThatWouldNotCount(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"retry --service ocr --tenant= --yes":     "--tenant is empty: give it a value, or leave it out",
		"jobs cancel --state= --service ocr -y":   "--state is empty",
		"jobs list --created-after=":              "--created-after is empty",
		"failures --since=":                       "--ended-after is empty",
		"outbox retry --job= --all -y":            "--job is empty",
		"outbox retry --lane -5 --all -y":         "--lane is -5, it must be at least 0",
		"outbox list --lane -1":                   "--lane is -1, it must be at least 0",
		"pause --all --reason x --service= --yes": "--service is empty",
		"webhooks list --tenant=":                 "--tenant is empty",
	} {
		server := newScripted(t, nil)
		_, err := newLine(t, server.url).run(t, strings.Fields(line)...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
		server.wantAsked(t)
	}
}

func TestHelp_OfAnUnknownCommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help", "nonsense"}, {"help", "jobs", "nonsense"}} {
		if out, err := newLine(t, "").run(t, args...); cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), "there is no command") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	for _, args := range [][]string{{"help"}, {"help", "jobs", "get"}} {
		other := append(append([]string{}, args[1:]...), "--help")
		out, err := newLine(t, "").run(t, args...)
		if same, _ := newLine(t, "").run(t, other...); err != nil || out == "" || out != same {
			t.Errorf("%v: %v\n%s", args, err, cmp.Diff(same, out))
		}
	}
}

// docs/use/cli.md lists the same exit codes as the help.
func TestExitCodes_AreDocumented(t *testing.T) {
	t.Parallel()
	page := musttest.ReadFile(t, "../../docs/use/cli.md")
	help := newLine(t, "").must(t, "help", "exit-codes")
	var listed, helped []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	for _, row := range regexp.MustCompile(`(?m)^ +(\d+)  `).FindAllStringSubmatch(help, -1) {
		helped = append(helped, row[1])
	}
	if diff := cmp.Diff(helped, listed); diff != "" || len(helped) != 11 {
		t.Errorf("(-help +page):\n%s", diff)
	}
}

// Go's runtime exits with 2 after a panic, and a server with 1 if its database is away. Only
// without its data folder a restart does harm.
func TestUnit_RestartsTheServer(t *testing.T) {
	t.Parallel()
	unit := string(musttest.ReadFile(t, "../../deploy/systemd/lucius.service"))
	for _, line := range []string{
		"StartLimitIntervalSec=0", "Restart=always", fmt.Sprintf("RestartPreventExitStatus=%d", cli.ExitLost),
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("it lacks %s", line)
		}
	}
}

// A request to an overloaded server is repeated when the server says.
func TestRequests_AreRepeatedWhileTheServerIsBusy(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		var asked atomic.Int32
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":"rate_limited","title":"Too many requests","status":%d}`, status)
			asked.Add(1)
		})
		_, err := newLine(t, url).run(t, "jobs", "get", "x")
		if cli.ExitCode(err) != cli.ExitUnavailable || asked.Load() != 4 || !strings.Contains(fmt.Sprint(err), "Too many requests: wait") {
			t.Errorf("%d: %v after %d requests", status, err, asked.Load())
		}
	}
}

func TestErrors_WithoutAResponse(t *testing.T) {
	t.Parallel()
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	musttest.NoError(t, err)
	_ = closed.Close() // Nothing listens on its port.
	foreign := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(foreign.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for server, want := range map[string]string{
		"http://" + closed.Addr().String():               "the connection was refused: start one with lucius serve",
		foreign.URL:                                      "answered 404, but not like a Lucius server",
		strings.Replace(foreign.URL, "http", "https", 1): "it does not speak TLS: use http://",
		secure.URL:                       "signed by an unknown authority: name the authority's certificate with --ca-file",
		"http://no-such-host.invalid:80": "there is no host no-such-host.invalid",
	} {
		_, err := newLine(t, server, "LUCIUS_TOKEN=geheim").run(t, "jobs", "get", "x?secret=1")
		if cli.ExitCode(err) != cli.ExitUnavailable || !strings.Contains(fmt.Sprint(err), want) || strings.Contains(fmt.Sprint(err), "geheim") ||
			strings.Contains(fmt.Sprint(err), "/v1/") {
			t.Errorf("%s: %v, want %s", server, err, want)
		}
	}
}

func TestErrors_OfTheCommandLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		want string
	}{
		{"dance", `lucius has no command "dance": see lucius --help`},
		{"jobs gt", `lucius jobs has no command "gt", did you mean get?: see lucius jobs --help`},
		{"jobs get", "usage: lucius jobs get JOB"},
		{"jobs get x y", "usage: lucius jobs get JOB"},
		{"jobs list --tenent x", "unknown flag: --tenent, did you mean --tenant?: see lucius jobs list --help"},
		{"jobs get x --loud", "unknown flag: --loud: see lucius jobs get --help"},
		{"jobs get x -o xml", `--output is "xml", it must be table, json or yaml`},
		{"jobs get x --url localhost:8080", `the server is "localhost:8080", it must be a URL such as`},
		{"jobs get x --url http://me:pw@localhost", "the server's URL has a user"},
		{"jobs get x --token a\tb", "the token contains a space"},
		{"jobs get x --token-file none", "read the token file"},
		{"jobs get x --ca-file exit_test.go", "contains no PEM certificate"},
		{"jobs get x --client-cert c", "--client-cert and --client-key must be given together"},
		{"jobs list --limit 0", "--limit is 0, it must be at least 1"},
		{"submit - --timeout 1s", "--timeout needs --wait"},
		{"context list more", `lucius context list takes no arguments, but was given "more"`},
	} {
		_, err := newLine(t, "http://127.0.0.1:1").run(t, strings.Split(test.args, " ")...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, want %s", test.args, err, test.want)
		}
	}
	for _, args := range [][]string{nil, {"jobs"}, {"help", "exit-codes"}, {"jobs", "get", "-h"}} {
		if out, err := newLine(t, "").run(t, args...); err != nil || out == "" {
			t.Errorf("%v: %v, %q", args, err, out)
		}
	}
}
