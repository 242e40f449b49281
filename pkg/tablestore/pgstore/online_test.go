//go:build integration

package pgstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// before returns a database on which the newest migration is missing, and the newest version.
func before(t *testing.T) (url string, newest int) {
	t.Helper()
	url = emptyDatabase(t)
	var sql string
	_, newest, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{Print: func(text string) error { sql = text; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	done, _, _ := strings.Cut(sql, fmt.Sprintf("\nINSERT INTO lucius.migrations (version, name, hash, serves) VALUES (%d, ", newest-1))
	record := sql[len(done):]
	execute(t, url, done+record[:strings.Index(record, ";")+1]+"\nCOMMIT;")
	return url, newest
}

// server is a session of a program of that schema version. It ends with the returned function.
func server(t *testing.T, url string, version int) (end func()) {
	t.Helper()
	session, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Exec(t.Context(), "SELECT pg_advisory_lock_shared($1::integer, $2::integer)", pgstore.VersionLocks, version); err != nil {
		t.Fatal(err)
	}
	return func() { _ = session.Close(t.Context()) } // Nothing is lost with it.
}

// TestMigrate_WhileServersAreConnected refuses to migrate under running servers, unless they
// work on the new schema and the operator says so.
func TestMigrate_WhileServersAreConnected(t *testing.T) {
	t.Parallel()
	url, newest := before(t)
	refused := func(options pgstore.MigrateOptions, want string) {
		t.Helper()
		if _, _, err := pgstore.Migrate(t.Context(), url, options); !errors.Is(err, pgstore.ErrInUse) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", options, err, want)
		}
	}
	endNew, endOld := server(t, url, newest), server(t, url, 1)
	refused(pgstore.MigrateOptions{Online: true}, fmt.Sprintf("those of schema version 1 do not work on version %d: stop them first", newest))
	endOld()
	for err := errors.New(""); err != nil; { // The old server has ended when its session has.
		_, _, err = pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{Online: true})
		if err != nil && !errors.Is(err, pgstore.ErrInUse) {
			t.Fatal(err)
		}
	}
	endNew()
	store := open(t, url)
	if store.SchemaVersion() != newest {
		t.Errorf("the schema has version %d", store.SchemaVersion())
	}
	_ = store.Close() // It never fails.

	url, newest = before(t)
	end := server(t, url, newest)
	defer end()
	refused(pgstore.MigrateOptions{}, fmt.Sprintf("stop those of schema version %d first, or migrate with --online", newest))
}

// TestMigrate_GivesUpOnATableThatIsHeld migrates while a transaction holds a lock on a table, as
// a long report does: the changes of running servers would have to wait as long.
func TestMigrate_GivesUpOnATableThatIsHeld(t *testing.T) {
	t.Parallel()
	url, _ := before(t)
	holder, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(t.Context()) }() // Nothing is lost with it.
	if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE lucius.migrations IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); err == nil || !strings.Contains(err.Error(), "holds a table of Lucius") {
		t.Errorf("a table that is held: %v", err)
	}
}

// TestStore_WorksOnANewerSchemaThatServesIt records a newer migration while a store is open, as
// one would that was run by hand.
func TestStore_WorksOnANewerSchemaThatServesIt(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := open(t, url)
	defer func() { _ = store.Close() }() // It never fails.
	own := store.SchemaVersion()
	execute(t, url, fmt.Sprintf("INSERT INTO lucius.migrations (version, name, hash, serves) VALUES (%d, 'next', '', %d)", own+1, own))
	put := tablestore.Batch{{Verb: tablestore.Put, Key: rowKey("r")}}
	_, err := store.Commit(t.Context(), put)
	if err := errors.Join(err, store.Writable(t.Context()), tryOpen(t, pgstore.Options{URL: url})); err != nil {
		t.Errorf("on a newer schema that serves it: %v", err)
	}
	if from, to, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); from != own+1 || to != own+1 || err != nil {
		t.Errorf("migrate from %d to %d: %v", from, to, err)
	}
	if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{Down: true}); !errors.Is(err, pgstore.ErrNewerSchema) {
		t.Errorf("undo a migration that this program does not know: %v", err)
	}
	execute(t, url, "UPDATE lucius.migrations SET serves = version WHERE name = 'next'")
	if err := store.Writable(t.Context()); !errors.Is(err, tablestore.ErrOtherVersion) || !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("on a newer schema that does not serve it: %v", err)
	}
	execute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lucius' AND datname = current_database()")
	if _, err := store.Get(t.Context(), rowKey("r")); !errors.Is(err, tablestore.ErrOtherVersion) || !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("a read in a new session: %v", err)
	}
	if _, err := store.Commit(t.Context(), put); !errors.Is(err, tablestore.ErrOtherVersion) || errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("a write in a new session: %v", err)
	}
}
