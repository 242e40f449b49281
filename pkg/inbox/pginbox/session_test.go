//go:build integration

package pginbox_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/inbox"
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
