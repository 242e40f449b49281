//go:build integration

package pgsession_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/pgsession"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main(m)) }

// A statement whose context ends is cancelled. The server answers that it rolled the transaction
// back, and the pool keeps its sessions.
func TestCommit_KeepsTheSessionOfACancelledStatement(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	pool, err := pgsession.Open(t.Context(), pgsession.Options{URL: url, Connections: 1, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	watcher, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Close(t.Context()) }() // It has read what it should.
	pid := func() (pid int) {
		if err := pool.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := pid()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent bool
	done := make(chan error, 1)
	go func() {
		var err error
		sent, err = pool.Commit(t.Context(), func(session *pgxpool.Conn) error {
			_, err := session.Exec(ctx, "SELECT pg_sleep(600)")
			return err
		})
		done <- err
	}()
	waittest.Until(t, "the server executes the statement", func() bool {
		const query = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1"
		var sleeps *bool
		err := watcher.QueryRow(t.Context(), query, before).Scan(&sleeps)
		return err == nil && sleeps != nil && *sleeps
	})
	cancel()
	err = waittest.Receive(t, "the cancelled commit", done)
	if !sent || !pgsession.RolledBack(err) {
		t.Errorf("sent is %v: %v", sent, err)
	}
	if after := pid(); after != before {
		t.Errorf("session %d was replaced by %d", before, after)
	}
}

// After a switchover, a name may lead to the old primary for a while, which is a standby now. No
// session stays there after it has refused a write. This database reports its transactions as
// read-only, as a standby does.
func TestCommit_LeavesAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	operator, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Close(t.Context()) }() // Nothing is lost with it.
	readOnly := func(verb string) {
		sql := "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' " + verb + "'; END $$"
		if _, err := operator.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgsession.Open(t.Context(), pgsession.Options{URL: url, Connections: 2, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	readOnly("SET default_transaction_read_only = on")
	const write = "CREATE TABLE public.written ()"
	err = pool.Exec(t.Context(), write)
	if answer, answered := errors.AsType[*pgconn.PgError](err); !answered || answer.Code != "25006" || !pgsession.RolledBack(err) {
		t.Errorf("a write to a read-only server: %v", err)
	}
	readOnly("RESET default_transaction_read_only")
	if err := pool.Exec(t.Context(), write); err != nil {
		t.Errorf("a write once the name leads to the primary: %v", err)
	}
}

// The check of an idle session that a slow server answers late would cost the session. A request
// with more time than the pool's timeout is one to a server that is known to be slow.
func TestOpen_DoesNotCheckTheSessionsOfASlowServer(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	pool, err := pgsession.Open(t.Context(), pgsession.Options{URL: "postgres://127.0.0.1:1/x", Connections: 1, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, test := range map[string]struct {
		idle, within time.Duration
		want         bool
	}{
		"idle":                {time.Minute, timeout, true},
		"just used":           {time.Millisecond, timeout, false},
		"idle, a slow server": {time.Minute, 2 * timeout, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.within)
		if got := pool.Config().ShouldPing(ctx, pgxpool.ShouldPingParams{IdleDuration: test.idle}); got != test.want {
			t.Errorf("%s: checked is %v", name, got)
		}
		cancel()
	}
}

// PostgreSQL greets with a warning if the library of the database's collation was updated.
func TestOpen_ADatabaseWithAnOldCollation(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	operator, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = operator.Exec(t.Context(), "UPDATE pg_database SET datcollversion = 'old' WHERE datname = current_database()")
	if err = errors.Join(err, operator.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	pool, err := pgsession.Open(t.Context(), pgsession.Options{URL: url, Connections: 1, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
}
