//go:build integration

package pgstore_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// gate makes writes of rows that begin with "held" wait until open, and writes of rows
// named "fail" and an SQLSTATE fail with that state, a deadlock only twice.
func gate(t *testing.T, url string) (open func()) {
	t.Helper()
	execute(t, url, `
		CREATE TABLE lucius.gate AS SELECT 1;
		CREATE SEQUENCE lucius.deadlocks;
		CREATE FUNCTION lucius.wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.row LIKE 'held%' THEN
				WHILE EXISTS (SELECT FROM lucius.gate) LOOP
					PERFORM pg_sleep(0.01);
				END LOOP;
			ELSIF NEW.row LIKE 'fail%' AND NOT (NEW.row = 'fail40P01' AND nextval('lucius.deadlocks') > 2) THEN
				RAISE EXCEPTION 'it fails' USING ERRCODE = substr(NEW.row, 5, 5);
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER wait BEFORE INSERT OR UPDATE ON lucius.rows FOR EACH ROW EXECUTE FUNCTION lucius.wait()`)
	return func() { execute(t, url, "DELETE FROM lucius.gate") }
}

// endUnderWay ends the sessions of the commits at the gate, also of one that does not sleep at the moment.
const endUnderWay = `
	SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE state = 'active' AND query LIKE '%lucius.apply%' AND pid <> pg_backend_pid() AND datname = current_database()`

const underWay = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"

// awaitUnderWay waits until that many commits are at the gate.
func awaitUnderWay(t *testing.T, url string, n int) {
	t.Helper()
	for found := 0; found < n; {
		query(t, url, "SELECT count(*) "+underWay, &found)
	}
}

// occupy makes a commit of each sender wait until release. It starts them one after the
// other; otherwise one sender could take both.
func occupy(t *testing.T, url string, store *pgstore.Store) (held map[string]chan error, release func()) {
	t.Helper()
	release, held = gate(t, url), map[string]chan error{}
	for i, row := range []string{"held1", "held2"} {
		maps.Copy(held, commits(t, store, tablestore.Put, row))
		awaitUnderWay(t, url, i+1)
	}
	return held, release
}

// An error that any change would get is the outcome of the whole group. After an error that
// may be the fault of one change, the others are written.
func TestCommit_AGroupFailsAsItsErrorSays(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]struct{ of, others error }{
		"53100": {tablestore.ErrNoSpace, tablestore.ErrNoSpace},
		"53200": {tablestore.ErrUnavailable, tablestore.ErrUnavailable},
		"25006": {tablestore.ErrUnavailable, tablestore.ErrUnavailable},
		"42501": {tablestore.ErrDenied, tablestore.ErrDenied},
		"57014": {tablestore.ErrUnavailable, tablestore.ErrUnavailable}, // A statement timeout.
		"22P05": {tablestore.ErrUnavailable, nil},
		"23514": {tablestore.ErrUnavailable, nil},
		"40001": {tablestore.ErrUnavailable, nil},
		"54000": {tablestore.ErrUnavailable, nil},
		"40P01": {nil, nil}, // It is sent again.
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			url := postgrestest.Database(t)
			store := groups(t, url)
			held, release := occupy(t, url, store)
			group := commits(t, store, tablestore.Put, "fail"+code, "a", "b")
			awaitWaiting(store, 3)
			release()
			expectDone(t, held, "held1", "held2")
			for row, outcome := range group {
				wanted := want.others
				if row == "fail"+code {
					wanted = want.of
				}
				if err := <-outcome; !errors.Is(err, wanted) || errors.Is(err, tablestore.ErrUnknown) {
					t.Errorf("%s: %v, want %v", row, err, wanted)
				}
			}
		})
	}
}

// If the session ends during the commit of a group, the outcome of each of its changes is
// unknown.
func TestCommit_NothingIsKnownOfAGroupWhoseSessionEnds(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := groups(t, url)
	outcomes, _ := occupy(t, url, store)
	group := commits(t, store, tablestore.Put, "held3", "a", "b")
	awaitWaiting(store, 3)
	for _, rows := range [][]string{{"held1", "held2"}, {"held3", "a", "b"}} {
		maps.Copy(outcomes, group)
		awaitUnderWay(t, url, 1)
		execute(t, url, endUnderWay)
		for _, row := range rows {
			if err := <-outcomes[row]; !errors.Is(err, tablestore.ErrUnknown) {
				t.Errorf("%s: %v", row, err)
			}
		}
	}
	var written int
	query(t, url, "SELECT count(*) FROM lucius.rows", &written)
	if written != 0 {
		t.Errorf("%d rows were written", written)
	}
}

func TestClose_WithGroupsUnderWay(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := groups(t, url)
	held, _ := occupy(t, url, store)
	waiting := commits(t, store, tablestore.Put, "a", "b")
	awaitWaiting(store, 2)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	for row, outcome := range held {
		if err := <-outcome; !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown) {
			t.Errorf("%s, which was under way: %v", row, err)
		}
	}
	for row, outcome := range waiting {
		if err := <-outcome; !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown) {
			t.Errorf("%s, which was not sent: %v", row, err)
		}
	}
}

// Changes that wait individually for locked rows occupy neither the senders nor the
// connections.
func TestCommit_RowsThatAreKeptOccupyNoSender(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	var rows []string
	for n := range 10 {
		rows = append(rows, fmt.Sprintf("kept%d", n))
	}
	store := groups(t, url, rows...)
	release := hold(t, url, rows...)
	kept := commits(t, store, tablestore.Put, rows...)
	for most := 0; most == 0; {
		query(t, url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()", &most)
	}
	for n := range 10 {
		row := fmt.Sprintf("other%d", n)
		expectDone(t, commits(t, store, tablestore.Put, row), row)
		var senders int
		query(t, url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()", &senders)
		if senders > 4 { // Two for groups, and two for changes alone.
			t.Errorf("%d of 8 connections wait for rows", senders)
		}
	}
	release()
	expectDone(t, kept, rows...)
}
