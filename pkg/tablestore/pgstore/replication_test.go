package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
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
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Timeout: 5 * time.Second})
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
