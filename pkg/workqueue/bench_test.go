package workqueue_test

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// BenchmarkWork measures the operations of a one-step job, on an atomic store in memory:
// the accept, the claim with start, and the completion.
func BenchmarkWork(b *testing.B) {
	store, counter := storetest.Counting(ledgertest.Atomic())
	w := reopen(b, store)
	var item statemachine.Item
	var serial int
	accept := func() {
		if _, err := w.ledger.Accept(b.Context(), w.command("t", "ocr", "OCR")); err != nil {
			b.Fatal(err)
		}
	}
	claim := func() {
		serial++
		views, err := w.Claim(b.Context(), workqueue.ClaimRequest{
			Owner: "w", RequestID: "c" + strconv.Itoa(serial), Max: 1, Start: true,
		})
		if err != nil || len(views) != 1 {
			b.Fatalf("%d items, %v", len(views), err)
		}
		item = views[0].Item
	}
	complete := func() {
		if _, err := w.Complete(b.Context(), item.WorkID, by("w", "e", item), statemachine.Product{OutputRef: json.RawMessage(`{"uri":"s3://b/out"}`)}); err != nil {
			b.Fatal(err)
		}
	}
	accept() // The first item of a kind of work costs more.
	claim()
	complete()
	for _, part := range []struct {
		name              string
		before, do, after func()
	}{
		{"accept", func() {}, accept, func() { claim(); complete() }},
		{"claim", accept, claim, complete},
		{"complete", func() { accept(); claim() }, complete, func() {}},
	} {
		b.Run(part.name, func(b *testing.B) {
			var commits int64
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				part.before()
				counter.Reset()
				b.StartTimer()
				part.do()
				b.StopTimer()
				commits += counter.Counts().Commits
				part.after()
				b.StartTimer()
			}
			b.ReportMetric(float64(commits)/float64(b.N), "commits/op")
		})
	}
}

// BenchmarkPurge measures the purge of a page of 16 one-step jobs.
func BenchmarkPurge(b *testing.B) {
	store, counter := storetest.Counting(ledgertest.Atomic())
	w := reopenWith(b, store, ledger.Config{Retention: time.Minute}, 0)
	pages := make([][]ledger.Entry, b.N)
	for i := range pages {
		for range 16 {
			pages[i] = append(pages[i], endedLongAgo(b, w, store))
		}
	}
	var commits int64
	b.ReportAllocs()
	b.ResetTimer()
	for _, entries := range pages {
		counter.Reset()
		for _, result := range w.ledger.Purge(b.Context(), entries) {
			if result != (ledger.PurgeResult{Outcome: ledger.PurgeDone}) {
				b.Fatalf("%+v", result)
			}
		}
		commits += counter.Counts().Commits
	}
	b.ReportMetric(float64(commits)/float64(b.N), "commits/op")
}

// endedLongAgo makes a job that ended an hour ago, and returns the entry that purges it.
func endedLongAgo(b *testing.B, w *bundle, store tablestore.Store) ledger.Entry {
	b.Helper()
	accepted, err := w.ledger.Accept(b.Context(), w.command("t", "ocr", "OCR"))
	if err != nil {
		b.Fatal(err)
	}
	id := accepted.Job.ID
	views, err := w.Claim(b.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: id, Max: 1, Start: true})
	if err != nil || len(views) != 1 {
		b.Fatalf("%d items, %v", len(views), err)
	}
	item := views[0].Item
	if _, err := w.Complete(b.Context(), item.WorkID, by("w", "e", item), statemachine.Product{OutputRef: json.RawMessage(`{"uri":"s3://b/out"}`)}); err != nil {
		b.Fatal(err)
	}
	row, err := store.Get(b.Context(), tablestore.Key{Table: "luciusledger", Partition: id, Row: "JOB"})
	if err != nil {
		b.Fatal(err)
	}
	ended := tablestore.Now().Add(-time.Hour)
	for i := range row.Properties {
		if row.Properties[i].Name == "completed_at" {
			row.Properties[i].Value = tablestore.Time(ended)
		}
	}
	op := tablestore.Op{Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag, Properties: row.Properties}
	if _, err := store.Commit(b.Context(), tablestore.Batch{op}); err != nil {
		b.Fatal(err)
	}
	return ledger.Entry{Kind: ledger.Retention, JobID: id, Due: ended, Nonce: "0"}
}
