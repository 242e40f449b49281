package projectionstest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// spent counts the batches and the reads of a change.
type spent struct {
	Before int // makes the change findable or reserves something
	Commit int
	Shown  int // projected
	After  int // clean-up
	Reads  int
}

// TestCost checks each change against the number of requests in docs/run/scale.md:
// at most one more before the commit than in the layout "ledger", and no other
// that the job waits for.
func TestCost(t *testing.T) {
	t.Parallel()
	inner, counter := storetest.Counting(memstore.New(memstore.Options{Split: true}))
	store := &hooked{Store: inner}
	var mu sync.Mutex
	var now spent
	store.set(func(batch tablestore.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case batch[0].Key.Table == aggregates:
			now.Commit++
		case projected[batch[0].Key.Table]:
			now.Shown++
		case now.Commit == 0:
			now.Before++
		default:
			now.After++
		}
		return nil
	})
	b := &bundle{Ledger: ledgertest.Publishing(t, ledger.Config{
		Store: store, Tables: ledger.Tables{Ledger: aggregates}, Hold: time.Minute, Retention: time.Hour,
		Projector: projections.New(store, projections.Tables{}, nil),
	})}
	b.Submit(command("first")) // The tenant's first is listed as well.
	var jobID string
	for _, step := range []struct {
		what string
		want spent
	}{
		// The entry of a new timer and that of the unfinished projection are in
		// one partition.
		{"accept", spent{Before: 4, Commit: 1, Shown: 3, After: 1}},
		{"published", spent{Before: 1, Commit: 1, Shown: 3, After: 1, Reads: 2}},
		{"ack", spent{Before: 1, Commit: 1, Shown: 2, After: 1, Reads: 1}},
		{"heartbeat", spent{Commit: 1}},
		{"succeeded", spent{Before: 1, Commit: 1, Shown: 3, After: 1, Reads: 2}},
		{"published", spent{Before: 1, Commit: 1, Shown: 3, After: 1, Reads: 2}},
		{"ack", spent{Before: 1, Commit: 1, Shown: 2, After: 1, Reads: 1}},
		// Its announcement is a row of the job.
		{"succeeded", spent{Before: 1, Commit: 2, Shown: 2, After: 2, Reads: 1}},
	} {
		now = spent{}
		counter.Reset()
		if step.what == "accept" {
			jobID = b.Submit(command("next"))
		} else {
			b.live(t, jobID, step.what)
		}
		now.Reads = int(counter.Counts().Gets + counter.Counts().Scans)
		if diff := cmp.Diff(step.want, now); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}
