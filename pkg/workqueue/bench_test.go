package workqueue_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// BenchmarkWork measures the operations of a one-step job, on an atomic store in memory:
// the accept, the claim with start, and the completion.
func BenchmarkWork(b *testing.B) {
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	w := reopen(b, store)
	var item lifecycle.Item
	var serial int
	accept := func() {
		if _, err := w.ledger.Accept(b.Context(), w.command(b, "t", "ocr", "OCR")); err != nil {
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
		if _, err := w.Complete(b.Context(), item.WorkID, by("w", "e", item), json.RawMessage(`{"uri":"s3://b/out"}`), nil); err != nil {
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
