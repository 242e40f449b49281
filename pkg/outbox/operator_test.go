package outbox_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A retry of all reads only the jobs that it may retry, if the live jobs are known by their
// traits. Otherwise it reads all live jobs, with the same result.
func TestOperator_RetryReadsTheJobsThatMayMatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Atomic())
		b := setupOn(t, store, statemachine.BusServiceBus)
		const sent, pending = 50, 3
		known := map[string]search.Traits{}
		for n := range sent + pending + 1 {
			id := b.accept()
			row := b.ledger.Read(id).Outbox
			events := []statemachine.Event{
				statemachine.Published{OutboxID: row.ID, AttemptNo: 1},
				statemachine.Ack{StepID: "one", Pair: statemachine.Pair{AttemptNo: 1, LeaseID: row.LeaseID}},
				statemachine.Stall{StepID: "one", AttemptNo: 1}, // FAILED_RETRY
			}
			if n < sent {
				events = events[:1+n%2] // Some are in progress.
			} else if n < sent+pending {
				events = nil
			}
			for _, event := range events {
				b.ledger.Send(id, event)
			}
			known[id] = search.TraitsOf(b.ledger.Read(id))
		}
		index := func(all bool) search.LiveIndex {
			return func(wanted func(*search.Traits) bool) (iter.Seq[[]string], bool) {
				var ids []string
				for id, traits := range known {
					if wanted(&traits) {
						ids = append(ids, id)
					}
				}
				return slices.Values([][]string{ids}), all
			}
		}
		for name, test := range map[string]struct {
			index search.LiveIndex
			reads int
		}{
			"no index":                     {nil, sent + pending + 1},
			"an index that does not know":  {index(false), sent + pending + 1},
			"an index that knows all jobs": {index(true), pending + 1},
		} {
			operator := outbox.NewOperator(b.ledger.Ledger, test.index)
			counter.Reset()
			report, err := operator.Retry(t.Context(), outbox.RetryRequest{Filter: search.Filter{UnchangedSince: time.Now().Add(-time.Hour)}}) // None is that old.
			counts := counter.Counts()
			lists := 0
			if test.reads > sent {
				lists = b.ledger.Shards()
			}
			if err != nil || report.Matched != 0 || counts.Gets+counts.Scans != int64(test.reads+lists) {
				t.Errorf("%s: %+v, %v, read %+v, want %d jobs", name, report, err, counts, test.reads)
			}
			report, err = operator.Retry(t.Context(), outbox.RetryRequest{})
			if err != nil || report.Matched != pending+1 || report.Retried != pending+1 {
				t.Errorf("%s: %+v, %v", name, report, err)
			}
		}
	})
}

// A retry of all goes past a job whose rows cannot be decoded.
func TestOperator_RetryGoesPastADamagedJob(t *testing.T) {
	t.Parallel()
	bad := ""
	hook := func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
		if bad != "" && r.Key().Partition == tablestore.Escape(bad) {
			return tablestore.ErrCorrupt
		}
		return do(ctx)
	}
	b := setupOn(t, storetest.Hooked(ledgertest.Split(), hook), statemachine.BusServiceBus)
	b.accept()
	damaged := b.accept()
	b.accept()
	bad = damaged
	report, err := outbox.NewOperator(b.ledger.Ledger, nil).Retry(t.Context(), outbox.RetryRequest{})
	if err != nil || report.Retried != 2 {
		t.Errorf("%+v, %v", report, err)
	}
}

// A retry of more rows than it can change while its client waits ends in time, and says that there
// are more.
func TestOperator_RetryEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := false
		store := storetest.BeforeCommit(ledgertest.Atomic(), func(tablestore.Batch) error {
			if slow {
				time.Sleep(time.Second)
			}
			return nil
		})
		b := setupOn(t, store, statemachine.BusServiceBus)
		const rows = 3000
		for range rows {
			b.accept()
		}
		operator := outbox.NewOperator(b.ledger.Ledger, nil)
		slow = true
		began := time.Now()
		report, err := operator.Retry(t.Context(), outbox.RetryRequest{})
		if err != nil || !report.More || report.Matched == 0 || report.Retried != report.Matched || report.Matched == rows {
			t.Errorf("%+v, %v", report, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("answered after %s", took)
		}
		slow = false
		report, err = operator.Retry(t.Context(), outbox.RetryRequest{})
		if err != nil || report.More || report.Retried != rows {
			t.Errorf("without a lack of time: %+v, %v", report, err)
		}
	})
}
