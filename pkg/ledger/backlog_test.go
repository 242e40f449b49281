package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A job that waits in the pull queue has no schedule entry on an atomic store. So a
// pass of the relay, the sweeper or any other loop reads no row of a backlog, at any
// time, also in a process that did not make it.
func TestCost_OfABacklogInThePullQueue(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Atomic())
	openQueue := func() *ledger.Ledger {
		l, err := ledger.Open(t.Context(), ledger.Config{Store: store, Bus: statemachine.BusQueue, Shards: 4})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	maker := openQueue()
	for i := range 200 {
		if _, err := maker.Accept(t.Context(), command(fmt.Sprint("waits ", i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*ledger.Ledger{maker, openQueue()} {
		counter.Reset()
		for _, kind := range ledger.Kinds {
			for shard := range l.Shards() {
				entries, _, err := l.Due(t.Context(), kind, shard, time.Now().Add(10000*time.Hour), 256, "")
				if err != nil || len(entries) > 0 {
					t.Errorf("%s %d has %d entries, %v", kind, shard, len(entries), err)
				}
			}
		}
		if spent := counter.Counts(); spent.RowsRead != 0 || spent.Commits != 0 {
			t.Errorf("looking at every deadline cost %+v", spent)
		}
	}
}
