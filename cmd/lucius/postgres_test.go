//go:build integration && !race

package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// leastRights are what docs/run/postgres.md grants the server's role, without those on the inbox.
const leastRights = `CREATE ROLE lucius_server LOGIN PASSWORD 'hunter2'; GRANT USAGE ON SCHEMA lucius TO lucius_server;
	GRANT SELECT ON lucius.migrations TO lucius_server; GRANT SELECT, INSERT, UPDATE, DELETE ON lucius.rows TO lucius_server`

const inboxRights = "GRANT SELECT, UPDATE, DELETE ON lucius.inbox TO lucius_server; GRANT SELECT, INSERT, UPDATE ON lucius.inbox_owner TO lucius_server"

// roleSite is a database whose server has a role of its own.
type roleSite struct {
	t     *testing.T
	admin *pgx.Conn
	url   string // of the server's role
}

func newRoleSite(t *testing.T) *roleSite {
	t.Helper()
	server := onPostgres(t)
	admin, err := pgx.Connect(t.Context(), server.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) }) // Nothing is lost with it.
	own := *server.URL
	own.User = url.UserPassword("lucius_server", "hunter2")
	r := &roleSite{t, admin, own.String()}
	r.execute(leastRights)
	return r
}

func (r *roleSite) execute(sql string) {
	r.t.Helper()
	if _, err := r.admin.Exec(r.t.Context(), sql); err != nil {
		r.t.Fatal(err)
	}
}

// refused fails unless check and serve end with that sentence and status 1.
func (r *roleSite) refused(url, says string, more ...string) {
	r.t.Helper()
	for _, command := range [][]string{
		{"postgres", "check"}, {"serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols"},
	} {
		out, err := tryPlain(r.t, url, append(command, more...)...)
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != cli.ExitFailed {
			r.t.Errorf("%v: %v", command, err)
		}
		expectSays(r.t, command[0], out, says)
	}
}

// serves checks the database, and serves on it.
func (r *roleSite) serves(more ...string) (*site, *process) {
	r.t.Helper()
	runPlain(r.t, r.url, append([]string{"postgres", "check"}, more...)...)
	s := newSite(r.t)
	return s, s.start(append(more, "--storage-backend", config.BackendPostgres, "--postgres-url", r.url)...)
}

// TestPostgres_InboxIsOfOneLedger serves with a database role without rights on the inbox,
// which is enough without the role api, and with two ledgers in one database.
func TestPostgres_InboxIsOfOneLedger(t *testing.T) {
	t.Parallel()
	r := newRoleSite(t)
	r.refused(r.url, inboxRights)
	_, relay := r.serves("--roles", "relay,sweeper")
	relay.terminate()
	r.execute(inboxRights)
	for range 2 {
		_, server := r.serves()
		server.terminate()
	}
	r.refused(r.url, "it belongs to the ledger luciusledger, and LUCIUS_LEDGER_TABLE is second: give this one a database of its own",
		"--ledger-table", "second")
}

// TestPostgres_ARightIsRevoked revokes rights before a server starts, and while one serves: it
// is not ready, clients are told that an operator has to act, and the log says how.
func TestPostgres_ARightIsRevoked(t *testing.T) {
	t.Parallel()
	r := newRoleSite(t)
	r.execute(inboxRights)
	grant := "GRANT UPDATE ON lucius.rows TO lucius_server"
	r.execute("REVOKE UPDATE ON lucius.rows FROM lucius_server")
	r.refused(r.url, "the role lucius_server needs: "+grant)
	r.execute(grant + "; REVOKE USAGE ON SCHEMA lucius FROM lucius_server")
	r.refused(r.url, "the role lucius_server needs: GRANT USAGE ON SCHEMA lucius TO lucius_server")
	r.execute("GRANT USAGE ON SCHEMA lucius TO lucius_server")
	r.refused(r.url+"&default_transaction_read_only=on", "the server is a standby, or read-only")

	s, server := r.serves("--log-level", "warn")
	r.execute("REVOKE INSERT ON lucius.rows FROM lucius_server")
	s.expectUnready()
	submitted, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_9", "refused"))
	if err != nil || submitted.StatusCode() != http.StatusServiceUnavailable ||
		!strings.Contains(string(submitted.Body), "denies the server access until an operator acts") {
		t.Errorf("a command: %v, %s", err, bodyOf(submitted))
	}
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "it denies the server access until an operator acts; the log says why") {
		t.Errorf("readyz: %v, %s", err, bodyOf(ready))
	}
	r.execute("GRANT INSERT ON lucius.rows TO lucius_server")
	s.expectReady()
	server.terminate()
	expectSays(t, "the log", server.said.String(), "GRANT INSERT ON lucius.rows TO lucius_server")
}

// TestPostgres_RowLevelSecurityHidesNothing switches row-level security on, before a server
// starts and while one serves. Without a policy it hides all rows from other roles than the
// owner: the store would look empty.
func TestPostgres_RowLevelSecurityHidesNothing(t *testing.T) {
	t.Parallel()
	r := newRoleSite(t)
	r.execute(inboxRights)
	audited := func(says string) {
		t.Helper()
		out, err := tryPlain(t, r.url, "audit")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() == 0 {
			t.Errorf("audit: %v", err)
		}
		expectSays(t, "audit", out, says)
	}
	audited("no server has used these tables, or their rows are hidden: the table luciusschedule has none")
	r.execute("ALTER TABLE lucius.inbox ENABLE ROW LEVEL SECURITY; ALTER TABLE lucius.migrations ENABLE ROW LEVEL SECURITY")
	r.refused(r.url, "row-level security hides rows of lucius.inbox, lucius.migrations from the role lucius_server: "+
		"ALTER TABLE lucius.inbox DISABLE ROW LEVEL SECURITY, or ALTER ROLE lucius_server BYPASSRLS")
	r.execute("ALTER TABLE lucius.inbox DISABLE ROW LEVEL SECURITY; ALTER TABLE lucius.migrations DISABLE ROW LEVEL SECURITY")

	s, server := r.serves("--log-level", "warn")
	if submitted, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_9", "before")); err != nil ||
		submitted.StatusCode() != http.StatusAccepted {
		t.Fatalf("a command: %v, %s", err, bodyOf(submitted))
	}
	expectSays(t, "audit", runPlain(t, r.url, "audit"), "1 jobs")
	r.execute("ALTER TABLE lucius.rows ENABLE ROW LEVEL SECURITY")
	s.expectUnready()
	listed, err := s.client.ListJobsWithResponse(t.Context(), nil)
	if err != nil || listed.StatusCode() != http.StatusServiceUnavailable {
		t.Errorf("a list: %v, %s", err, bodyOf(listed))
	}
	audited("row-level security hides rows of lucius.rows from the role lucius_server")
	r.execute("ALTER TABLE lucius.rows DISABLE ROW LEVEL SECURITY")
	s.expectReady()
	server.terminate()
	expectSays(t, "the log", server.said.String(), "row-level security hides rows of lucius.rows from the role lucius_server")
}

// TestPostgres_AMigrationThatDoesNotServeIt changes the schema's version while a server runs:
// the server is not ready until the schema is one on which it works.
func TestPostgres_AMigrationThatDoesNotServeIt(t *testing.T) {
	t.Parallel()
	r := newRoleSite(t)
	r.execute(inboxRights)
	s, server := r.serves("--log-level", "warn")
	if out, err := tryPlain(t, r.admin.Config().ConnString(), "postgres", "migrate"); err != nil {
		t.Errorf("migrate a schema that has the version, under a server: %v: %s", err, out)
	}
	r.execute("INSERT INTO lucius.migrations (version, name, hash, serves) SELECT max(version) + 1, 'next', '', max(version) + 1 FROM lucius.migrations")
	s.expectUnready()
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "its schema is one on which this version does not work; the log says which") {
		t.Errorf("readyz: %v, %s", err, bodyOf(ready))
	}
	r.execute("DELETE FROM lucius.migrations WHERE name = 'next'")
	s.expectReady()
	server.terminate()
	expectSays(t, "the log", server.said.String(), "use a newer Lucius")
}

// TestServe_RefusesAStoreThatItWouldNotUse starts a server with the URL of a database, and
// without the backend.
func TestServe_RefusesAStoreThatItWouldNotUse(t *testing.T) {
	t.Parallel()
	out, err := tryPlain(t, "postgres://lucius:hunter2@db/lucius", "serve", "--storage-backend", config.BackendLocal,
		"--data-dir", t.TempDir(), "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != cli.ExitFailed {
		t.Errorf("serve: %v", err)
	}
	expectSays(t, "serve", out, "LUCIUS_POSTGRES_URL is set, but LUCIUS_STORAGE_BACKEND is local")
}

// The alert for an unavailable store needs the requests that fail.
func TestServe_CountsRequestsToAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	database := *onPostgres(t).URL
	proxy := newTCPProxy(t, database.Host)
	database.Host = proxy.listener.Addr().String()
	s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendPostgres, "--postgres-url", database.String())
	s.submit(t)
	proxy.close()
	failed := regexp.MustCompile(`lucius_store_requests_total\{operation="[a-z]+",outcome="unreachable"\} [1-9]`)
	waittest.Until(t, "a request that did not reach the database", func() bool {
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_a", "refused"))
		if err != nil || response.StatusCode() != http.StatusServiceUnavailable {
			t.Fatalf("while the database is away: %v, %s", err, bodyOf(response))
		}
		return failed.MatchString(scrape(t, s))
	})
}
