//go:build integration

package pginbox_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main(m)) }

const table = "luciusledger"

// fixture is an inbox in a separate database.
type fixture struct {
	*pginbox.Inbox
	url string
	app *pgx.Conn // an application's
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	at := postgrestest.Database(t)
	f := &fixture{Inbox: openInbox(t, pginbox.Options{URL: at}), url: at, app: connect(t, at)}
	if err := f.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, f.app, "INSERT INTO lucius.inbox_rights VALUES (session_user, '*')")
	return f
}

func openInbox(t *testing.T, options pginbox.Options) *pginbox.Inbox {
	t.Helper()
	if options.Table == "" {
		options.Table = table
	}
	opened, err := pginbox.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

func connect(t *testing.T, at string) *pgx.Conn {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close(context.Background()) }) //nolint:usetesting // Nothing is lost with it.
	return connection
}

// submitter is a connection or a transaction that submits commands.
type submitter interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// complete returns the command with the required fields that it lacks.
func complete(command string) string {
	const required = `"request_type":"r","schema_version":"1","input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"}`
	if !strings.Contains(command, `"payload"`) {
		command = `{"payload":{},` + command[1:]
	}
	return "{" + required + "," + command[1:]
}

func submit(t *testing.T, in submitter, command string) (id string) {
	t.Helper()
	if err := in.QueryRow(t.Context(), "SELECT lucius.submit($1)", complete(command)).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func execute(t *testing.T, in submitter, sql string, args ...any) {
	t.Helper()
	if _, err := in.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// take takes the due commands, gives each the outcome, and returns their ids.
func (f *fixture) take(t *testing.T, outcome inbox.Outcome) (ids []string) {
	t.Helper()
	_, err := f.Take(t.Context(), 100, nil, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
		for i := range taken {
			ids = append(ids, taken[i].ID)
		}
		return slices.Repeat([]inbox.Outcome{outcome}, len(taken))
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// result is what lucius.result returns to the application.
func (f *fixture) result(t *testing.T, in submitter, id string) string {
	t.Helper()
	var shown string
	err := in.QueryRow(t.Context(), "SELECT to_json(r)::text FROM lucius.result($1) r", id).Scan(&shown)
	if errors.Is(err, pgx.ErrNoRows) {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	return shown
}

func TestClaim_MakesOneLedgerTheOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "DELETE FROM lucius.inbox_owner")
	ledgers := []string{"luciusledger", "other"}
	var claims [2]error
	var group sync.WaitGroup
	for i, ledger := range ledgers {
		opened := openInbox(t, pginbox.Options{URL: f.url, Table: ledger})
		group.Go(func() { claims[i] = opened.Claim(t.Context()) })
	}
	group.Wait()
	loser := 0
	if claims[0] == nil {
		loser = 1
	}
	if err := claims[1-loser]; err != nil {
		t.Errorf("the first ledger: %v", err)
	}
	want := "it belongs to the ledger " + ledgers[1-loser] + ", and LUCIUS_LEDGER_TABLE is " + ledgers[loser] + ": give this one a database of its own"
	if err := claims[loser]; !errors.Is(err, pginbox.ErrUnusable) || !strings.Contains(err.Error(), want) {
		t.Errorf("the second ledger: %v, want %s", err, want)
	}
	execute(t, f.app, "DELETE FROM lucius.inbox_owner") // as the error says
	if err := openInbox(t, pginbox.Options{URL: f.url, Table: ledgers[loser]}).Claim(t.Context()); err != nil {
		t.Errorf("an inbox that was released: %v", err)
	}
}

func TestInbox_ReportsAnUnavailableServer(t *testing.T) {
	t.Parallel()
	if _, err := pginbox.Open(t.Context(), pginbox.Options{URL: "postgres://u:secret@[", Table: table}); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("an invalid URL: %v", err)
	}
	away := openInbox(t, pginbox.Options{URL: "postgres://u:p@127.0.0.1:1/x?sslmode=disable"})
	_, taking := away.Take(t.Context(), 1, nil, nil)
	_, counting := away.Survey(t.Context())
	_, _, forgetting := away.Forget(t.Context(), "", 0)
	_, _, listing := away.List(t.Context(), inbox.Refused, 1, "")
	_, _, retrying := away.Retry(t.Context(), nil)
	for i, err := range []error{away.Check(t.Context()), taking, counting, forgetting, listing, retrying} {
		if apierror.From(err).Code != apierror.StoreUnavailable {
			t.Errorf("%d: %v", i, err)
		}
	}
}
