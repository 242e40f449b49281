package ledger_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// What a request costs must not grow with the number of jobs: these tests
// count the store's calls.
func TestCost(t *testing.T) { //nolint:tparallel // The parts share one counter.
	t.Parallel()
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	l := ledgertest.Publishing(t, ledger.Config{Store: store, Shards: 4, Hold: time.Minute})
	for i := range 200 {
		l.Submit(command(string(rune('a'+i%26)) + time.Duration(i).String()))
	}

	t.Run("a command costs one write and no scan", func(t *testing.T) {
		counter.Reset()
		l.Submit(command("one more"))
		if spent := counter.Counts(); spent.Scans != 0 || spent.Commits != 1 {
			t.Errorf("an accept cost %+v", spent)
		}
	})
	t.Run("so does one in a line, with a read of LINE", func(t *testing.T) {
		for _, name := range []string{"first", "second", "third"} {
			counter.Reset()
			cmd := command(name)
			cmd.Job.Order = statemachine.Order{Key: "doc", Mode: statemachine.OrderFIFO, Blocks: true}
			l.Submit(cmd)
			if spent := counter.Counts(); spent.Gets != 1 || spent.Scans != 0 || spent.Commits != 1 {
				t.Errorf("an accept cost %+v", spent)
			}
		}
		l.Submit(command("yet another"))
	})
	t.Run("a change costs one write", func(t *testing.T) {
		message := l.Handoff.Last()
		counter.Reset()
		event := statemachine.Ack{StepID: message.StepID, Pair: ledgertest.Pair(message)}
		if _, err := l.Change(t.Context(), message.JobID, event); err != nil {
			t.Fatal(err)
		}
		if spent := counter.Counts(); spent.Scans != 0 || spent.Commits != 1 {
			t.Errorf("an ACK cost %+v", spent)
		}
	})
	t.Run("and one short scan by a process that did not make the last one", func(t *testing.T) {
		message := l.Handoff.Last()
		other, err := ledger.Open(t.Context(), ledger.Config{Store: store, Bus: statemachine.BusServiceBus, Shards: 4})
		if err != nil {
			t.Fatal(err)
		}
		counter.Reset()
		event := statemachine.Heartbeat{StepID: message.StepID, Pair: ledgertest.Pair(message)}
		if _, err := other.Change(t.Context(), message.JobID, event); err != nil {
			t.Fatal(err)
		}
		if spent := counter.Counts(); spent.Scans != 1 || spent.Commits != 1 || spent.RowsRead > 5 {
			t.Errorf("a heartbeat cost %+v", spent)
		}
	})
	t.Run("a due entry costs one write and one short scan", func(t *testing.T) {
		var due []ledger.Entry
		for shard := range l.Shards() {
			entries, _, err := l.Due(t.Context(), ledger.Timer, shard, time.Now().Add(time.Hour), 1, "")
			if err != nil {
				t.Fatal(err)
			}
			due = append(due, entries...)
		}
		counter.Reset()
		if standing, _, err := l.Fire(t.Context(), due[0], statemachine.Cancel{}); err != nil || standing != ledger.Acted {
			t.Fatal(standing, err)
		}
		if spent := counter.Counts(); spent.Scans != 1 || spent.Commits != 1 {
			t.Errorf("it cost %+v", spent)
		}
	})
	t.Run("a refused callback costs one write and one short scan", func(t *testing.T) {
		job := l.Read(l.Handoff.Last().JobID)
		counter.Reset()
		if err := l.Reject(t.Context(), &job.Job, rejection("lease")); err != nil {
			t.Fatal(err)
		}
		if spent := counter.Counts(); spent.Gets != 0 || spent.Scans != 1 || spent.Commits != 1 || spent.RowsRead != 0 {
			t.Errorf("it cost %+v", spent)
		}
	})
	t.Run("a pass with nothing due reads one empty page per kind and shard", func(t *testing.T) {
		counter.Reset()
		for _, kind := range ledger.Kinds {
			for shard := range l.Shards() {
				if _, _, err := l.Due(t.Context(), kind, shard, time.Now(), 256, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		spent := counter.Counts()
		if spent.Scans != int64(len(ledger.Kinds)*l.Shards()) || spent.RowsRead != 0 {
			t.Errorf("a pass cost %+v", spent)
		}
	})
}
