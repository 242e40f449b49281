//go:build integration

package pgstore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

var update = flag.Bool("update", false, "write the hashes of the migrations")

// TestMigrations_AreFrozen fails if a migration was edited. Databases record the hashes of the
// migrations that were applied to them, and are refused after an edit. Until the first release
// a migration may be edited in place: -update then writes the new hashes. From the first release
// on, a change is a new migration, and -update only adds its line.
func TestMigrations_AreFrozen(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var sums strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), filepath.Base(file))
	}
	if *update {
		if err := os.WriteFile("testdata/migrations.sums", []byte(sums.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	frozen, err := os.ReadFile("testdata/migrations.sums")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(frozen), sums.String()); diff != "" {
		t.Errorf("migrations were edited, and databases to which they were applied will be refused: put the change into a new migration, "+
			"or, if no release has the old text, go test ./pkg/tablestore/pgstore -run Frozen -update\n%s", diff)
	}
}

// A migration whose first line names the oldest version that it serves names one up to its own.
func TestMigrations_ServeAVersion(t *testing.T) {
	t.Parallel()
	for i, serves := range pgstore.Serves() {
		if serves < 1 || serves > i+1 {
			t.Errorf("migration %d serves the versions from %d", i+1, serves)
		}
	}
}

// emptyDatabase returns the URL of a database without the schema.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	url, drop, err := postgrestest.Server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = drop(context.WithoutCancel(t.Context())) }) // The server goes with it.
	return url
}

func TestMigrate_RefusesASchemaWithOtherMigrations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ change, want string }{
		"an edited one":            {"UPDATE lucius.migrations SET hash = 'x' WHERE version = 3", "migration 0003_inbox was applied with other statements"},
		"from before the releases": {"DROP TABLE lucius.migrations", "DROP SCHEMA lucius CASCADE, which deletes its jobs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := postgrestest.Database(t)
			execute(t, url, test.change)
			_, _, migrating := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{})
			_, opening := pgstore.Open(t.Context(), pgstore.Options{URL: url})
			for _, err := range []error{migrating, opening} {
				if !errors.Is(err, pgstore.ErrOtherSchema) || !strings.Contains(errorText(err), test.want) {
					t.Errorf("%v, want %s", err, test.want)
				}
			}
		})
	}
}

// TestMigrate_PrintsWhatItRuns runs the printed statements on another database, as a database
// administrator can.
func TestMigrate_PrintsWhatItRuns(t *testing.T) {
	t.Parallel()
	empty, migrated := emptyDatabase(t), postgrestest.Database(t)
	var printed, all, none string
	to := func(text *string) func(string) error {
		return func(sql string) error { *text = sql; return nil }
	}
	if _, _, err := pgstore.Migrate(t.Context(), empty, pgstore.MigrateOptions{Print: to(&printed)}); err != nil {
		t.Fatal(err)
	}
	var exists bool
	query(t, empty, "SELECT to_regnamespace('lucius') IS NOT NULL", &exists)
	if exists {
		t.Error("it was not only printed")
	}
	execute(t, empty, printed)
	var want, got string
	const state = "SELECT string_agg(object, ', ' ORDER BY object) || (SELECT string_agg(hash, ',' ORDER BY version) FROM lucius.migrations) FROM ("
	query(t, migrated, state+pgstore.Present+")", &want)
	query(t, empty, state+pgstore.Present+")", &got)
	if want != got {
		t.Error(cmp.Diff(want, got))
	}
	for text, options := range map[*string]pgstore.MigrateOptions{&all: {All: true, Print: to(&all)}, &none: {Print: to(&none)}} {
		if _, _, err := pgstore.Migrate(t.Context(), migrated, options); err != nil {
			t.Errorf("%+v: %v", text, err)
		}
	}
	if all != printed || none != "" {
		t.Errorf("of a schema with the version, it printed %q, and with all %d bytes of %d", none, len(all), len(printed))
	}
	failed := errors.New("printer")
	if _, _, err := pgstore.Migrate(t.Context(), migrated, pgstore.MigrateOptions{
		All: true, Print: func(string) error { return failed },
	}); !errors.Is(err, failed) {
		t.Errorf("a print that fails: %v", err)
	}
}

func TestMigrate_RefusesToUndoTheFirstSchema(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"the first": postgrestest.Database(t), "none": emptyDatabase(t)} {
		if name == "the first" {
			execute(t, url, "DELETE FROM lucius.migrations WHERE version > 4")
		}
		if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{Down: true}); !errors.Is(err, pgstore.ErrNoWayDown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpen_NamesTheObjectsThatAreMissing removes each object in turn.
func TestOpen_NamesTheObjectsThatAreMissing(t *testing.T) {
	t.Parallel()
	objects := pgstore.Objects()
	url := postgrestest.Database(t)
	connection, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	rows, err := connection.Query(t.Context(), "SELECT object FROM ("+pgstore.Present+") ORDER BY object COLLATE \"C\"")
	if err != nil {
		t.Fatal(err)
	}
	present, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(present, objects); diff != "" {
		t.Errorf("the objects of the migrations are not those of a database (begin each statement at the begin of a line):\n%s", diff)
	}
	for _, object := range objects {
		kind, name, _ := strings.Cut(object, " lucius.")
		if name == "migrations" || name == "rows" { // Without them, there is nothing to check.
			continue
		}
		execute(t, url, "ALTER "+kind+" lucius."+name+" RENAME TO away")
		if _, err := pgstore.Open(t.Context(), pgstore.Options{URL: url}); !errors.Is(err, pgstore.ErrUnusable) ||
			!strings.Contains(err.Error(), "lacks "+object+":") {
			t.Errorf("without %s: %v", object, err)
		}
		execute(t, url, "ALTER "+kind+" lucius.away RENAME TO "+name)
	}
	if err := tryOpen(t, pgstore.Options{URL: url}); err != nil {
		t.Error(err)
	}
}
