//go:build integration

package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// TestGet_ShowsNoCommitThatOnlyThePrimaryHas makes a commit wait for a standby that does
// not exist. Once the wait ends, PostgreSQL shows the commit's row, but the store does not
// until a standby has it.
func TestGet_ShowsNoCommitThatOnlyThePrimaryHas(t *testing.T) {
	t.Parallel()
	primary := postgrestest.Start(t)
	url := postgrestest.DatabaseOn(t, primary)
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Timeout: waittest.Scale(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // It never fails.
	await := func(standbys string) {
		execute(t, url, "ALTER SYSTEM SET synchronous_standby_names = '"+standbys+"'")
		execute(t, url, "SELECT pg_reload_conf()")
	}
	await("absent")
	put := tablestore.Batch{{Verb: tablestore.Put, Key: rowKey("r")}}
	for err == nil { // Until the server has read its configuration.
		_, err = store.Commit(t.Context(), put)
	}
	if !errors.Is(err, tablestore.ErrUnknown) {
		t.Errorf("a commit that waits for a standby: %v", err)
	}
	var visible int
	query(t, url, "SELECT count(*) FROM lucius.rows", &visible)
	if _, err := store.Get(t.Context(), rowKey("r")); visible != 1 || !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("of %d rows that no standby has, the store shows one: %v", visible, err)
	}
	await("")
	for err := tablestore.ErrUnavailable; err != nil; {
		if _, err = store.Get(t.Context(), rowKey("r")); err != nil && !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// TestCommit_AcknowledgesNothingThatAFailoverLoses cancels the waits of commits for a standby
// that is away, as administrators do to free sessions: PostgreSQL then answers a commit with a
// warning and success. After a failover to the standby, each acknowledged row is there.
func TestCommit_AcknowledgesNothingThatAFailoverLoses(t *testing.T) {
	t.Parallel()
	primary := postgrestest.Start(t)
	standby := postgrestest.Standby(t, primary)
	url := primary.URL.String()
	if _, _, err := pgstore.Migrate(t.Context(), url, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	execute(t, url, "ALTER SYSTEM SET synchronous_standby_names = '"+postgres.StandbyName+"'")
	execute(t, url, "SELECT pg_reload_conf()")
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Connections: 8, Timeout: waittest.Scale(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // It never fails.
	var acknowledged []tablestore.Key
	insert := func(row string) error {
		_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: rowKey(row)}})
		if err == nil {
			acknowledged = append(acknowledged, rowKey(row))
		}
		return err
	}
	if err := insert("there"); err != nil {
		t.Fatal(err)
	}
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	stop := cancelWaits(t, url)
	for n := range 5 {
		row := fmt.Sprintf("away%d", n)
		if err := insert(row); err == nil || n == 0 && !errors.Is(err, tablestore.ErrUnknown) {
			t.Errorf("a commit whose wait was cancelled: %v", err)
		}
		if _, err := store.Get(t.Context(), rowKey(row)); err == nil {
			acknowledged = append(acknowledged, rowKey(row))
		}
		if err := store.Confirm(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("confirmed without the standby: %v", err)
		}
	}
	stop()
	if err := errors.Join(primary.Kill(), standby.Start(t.Context()), standby.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
	after := open(t, standby.URL.String())
	defer func() { _ = after.Close() }() // It never fails.
	if err := after.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	for _, key := range acknowledged {
		if _, err := after.Get(t.Context(), key); err != nil {
			t.Errorf("acknowledged before the failover: %v", err)
		}
	}
}

// cancelWaits cancels each wait for a standby until stop.
func cancelWaits(t *testing.T, url string) (stop func()) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			_, _ = connection.Exec(ctx, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(time.Millisecond)
		}
		_ = connection.Close(context.WithoutCancel(ctx)) // Nothing is lost with it.
	})
	return func() { cancel(); done.Wait() }
}
