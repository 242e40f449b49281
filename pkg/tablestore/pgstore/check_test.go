//go:build integration

package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// newRole creates a role without rights, and returns its URL of the database. It goes before
// the database.
func newRole(t *testing.T, database string) (role, at string) {
	t.Helper()
	role = "role_" + strings.ToLower(rand.Text())
	execute(t, database, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		connection, err := pgx.Connect(ctx, database)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = connection.Close(ctx) }() // Nothing is lost with it.
		if _, err := connection.Exec(ctx, "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	own, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	own.User = url.UserPassword(role, "secret")
	return role, own.String()
}

// documented returns the statements that docs/run/postgres.md shows under a heading, with the role
// of the test instead of theirs.
func documented(t *testing.T, heading, role string) []string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/run/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var statements []string
	for _, block := range strings.Split(section, "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		block = regexp.MustCompile(`lucius_(server|report)`).ReplaceAllString(block, role)
		statements = append(statements, strings.SplitAfter(strings.TrimSpace(block), ";\n")...)
	}
	if len(statements) == 0 {
		t.Fatalf("there is no SQL under %q", heading)
	}
	return statements
}

// needs returns what the error says that the role needs, or the error if it says something else.
func needs(err error) string {
	if !errors.Is(err, pgstore.ErrUnusable) || !errors.Is(err, tablestore.ErrDenied) {
		return "not the error of missing rights: " + errorText(err)
	}
	_, statements, _ := strings.Cut(err.Error(), " needs: ")
	return statements
}

func errorText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func tryOpen(t *testing.T, options pgstore.Options) error {
	t.Helper()
	store, err := pgstore.Open(t.Context(), options)
	if err == nil {
		_ = store.Close() // It never fails.
	}
	return err
}

// TestOpen_NamesTheRightsThatAreMissing takes each right away from a role that has those of the
// documentation, and gives it back by the statement that the error names.
func TestOpen_NamesTheRightsThatAreMissing(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	role, at := newRole(t, database)
	server, relay, audit := pgstore.Options{URL: at, Inbox: true}, pgstore.Options{URL: at}, pgstore.Options{URL: at, ReadOnly: true}
	all := "GRANT USAGE ON SCHEMA lucius TO ROLE; GRANT SELECT ON lucius.migrations TO ROLE; " +
		"GRANT SELECT, INSERT, UPDATE, DELETE ON lucius.rows TO ROLE; " +
		"GRANT SELECT, UPDATE, DELETE ON lucius.inbox TO ROLE; GRANT SELECT, INSERT, UPDATE ON lucius.inbox_owner TO ROLE"
	if got, want := needs(tryOpen(t, server)), strings.ReplaceAll(all, "ROLE", role); got != want {
		t.Errorf("a role without rights needs\n%s, want\n%s", got, want)
	}
	for _, statement := range documented(t, "Rights", role) {
		if !strings.HasPrefix(statement, "CREATE ROLE") {
			execute(t, database, statement)
		}
	}
	if err := tryOpen(t, server); err != nil {
		t.Errorf("with the rights of the documentation: %v", err)
	}
	execute(t, database, "REVOKE EXECUTE ON FUNCTION lucius.apply, lucius.clear FROM PUBLIC")
	if err := pgstore.Grant(t.Context(), database, role); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		right        string
		relay, audit bool // whether a process needs it that does not take from the inbox, or only reads
	}{
		{"USAGE ON SCHEMA lucius", true, true},
		{"SELECT ON lucius.migrations", true, true},
		{"SELECT ON lucius.rows", true, true},
		{"INSERT ON lucius.rows", true, false},
		{"UPDATE ON lucius.rows", true, false},
		{"DELETE ON lucius.rows", true, false},
		{"EXECUTE ON FUNCTION lucius.apply", true, false},
		{"EXECUTE ON FUNCTION lucius.clear", true, false},
		{"SELECT ON lucius.inbox", false, false},
		{"UPDATE ON lucius.inbox", false, false},
		{"DELETE ON lucius.inbox", false, false},
		{"SELECT ON lucius.inbox_owner", false, false},
		{"INSERT ON lucius.inbox_owner", false, false},
		{"UPDATE ON lucius.inbox_owner", false, false},
	} {
		execute(t, database, "REVOKE "+test.right+" FROM "+role)
		grant := "GRANT " + test.right + " TO " + role
		if got := needs(tryOpen(t, server)); got != grant {
			t.Errorf("a server needs %s, want %s", got, grant)
		}
		for name, process := range map[string]struct {
			options pgstore.Options
			needs   bool
		}{"a relay": {relay, test.relay}, "an audit": {audit, test.audit}} {
			if err := tryOpen(t, process.options); (err != nil) != process.needs || err != nil && needs(err) != grant {
				t.Errorf("%s without %s: %v", name, test.right, err)
			}
		}
		execute(t, database, grant)
	}
	for _, options := range []pgstore.Options{server, relay, audit} {
		if err := tryOpen(t, options); err != nil {
			t.Error(err)
		}
	}
}

// TestStore_TellsOfARightThatIsRevoked revokes rights while a store is open: nothing is written,
// which is known, and Writable names the statement that helps.
func TestStore_TellsOfARightThatIsRevoked(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	role, at := newRole(t, database)
	for _, statement := range documented(t, "Rights", role)[1:] {
		execute(t, database, statement)
	}
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: at, Inbox: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // It never fails.
	insert := func(row string) error {
		_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: rowKey(row)}})
		return err
	}
	if err := errors.Join(insert("a"), store.Writable(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, right := range []string{"INSERT ON lucius.rows", "UPDATE ON lucius.inbox"} {
		execute(t, database, "REVOKE "+right+" FROM "+role)
		err := store.Writable(t.Context())
		if got := needs(err); got != "GRANT "+right+" TO "+role || !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("without %s: %v", right, err)
		}
		if err := insert("b"); right == "INSERT ON lucius.rows" &&
			(!errors.Is(err, tablestore.ErrDenied) || !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown)) {
			t.Errorf("a write without a right: %v", err)
		}
		execute(t, database, "GRANT "+right+" TO "+role)
	}
	execute(t, database, "REVOKE SELECT ON lucius.rows FROM "+role)
	if _, err := store.Get(t.Context(), rowKey("a")); !errors.Is(err, tablestore.ErrDenied) || !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("a read without a right: %v", err)
	}
	execute(t, database, "GRANT SELECT ON lucius.rows TO "+role)
	if err := errors.Join(insert("c"), store.Writable(t.Context())); err != nil {
		t.Errorf("with all rights again: %v", err)
	}
}

func TestWritable_TellsOfAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	store := open(t, database)
	defer func() { _ = store.Close() }() // It never fails.
	execute(t, database, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$")
	execute(t, database, "SET default_transaction_read_only = off; SELECT pg_terminate_backend(pid) FROM pg_stat_activity "+
		"WHERE application_name = 'lucius' AND datname = current_database()")
	for {
		err := store.Writable(t.Context())
		if err == nil { // The session that has ended did not answer.
			continue
		}
		if !errors.Is(err, tablestore.ErrUnavailable) || !strings.Contains(err.Error(), "name the primary") {
			t.Errorf("a read-only server: %v", err)
		}
		return
	}
}

// TestMigrate_SaysWhichRoleMay migrates with roles that may not, and with one that owns the
// schema and may create no other.
func TestMigrate_SaysWhichRoleMay(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*postgres.Server{"newest": postgrestest.Server, "oldest": postgrestest.StartOldest(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, drop, err := server.CreateDatabase(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = drop(context.WithoutCancel(t.Context())) }) // The server goes with it.
			var inDatabase, admin string
			query(t, database, "SELECT current_database(), current_user", &inDatabase, &admin)
			role, at := newRole(t, database)
			refused := func(want string) {
				t.Helper()
				if _, _, err := pgstore.Migrate(t.Context(), at, pgstore.MigrateOptions{}); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
			refused("the role " + role + " may not create the schema lucius: migrate with another role, or " +
				"GRANT CREATE ON DATABASE " + inDatabase + " TO " + role)
			execute(t, database, "CREATE SCHEMA lucius")
			refused("the role " + role + " does not own the schema lucius: migrate with the role " + admin)
			execute(t, database, "ALTER SCHEMA lucius OWNER TO "+role)
			if _, _, err := pgstore.Migrate(t.Context(), at, pgstore.MigrateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
