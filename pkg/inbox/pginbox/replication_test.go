//go:build integration

package pginbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

// TestOperator_ConfirmsNoDecisionThatAFailoverLoses cancels the waits of commits for a standby
// that does not exist. PostgreSQL then shows the decision, but a failover would lose it.
func TestOperator_ConfirmsNoDecisionThatAFailoverLoses(t *testing.T) {
	t.Parallel()
	at := postgrestest.DatabaseOn(t, postgrestest.Start(t))
	f, app := openInbox(t, pginbox.Options{URL: at, Timeout: waittest.Scale(5 * time.Second)}), connect(t, at)
	execute(t, app, "INSERT INTO lucius.inbox_rights VALUES (session_user, '*')")
	if err := f.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, app, "ALTER SYSTEM SET synchronous_standby_names = 'absent'")
	execute(t, app, "SELECT pg_reload_conf()")
	ctx, cancel := context.WithCancel(t.Context())
	var cancelling sync.WaitGroup
	canceller := connect(t, at)
	cancelling.Go(func() {
		for ctx.Err() == nil {
			_, _ = canceller.Exec(ctx, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(time.Millisecond)
		}
	})
	for {
		id := submit(t, app, `{"tenant_id":"t"}`)
		_, _, err := f.Discard(t.Context(), []string{id}, inbox.Waiting, "")
		if err == nil { // Until the server has read its configuration.
			continue
		}
		if code := apierror.From(err).Code; code != apierror.StoreUnavailable || !strings.Contains(err.Error(), "did not confirm") {
			t.Errorf("%s: %v", code, err)
		}
		break
	}
	cancel()
	cancelling.Wait()
	setUp := connect(t, at)
	execute(t, setUp, "ALTER SYSTEM SET synchronous_standby_names = ''")
	execute(t, setUp, "SELECT pg_reload_conf()")
}
