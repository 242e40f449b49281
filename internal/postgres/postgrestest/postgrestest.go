// Package postgrestest gives tests a PostgreSQL: one that all of a package share, or one of
// their own, which they may stop.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// Server is the PostgreSQL while [Main] runs.
var Server *postgres.Server

// Main runs the tests of a package with a PostgreSQL, that of LUCIUS_TEST_POSTGRES_URL or a
// new one, and returns the exit code.
func Main(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "postgres-test-") // Another user than root has to enter it.
	if err == nil {
		Server, err = postgres.Open(context.Background(), dir, os.Getenv("LUCIUS_TEST_POSTGRES_URL"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	err = errors.Join(Server.Stop(), os.RemoveAll(dir), goleak.Find())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Start starts a PostgreSQL for this test alone.
func Start(t testing.TB) *postgres.Server {
	t.Helper()
	return start(t, func(ctx context.Context, dir string) (*postgres.Server, error) { return postgres.Open(ctx, dir, "") })
}

// StartOldest is [Start] for the oldest PostgreSQL that Lucius runs on.
func StartOldest(t testing.TB) *postgres.Server {
	t.Helper()
	return start(t, postgres.OpenOldest)
}

func start(t testing.TB, open func(ctx context.Context, dir string) (*postgres.Server, error)) *postgres.Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "postgres-test-") //nolint:usetesting // Another user than root has to enter it.
	if err != nil {
		t.Fatal(err)
	}
	server, err := open(t.Context(), dir)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Stop(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Standby starts a standby of the server for this test alone. The server restarts for it.
func Standby(t testing.TB, server *postgres.Server) *postgres.Server {
	t.Helper()
	return start(t, server.Standby)
}

// Database returns the URL of a database with the schema, for this test alone.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseOn(t, Server)
}

// DatabaseOn is [Database] on another server.
func DatabaseOn(t testing.TB, server *postgres.Server) string {
	t.Helper()
	url, drop, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return url
}
