package workqueue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// steps makes a command of that many steps.
func (b *bundle) steps(t testing.TB, n int) {
	t.Helper()
	cmd := b.command("tenant_a", "ocr", "OCR")
	for i := 1; i < n; i++ {
		next := cmd.Steps[0]
		next.ID, next.Input = fmt.Sprint("step-", i), statemachine.InputPrevious
		cmd.Steps = append(cmd.Steps, next)
	}
	b.ledger.Submit(cmd)
}

// On an atomic store each request that a client or a worker waits for costs one synced
// commit: accept, claim with start, complete.
func TestCost_InSyncedCommits(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Atomic())
	b := reopen(t, store)
	b.work() // The first item of its kind of work is catalogued.
	b.claim(t, "w0", "c0", 1, true)
	requests := 0
	claim := func(most int) []workqueue.View {
		requests++
		return b.claim(t, "w1", fmt.Sprint("c", requests), most, true)
	}
	complete := func(item statemachine.Item) {
		if _, err := b.Complete(t.Context(), item.WorkID, by("w1", "e", item), statemachine.Product{}); err != nil {
			t.Fatal(err)
		}
	}
	commits := func(what string, want int64, do func()) int64 {
		t.Helper()
		counter.Reset()
		do()
		got := counter.Counts().Commits
		if got != want {
			t.Errorf("%s took %d commits, want %d", what, got, want)
		}
		return got
	}
	for n, want := range map[int]int64{1: 3, 3: 7} {
		sum := commits("accept", 1, func() { b.steps(t, n) })
		for range n {
			var views []workqueue.View
			sum += commits("claim with start", 1, func() { views = claim(1) })
			sum += commits("complete", 1, func() { complete(views[0].Item) })
		}
		if sum != want {
			t.Errorf("a job of %d steps took %d commits, want %d", n, sum, want)
		}
	}
	for range 100 {
		b.work()
	}
	commits("a claim of 100 items", 1, func() {
		if views := claim(100); len(views) != 100 {
			t.Errorf("claimed %d", len(views))
		}
	})
}

// The calls that a worker's requests make to the store with a full queue: reads, and writes
// before the answer. These calls limit throughput.
func TestCost(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(ledgertest.Atomic())
	b := reopen(t, store)
	b.work()
	b.claim(t, "w0", "c0", 1, true) // The first claim of a process reads the store.
	for range 20 {
		b.work()
	}
	var item statemachine.Item
	verb := func(do func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error), id string) {
		view, err := do(t.Context(), item.WorkID, by("w1", id, item))
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		item = view.Item
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"a claim", func() { item = b.claim(t, "w1", "c1", 1, false)[0].Item }},
		{"a heartbeat of a claim", func() { verb(beating(b.Queue), "h1") }},
		{"a start", func() { verb(b.Start, "s1") }},
		{"a heartbeat", func() { verb(beating(b.Queue), "h2") }},
		{"the end", func() {
			verb(func(ctx context.Context, id string, r statemachine.ItemRequest) (workqueue.View, error) {
				return b.Complete(ctx, id, r, statemachine.Product{})
			}, "e1")
		}},
		{"a claim of ten", func() { b.claim(t, "w1", "c2", 10, true) }},
	} {
		counter.Reset()
		step.do()
		if got := counter.Counts(); got.Gets+got.Scans > 0 || got.Commits != 1 {
			t.Errorf("%s cost %+v, want one commit and no read", step.name, got)
		}
	}
}

// TestCost_OfADocumentAndTags holds what they add to an accept and to the purge of its job: a row
// for the document and one for each tag. On an atomic store these are part of the one commit; on
// a split store, as docs/run/scale.md states, the document is one more write and the tags, however
// many, are another.
func TestCost_OfADocumentAndTags(t *testing.T) {
	t.Parallel()
	tags := func(n int) statemachine.Tags {
		of := map[string]string{}
		for i := range n {
			of[fmt.Sprint("key", i)] = "value"
		}
		return statemachine.NewTags(of)
	}
	variants := []struct {
		name         string
		docID        string
		tags         statemachine.Tags
		writes, rows int64 // more than for a command without both
	}{
		{"a document", "doc_1", "", 1, 1},
		{"a tag", "", tags(1), 1, 1},
		{"the most tags", "", tags(statemachine.MaxTags), 1, statemachine.MaxTags},
		{"both", "doc_2", tags(statemachine.MaxTags), 2, 1 + statemachine.MaxTags},
	}
	for kind, empty := range map[string]func() tablestore.Store{"atomic": ledgertest.Atomic, "split": ledgertest.Split} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, counter := storetest.Counting(empty())
				b := reopenWith(t, store, ledger.Config{Retention: time.Hour}, 0)
				b.work() // The first item of its kind of work is catalogued.
				cost := func(do func()) storetest.Counts {
					counter.Reset()
					do()
					return counter.Counts()
				}
				life := func(docID string, tags statemachine.Tags) (accept, purge storetest.Counts) {
					cmd := b.command("tenant_a", "ocr", "OCR")
					cmd.Job.DocID, cmd.Job.Tags = docID, tags
					var id string
					accept = cost(func() { id = b.ledger.Submit(cmd) })
					b.ledger.Apply(id, statemachine.Cancel{})
					time.Sleep(2 * time.Hour)
					due := b.ledger.Entries(ledger.Retention, time.Now())
					purge = cost(func() {
						if got := b.ledger.Purge(t.Context(), due); len(got) != 1 || got[0] != (ledger.PurgeResult{Outcome: ledger.PurgeDone}) {
							t.Errorf("purged: %+v", got)
						}
					})
					return accept, purge
				}
				accept, purge := life("", "")
				if kind == "atomic" && (accept.Commits != 1 || purge.Commits != 1) {
					t.Errorf("an accept costs %+v, a purge %+v", accept, purge)
				}
				for _, with := range variants {
					more := func(than storetest.Counts) storetest.Counts {
						than.Ops, than.Batches = than.Ops+with.rows, than.Batches+with.writes
						if kind == "split" {
							than.Commits += with.writes
						}
						return than
					}
					accepted, purged := life(with.docID, with.tags)
					if diff := cmp.Diff(more(accept), accepted); diff != "" {
						t.Errorf("an accept with %s (-want +got):\n%s", with.name, diff)
					}
					if diff := cmp.Diff(more(purge), purged); diff != "" {
						t.Errorf("a purge with %s (-want +got):\n%s", with.name, diff)
					}
				}
			})
		})
	}
}
