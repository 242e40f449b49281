package main

import (
	"errors"
	"net/url"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
)

// TestPostgres_InboxIsOfOneLedger serves with a database role without rights on the inbox,
// which is enough without the role api, and with two ledgers in one database.
func TestPostgres_InboxIsOfOneLedger(t *testing.T) {
	t.Parallel()
	server := onPostgres(t)
	admin, err := pgx.Connect(t.Context(), server.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }() // Nothing is lost with it.
	execute := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	execute(`CREATE ROLE lucius_server LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA lucius TO lucius_server;
		GRANT SELECT ON lucius.schema_version TO lucius_server; GRANT SELECT, INSERT, UPDATE, DELETE ON lucius.rows TO lucius_server`)
	own := *server.URL
	own.User = url.UserPassword("lucius_server", "secret")
	refused := func(says string, more ...string) {
		t.Helper()
		for _, command := range [][]string{
			{"postgres", "check"}, {"serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols"},
		} {
			out, err := tryPlain(t, own.String(), append(command, more...)...)
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != cli.ExitFailed {
				t.Errorf("%v: %v", command, err)
			}
			expectSays(t, command[0], out, says)
		}
	}
	serves := func(more ...string) {
		t.Helper()
		runPlain(t, own.String(), append([]string{"postgres", "check"}, more...)...)
		newSite(t).start(append(more, "--storage-backend", config.BackendPostgres, "--postgres-url", own.String())...).terminate()
	}
	refused("GRANT SELECT, UPDATE, DELETE ON lucius.inbox TO lucius_server; GRANT SELECT, INSERT ON lucius.inbox_owner TO lucius_server")
	serves("--roles", "relay,sweeper")
	execute("GRANT SELECT, UPDATE, DELETE ON lucius.inbox TO lucius_server; GRANT SELECT, INSERT ON lucius.inbox_owner TO lucius_server")
	serves()
	serves()
	refused("it belongs to the ledger luciusledger, and LUCIUS_LEDGER_TABLE is second: give this one a database of its own",
		"--ledger-table", "second")
}
