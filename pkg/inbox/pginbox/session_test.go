//go:build integration

package pginbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

// Whatever the defaults of the database, a session waits for the disk at each commit, and
// finds functions only in PostgreSQL's own schema.
func TestOperator_DecidesInASafeSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `
		DO $$ BEGIN
			EXECUTE 'ALTER DATABASE ' || current_database() || ' SET synchronous_commit = off';
			EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = public, pg_catalog';
		END $$;
		CREATE FUNCTION lucius.safe() RETURNS boolean LANGUAGE sql RETURN
			current_setting('synchronous_commit') = 'on' AND current_setting('search_path') = 'pg_catalog, pg_temp';
		ALTER TABLE lucius.inbox ADD CHECK (state <> 'accepted' OR lucius.safe())`)
	submit(t, f.app, `{"tenant_id":"t"}`)
	if taken := f.take(t, inbox.Outcome{JobID: "j"}); len(taken) != 1 {
		t.Errorf("took %d commands", len(taken))
	}
}

// Whatever the default isolation of the database, the decision about a command lets the next one
// of its key be tried that another process sets behind it at the same time.
func TestTake_ReleasesAKeyWhateverTheDefaultIsolation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `DO $$ BEGIN
		EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_isolation = $i$repeatable read$i$';
	END $$`)
	first := openInbox(t, pginbox.Options{URL: f.url})
	names := f.names(t, "ab")
	leased, decided := make(chan struct{}), make(chan error, 1)
	decide := make(chan struct{})
	go func() {
		_, err := first.Take(t.Context(), 1, nil, func(context.Context, []inbox.Command) []inbox.Outcome {
			close(leased)
			<-decide
			return []inbox.Outcome{{JobID: "j"}}
		})
		decided <- err
	}()
	waittest.Receive(t, "the lease of a", leased)
	other, err := f.app.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	execute(t, other, "SELECT FROM lucius.inbox WHERE number = 1 FOR SHARE") // as takeCommands does
	execute(t, other, "UPDATE lucius.inbox SET behind = true WHERE number = 2")
	close(decide)
	watcher := connect(t, f.url)
	waittest.Until(t, "the decision about a waits for the lock", func() bool {
		var waits bool
		err := watcher.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'lucius inbox' AND wait_event_type = 'Lock')`).Scan(&waits)
		return err == nil && waits
	})
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := waittest.Receive(t, "the decision about a", decided); err != nil {
		t.Fatal(err)
	}
	if got := takes(t, first, names, nil); got != "b" {
		t.Errorf("took %q, want b once a is decided", got)
	}
}

// Whatever the client encoding that the database gives its sessions, each command is read as it
// was submitted.
func TestTake_ReadsEveryTextWhateverTheClientEncoding(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	submit(t, f.app, `{"tenant_id":"acme","payload":{"price":"5 €"}}`)
	execute(t, f.app, `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET client_encoding = LATIN1'; END $$`)
	_, err := openInbox(t, pginbox.Options{URL: f.url}).Take(t.Context(), 1, nil,
		func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
			if body := string(taken[0].Body); !strings.Contains(body, `"5 €"`) {
				t.Errorf("took %s", body)
			}
			return []inbox.Outcome{{JobID: "j"}}
		})
	if err != nil {
		t.Error(err)
	}
}
