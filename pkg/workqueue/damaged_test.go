package workqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// damaged returns another process on the store, which cannot decode the rows of these jobs, and its
// log.
func damaged(t *testing.T, store tablestore.Store, messages ...ledger.Message) (*bundle, *bytes.Buffer) {
	t.Helper()
	hook := func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
		if slices.ContainsFunc(messages, func(m ledger.Message) bool { return r.Key().Partition == tablestore.Escape(m.JobID) }) {
			return tablestore.ErrCorrupt
		}
		return do(ctx)
	}
	var logged bytes.Buffer
	return reopenLogged(t, storetest.Hooked(store, hook), ledger.Config{}, 0, slog.New(slog.NewTextHandler(&logged, nil))), &logged
}

// An item whose job cannot be decoded keeps no claim from waiting, or from the items after it. The
// log names the job.
func TestClaim_GoesPastADamagedItem(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func() tablestore.Store{"atomic": ledgertest.Atomic, "split": ledgertest.Split} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				first := reopen(t, store())
				bad := first.work()
				b, logged := damaged(t, first.store, bad)
				for try := range 3 {
					if views := b.claim(t, "w", fmt.Sprint("empty", try), 1, true); len(views) != 0 {
						t.Errorf("claimed %v", workIDs(views))
					}
				}
				if lines := strings.Count(logged.String(), "\n"); lines != 1 || !strings.Contains(logged.String(), bad.JobID) {
					t.Errorf("the log has %d lines: %s", lines, logged)
				}
				time.Sleep(2 * time.Second)
				good := b.work()
				if views := b.claim(t, "w", "after it", 1, true); len(views) != 1 || views[0].Item.JobID != good.JobID {
					t.Errorf("claimed %v", workIDs(views))
				}
				claimed := make(chan string, 1)
				go func() {
					views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "waits", Max: 1, Wait: time.Minute})
					musttest.NoError(t, err)
					claimed <- strings.Join(workIDs(views), " ")
				}()
				time.Sleep(10 * time.Second)
				late := b.work()
				if got := <-claimed; got != late.OutboxID {
					t.Errorf("the waiting claim got %q", got)
				}
			})
		})
	}
}

// A claim that meets damaged items alone stops looking for a while, as after the downgrade of a
// replica.
func TestClaim_DoesNotReadABacklogOfDamagedItems(t *testing.T) {
	t.Parallel()
	first := setup(t, false)
	var bad []ledger.Message
	for range 40 {
		bad = append(bad, first.work())
	}
	b, logged := damaged(t, first.store, bad...)
	if views := b.claim(t, "w", "1", 2, true); len(views) != 0 {
		t.Errorf("claimed %v", workIDs(views))
	}
	if lines := strings.Count(logged.String(), "\n"); lines > 6 {
		t.Errorf("the log has %d lines", lines)
	}
}

// A waiting claim comes past each backlog of damaged items: each time that it looks, it looks further.
func TestClaim_ComesPastABacklogOfDamagedItems(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := reopen(t, ledgertest.Atomic())
		var bad []ledger.Message
		for range 20 {
			bad = append(bad, first.work())
		}
		good := first.work()
		b, _ := damaged(t, first.store, bad...)
		views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Wait: 10 * time.Second})
		if musttest.NoError(t, err); len(views) != 1 || views[0].Item.WorkID != good.OutboxID {
			t.Errorf("claimed %v", workIDs(views))
		}
	})
}
