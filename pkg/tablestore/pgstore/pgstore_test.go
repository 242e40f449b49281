//go:build integration

package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest/linearizability"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main(m)) }

// open opens a store, which must succeed.
func open(t testing.TB, url string) *pgstore.Store {
	t.Helper()
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Connections: 8})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestStore(t *testing.T) {
	t.Parallel()
	conform(t, postgrestest.Server, 20)
}

// conform runs the suite on one database of the server: each check has separate tables.
func conform(t *testing.T, server *postgres.Server, effort int) {
	t.Helper()
	url := postgrestest.DatabaseOn(t, server)
	var checks atomic.Int64
	features := storetest.Features{Atomic: true, Durable: true, Walks: true, Notifies: true, Effort: effort}
	storetest.Run(t, features, func(t testing.TB) storetest.Harness {
		n := checks.Add(1)
		return storetest.Harness{
			Store:  open(t, url),
			Tables: [2]string{fmt.Sprintf("one%d", n), fmt.Sprintf("two%d", n)},
			Reopen: func(t testing.TB) tablestore.Store { return open(t, url) },
		}
	})
}

func TestStore_OnTheOldestPostgreSQL(t *testing.T) {
	t.Parallel()
	old := postgrestest.StartOldest(t)
	if !strings.HasPrefix(old.Version, "15.") {
		t.Errorf("it is PostgreSQL %s", old.Version)
	}
	conform(t, old, 5)
}

func TestStore_IsLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		for _, flaky := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, flaky %t", seed, flaky), func(t *testing.T) {
				t.Parallel()
				store := tablestore.Store(open(t, postgrestest.Database(t)))
				if flaky {
					store = linearizability.Flaky(store, seed)
				}
				linearizability.Check(t, linearizability.Config{Store: store, Table: "linear", Seed: seed})
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestMigrate_OneProcessAtATime(t *testing.T) {
	t.Parallel()
	url, drop, err := postgrestest.Server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = drop(context.WithoutCancel(t.Context())) }() // The server goes with it.
	if _, err := pgstore.Open(t.Context(), pgstore.Options{URL: url}); !errors.Is(err, pgstore.ErrOlderSchema) {
		t.Errorf("an empty database: %v", err)
	}
	var group errgroup.Group
	for range 5 {
		group.Go(func() error {
			_, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	store := open(t, url)
	if from, to, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); err != nil || from != to || store.SchemaVersion() != to {
		t.Errorf("the schema has version %d of %d: %v", store.SchemaVersion(), to, err)
	}
	_ = store.Close() // It never fails.
	execute(t, url, "INSERT INTO lucius.migrations (version, name, hash, serves) SELECT max(version) + 1, '', '', max(version) + 1 FROM lucius.migrations")
	if _, err := pgstore.Open(t.Context(), pgstore.Options{URL: url}); !errors.Is(err, pgstore.ErrNewerSchema) {
		t.Errorf("a newer schema: %v", err)
	}
	if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); !errors.Is(err, pgstore.ErrNewerSchema) {
		t.Errorf("migrate a newer schema: %v", err)
	}
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	if _, err := connection.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestCommit_IsUnknownIfItsSessionEnds ends the session during a commit: the outcome is
// unknown. Reads use another session.
func TestCommit_IsUnknownIfItsSessionEnds(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := open(t, url)
	defer func() { _ = store.Close() }() // It never fails.
	key := tablestore.Key{Table: "one", Partition: "p", Row: "held"}
	put := tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: tablestore.Properties{{Name: "n", Value: tablestore.Int(1)}}}}
	if _, err := store.Commit(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	gate(t, url)
	done := make(chan error, 1)
	go func() {
		_, err := store.Commit(t.Context(), put)
		done <- err
	}()
	awaitUnderWay(t, url, 1)
	execute(t, url, endUnderWay)
	if err := <-done; !errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("a session that is ended: %v", err)
	}
	execute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lucius' AND datname = current_database()")
	if row, err := store.Get(t.Context(), key); err != nil || row.Properties.Get("n").Int() != 1 {
		t.Errorf("a read whose session was ended: %+v, %v", row, err)
	}
}

// TestCommit_WaitsNoLongerThanItsTimeout lets a commit time out while another waits for the
// only connection: the server answers that it cancelled the first, and the second was not sent.
func TestCommit_WaitsNoLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Connections: 1, Timeout: waittest.Scale(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // It never fails.
	put := tablestore.Batch{{Verb: tablestore.Put, Key: tablestore.Key{Table: "one", Partition: "p", Row: "held"}}}
	if _, err := store.Commit(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	gate(t, url)
	done := make(chan error, 1)
	go func() {
		_, err := store.Commit(t.Context(), put)
		done <- err
	}()
	awaitUnderWay(t, url, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := store.Commit(ctx, put); !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("without a connection: %v", err)
	}
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("a commit under way: %v", err)
	}
}

func TestOpen_RefusesADatabaseThatCannotHoldEveryText(t *testing.T) {
	t.Parallel()
	base := postgrestest.Database(t)
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	at.Path += "_latin"
	name := strings.TrimPrefix(at.Path, "/")
	execute(t, base, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	defer execute(t, base, "DROP DATABASE "+name+" WITH (FORCE)")
	latin := at.String()
	if _, _, err := pgstore.Migrate(t.Context(), latin, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.Open(t.Context(), pgstore.Options{URL: latin}); err == nil || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("a database in LATIN1: %v", err)
	}
}

// This database reports its transactions as read-only, as a standby does.
func TestOpen_RefusesAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	at := postgrestest.Database(t)
	execute(t, at, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$")
	if _, err := pgstore.Open(t.Context(), pgstore.Options{URL: at}); err == nil || !strings.Contains(err.Error(), "name the primary") {
		t.Errorf("a read-only server: %v", err)
	}
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: at, ReadOnly: true})
	if err != nil {
		t.Fatalf("to read only: %v", err)
	}
	_ = store.Close() // It never fails.
}

// TestCommit_RunsNoFunctionOfAnotherRole creates functions that match better than those of
// PostgreSQL, as a role with the right to create in the schema public can. It also calls
// lucius.apply in a session in which that schema comes first.
func TestCommit_RunsNoFunctionOfAnotherRole(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	execute(t, url, `
		CREATE FUNCTION public.cardinality(integer[]) RETURNS integer LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'public.cardinality ran as %', current_user; END $$;
		CREATE FUNCTION public.array_to_string(integer[], text) RETURNS text LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'public.array_to_string ran as %', current_user; END $$`)
	store := groups(t, url, "there")
	outcomes := commits(t, store, tablestore.Insert, "there")
	if err := <-outcomes["there"]; !errors.Is(err, tablestore.ErrConflict) {
		t.Errorf("an insert of a row that exists: %v", err)
	}
	execute(t, url, `SET search_path = public, pg_catalog; SELECT lucius.apply('{one}', '{p}', '{new}', '{""}', '{e}', '{"{}"}', 1, 0, 0, 0)`)
	var unsafe string
	query(t, url, `SELECT coalesce(string_agg(p.proname, ', '), '') FROM pg_proc p
		WHERE p.pronamespace = 'lucius'::regnamespace AND p.prosqlbody IS NULL
		AND NOT coalesce(p.proconfig @> '{"search_path=pg_catalog, pg_temp"}', false)`, &unsafe)
	if unsafe != "" {
		t.Errorf("functions without a search_path: %s", unsafe)
	}
}

func TestViews_ShowADocumentThatIsNoJSONB(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := open(t, url)
	defer func() { _ = store.Close() }()               // It never fails.
	document := `{"uri":"a\u0000\ud800","n":1e999999}` // Valid JSON.
	if _, err := store.Commit(t.Context(), tablestore.Batch{{
		Verb: tablestore.Put, Key: tablestore.Key{Table: "luciusledger", Partition: "j", Row: "JOB"},
		Properties: tablestore.Properties{
			{Name: "state", Value: tablestore.String("QUEUED")}, {Name: "input_ref", Value: tablestore.String(document)},
		},
	}}); err != nil {
		t.Fatal(err)
	}
	connection, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	var shown string
	if err := connection.QueryRow(t.Context(), "SELECT input_ref::text FROM lucius.jobs").Scan(&shown); err != nil || shown != document {
		t.Errorf("%s, %v", shown, err)
	}
}
