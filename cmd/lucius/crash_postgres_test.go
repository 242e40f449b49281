//go:build integration && !race

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
)

// onPostgres starts a PostgreSQL that ends with the test, with the schema in it.
func onPostgres(t *testing.T) *postgres.Server {
	t.Helper()
	server := postgrestest.Start(t)
	runPlain(t, server.URL.String(), "postgres", "migrate")
	return server
}

// runPlain runs a command of the program on the database, which must succeed.
func runPlain(t *testing.T, databaseURL string, args ...string) string {
	t.Helper()
	out, err := tryPlain(t, databaseURL, args...)
	if err != nil {
		t.Fatalf("lucius %v: %v\n%s", args, err, out)
	}
	return out
}

func tryPlain(t *testing.T, databaseURL string, args ...string) (string, error) {
	t.Helper()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(waittest.Context(t), binary, args...)
	cmd.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND="+config.BackendPostgres, "LUCIUS_POSTGRES_URL="+databaseURL)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestCrash_EverythingOnPostgres runs three replicas on one database, with workers that
// pull. It kills replicas, ends the sessions of PostgreSQL, cuts the connections to it,
// and kills and restarts it. Every accepted command still has a job that ended well, no
// step is applied twice, and the audit of the database is clean.
func TestCrash_EverythingOnPostgres(t *testing.T) {
	t.Parallel()
	server := onPostgres(t)
	proxy := newTCPProxy(t, server.URL.Host)
	over := *server.URL
	over.Host = proxy.listener.Addr().String()
	flags := append(remoteFlags(), "--storage-backend", config.BackendPostgres, "--postgres-url", over.String())
	entry := newSite(t)
	var replicas []*process
	for range 3 {
		replicas = append(replicas, entry.start(flags...))
	}
	l := startLoad(entry, 50*time.Millisecond)
	for round := range *crashRounds {
		l.more()
		switch round % 4 {
		case 0: // A replica dies, and another replaces it.
			victim := rand.IntN(len(replicas))
			replicas[victim].kill()
			replicas[victim] = entry.start(flags...)
		case 1: // All sessions end at once.
			endSessions(t, server.URL)
		case 2: // The network fails.
			proxy.close()
			time.Sleep(time.Second)
			proxy.reopen()
		case 3: // PostgreSQL dies, and recovers from its log.
			if err := errors.Join(server.Kill(), server.Start(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
	jobs := l.drain()
	for _, id := range jobs {
		auditJob(t, entry.client, id)
	}
	if found := listJobs(t, entry.client, api.ListJobsParams{}); len(found) != len(jobs) || len(jobs) == 0 {
		t.Errorf("%d commands were accepted, and there are %d jobs", len(jobs), len(found))
	}
	expectQuiet(t, auditDatabase(t, server.URL.String()), replicas...)
	expectShown(t, server.URL, len(jobs))
	t.Logf("%d commands accepted", len(jobs))
}

// auditDatabase returns a function that runs lucius audit on the database.
func auditDatabase(t *testing.T, databaseURL string) func() (out string, clean bool) {
	return func() (string, bool) {
		t.Helper()
		out, err := tryPlain(t, databaseURL, "audit", "--quiescent")
		return out, err == nil
	}
}

// expectQuiet runs lucius audit until it finds nothing wrong and nothing left to do, stops the servers, and runs it again. A
// crash may have left work after a job's end; it is due soon.
func expectQuiet(t *testing.T, audit func() (out string, clean bool), servers ...*process) {
	t.Helper()
	waittest.Until(t, "lucius audit finds no open work", func() bool {
		out, clean := audit()
		return clean || !strings.Contains(out, " 0 violations")
	})
	for _, server := range servers {
		server.terminate()
	}
	if out, clean := audit(); !clean {
		t.Errorf("lucius audit:\n%s", out)
	}
}

// expectShown fails unless the views show that many jobs, all succeeded.
func expectShown(t *testing.T, at *url.URL, jobs int) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	for query, want := range map[string]int{
		"SELECT count(*) FROM lucius.jobs WHERE state = 'SUCCEEDED' AND completed_at >= created_at AND input_ref->>'uri' IS NOT NULL": jobs,
		"SELECT count(DISTINCT job_id) FROM lucius.steps WHERE state = 'SUCCEEDED' AND completed_at <= now()":                         jobs,
		"SELECT count(*) FROM lucius.events WHERE rev = 1 AND event = 'accept' AND entries->0->>'to' IS NOT NULL":                     jobs,
		"SELECT count(DISTINCT job_id) FROM lucius.outbox WHERE state = 'SENT'":                                                       jobs,
	} {
		var found int
		if err := connection.QueryRow(t.Context(), query).Scan(&found); err != nil || found != want {
			t.Errorf("%s: %d, %v; want %d", query, found, err, want)
		}
	}
}

// endSessions ends all sessions of the server but its own.
func endSessions(t *testing.T, at *url.URL) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	if _, err := connection.Exec(t.Context(),
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lucius%'"); err != nil {
		t.Fatal(err)
	}
}

// TestPostgres_SaysWhatIsMissing starts servers on databases that cannot be served.
func TestPostgres_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	server := onPostgres(t)
	fresh, drop, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	unused, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "postgres://lucius:hunter2@" + unused.Addr().String() + "/postgres?sslmode=disable"
	if err := unused.Close(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ url, says string }{
		"an empty database": {fresh, "run lucius postgres migrate"},
		"no server":         {closed, "connection refused"},
		"no URL":            {"postgres://a:hunter2@[", "URL of PostgreSQL is invalid"},
	} {
		out, err := tryPlain(t, test.url, "serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() == 0 {
			t.Errorf("%s: %v", name, err)
		}
		expectSays(t, name, out, test.says)
	}
	out, err := tryPlain(t, fresh, "postgres", "check")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("check of an empty database: %v", err)
	}
	expectSays(t, "check", out, "it has version 0")
	expectSays(t, "migrate", runPlain(t, fresh, "postgres", "migrate"), "migrated the schema from version 0 to")
	expectSays(t, "migrate", runPlain(t, fresh, "postgres", "migrate"), "already")
	expectSays(t, "check", runPlain(t, fresh, "postgres", "check"), "which this program can use")
}

// expectSays fails unless the output has the text, and no password.
func expectSays(t *testing.T, name, out, text string) {
	t.Helper()
	if !strings.Contains(out, text) || strings.Contains(out, "hunter2") {
		t.Errorf("%s says %q, without %q", name, out, text)
	}
}
