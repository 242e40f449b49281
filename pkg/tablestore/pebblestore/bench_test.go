package pebblestore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

func openBench(b *testing.B) *pebblestore.Store {
	b.Helper()
	store, err := pebblestore.Open(pebblestore.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	return store
}

// content is a row of some 700 bytes, like that of a job or step.
func content(n int64) tablestore.Properties {
	return tablestore.Properties{
		{Name: "rev", Value: tablestore.Int(n)},
		{Name: "state", Value: tablestore.String("IN_PROGRESS")},
		{Name: "updated_at", Value: tablestore.Time(time.UnixMilli(1_700_000_000_000 + n))},
		{Name: "payload", Value: tablestore.String(string(make([]byte, 600)))},
	}
}

func jobKey(job int64, row string) tablestore.Key {
	return tablestore.Key{Table: "luciusledger", Partition: fmt.Sprintf("job-%012d", job), Row: row}
}

// acceptance returns a batch of five new rows in one partition, like that of an
// accepted command.
func acceptance(job int64) (batch tablestore.Batch) {
	for i := range 5 {
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: jobKey(job, fmt.Sprintf("ROW:%d", i)), Properties: content(job),
		})
	}
	return batch
}

// BenchmarkCommit measures acknowledged commits of new jobs by concurrent
// writers, each of which waits for its own commit.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			store := openBench(b)
			var jobs atomic.Int64
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range writers {
				group.Go(func() {
					for job := jobs.Add(1); job <= int64(b.N); job = jobs.Add(1) {
						if _, err := store.Commit(b.Context(), acceptance(job)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// BenchmarkCheck measures the check of the directory that commits sharing a
// sync make twice.
func BenchmarkCheck(b *testing.B) {
	store := openBench(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := store.Check(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet measures point reads of rows written some time before.
func BenchmarkGet(b *testing.B) {
	store := openBench(b)
	const jobs = 10_000
	for job := range int64(jobs) {
		if _, err := store.Commit(b.Context(), acceptance(job)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := store.Get(b.Context(), jobKey(next.Add(7919)%jobs, "ROW:3")); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkScan measures the scan of one job's partition.
func BenchmarkScan(b *testing.B) {
	store := openBench(b)
	const jobs = 10_000
	for job := range int64(jobs) {
		if _, err := store.Commit(b.Context(), acceptance(job)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			query := tablestore.Query{Table: "luciusledger", Partition: jobKey(next.Add(7919)%jobs, "").Partition}
			if page, err := store.Scan(b.Context(), query); err != nil || len(page.Rows) != 5 {
				b.Error(len(page.Rows), err)
			}
		}
	})
}

// BenchmarkQueue measures the scan of a queue's head for a claim, after many items were
// added and removed there.
func BenchmarkQueue(b *testing.B) {
	for _, removed := range []int{0, 1_000, 100_000} {
		b.Run(fmt.Sprintf("removed=%d", removed), func(b *testing.B) {
			store := openBench(b)
			item := func(i int) tablestore.Key {
				return tablestore.Key{Table: "queue", Partition: "ready", Row: tablestore.Join(tablestore.Pad(i, 13), "nonce")}
			}
			for i := 0; i < removed; i += tablestore.MaxBatchOps {
				var added, gone tablestore.Batch
				for j := range tablestore.MaxBatchOps {
					added = append(added, tablestore.Op{Verb: tablestore.Insert, Key: item(i + j), Properties: content(1)[:3]})
					gone = append(gone, tablestore.Op{Verb: tablestore.Discard, Key: item(i + j)})
				}
				for _, batch := range []tablestore.Batch{added, gone} {
					if _, err := store.Commit(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
			}
			for b.Loop() {
				if _, err := store.Scan(b.Context(), tablestore.Query{Table: "queue", Partition: "ready", Limit: 16}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
