//go:build integration

package pgstore_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A callback that is refused while the purge of its job commits leaves no row.
func TestPurge_OutlivesNoCallback(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := open(t, url)
	defer func() { _ = store.Close() }() // It never fails.
	l := ledgertest.Open(t, ledger.Config{Store: store, Shared: true, Retention: time.Hour})
	id := l.Submit(ledgertest.Command("t", "h"))
	l.Apply(id, statemachine.Cancel{})
	execute(t, url, `
		UPDATE lucius.rows SET props = jsonb_set(props, '{completed_at,t}', '"2026-01-01T00:00:00.000Z"') WHERE row = 'JOB';
		CREATE TABLE lucius.gate AS SELECT 1;
		CREATE FUNCTION lucius.wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			WHILE EXISTS (SELECT FROM lucius.gate) LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER DELETE ON lucius.rows DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (OLD.row = 'JOB') EXECUTE FUNCTION lucius.wait()`)
	purged := make(chan ledger.PurgeResult, 1)
	go func() {
		purged <- l.Purge(t.Context(), []ledger.Entry{{Kind: ledger.Retention, JobID: id, Due: time.Now(), Nonce: "0"}})[0]
	}()
	awaitUnderWay(t, url, 1)
	refused := make(chan error, 1)
	go func() { refused <- l.Reject(t.Context(), id, &ledger.Rejections{More: 1}) }()
	for blocked := 0; blocked == 0 && len(refused) == 0; {
		query(t, url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()", &blocked)
	}
	execute(t, url, "DELETE FROM lucius.gate")
	if err := <-refused; err != nil {
		t.Error(err)
	}
	if result := <-purged; result != (ledger.PurgeResult{Outcome: ledger.PurgeDone}) {
		t.Errorf("purged: %+v", result)
	}
	var left int
	query(t, url, "SELECT count(*) FROM lucius.rows WHERE part = '"+id+"'", &left)
	if left != 0 {
		t.Errorf("%d rows are left", left)
	}
}
