//go:build integration

package pgstore_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// BenchmarkCommit measures changes of a job's size by concurrent writers: the time of each
// change, and the server's CPU time, log and flushes per change.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			url := postgrestest.Database(b)
			store := open(b, url)
			defer func() { _ = store.Close() }() // It never fails.
			connection, err := pgx.Connect(b.Context(), url)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = connection.Close(b.Context()) }() // Nothing is lost with it.
			log, flushes, cpu := serverCost(b, connection)
			b.ResetTimer()
			var next atomic.Int64
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					for job := next.Add(1); job <= int64(b.N); job = next.Add(1) {
						changeJob(b, store, fmt.Sprintf("job-%09d", job))
					}
				})
			}
			group.Wait()
			b.StopTimer()
			changes := float64(2 * b.N)
			logAfter, flushesAfter, cpuAfter := serverCost(b, connection)
			b.ReportMetric((logAfter-log)/changes, "log-B/change")
			b.ReportMetric((flushesAfter-flushes)/changes, "flushes/change")
			b.ReportMetric((cpuAfter-cpu)/changes, "server-µs/change")
			b.ReportMetric(changes/b.Elapsed().Seconds(), "changes/s")
		})
	}
}

// changeJob makes two changes: the second replaces most rows of the first.
func changeJob(b *testing.B, store *pgstore.Store, job string) {
	b.Helper()
	var rows []tablestore.Key
	for _, row := range []string{"ITEM", "JOB", "OUTBOX", "STEP"} {
		rows = append(rows, tablestore.Key{Table: "jobs", Partition: job, Row: row})
	}
	timer := tablestore.Key{Table: "schedule", Partition: "shard", Row: job}
	text := tablestore.Properties{{Name: "text", Value: tablestore.String(strings.Repeat(job, 50))}}
	var first, second tablestore.Batch
	for _, key := range rows {
		first = append(first, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: text})
	}
	put := tablestore.Batch{{Verb: tablestore.Put, Key: timer, Properties: text[:0]}}
	etags, err := store.CommitAll(b.Context(), []tablestore.Batch{first, put}, nil)
	if err != nil {
		b.Error(err)
		return
	}
	for i, key := range rows {
		second = append(second, tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: etags[0][i], Properties: text})
		event := tablestore.Key{Table: "jobs", Partition: job, Row: "EVENT:" + strconv.Itoa(i)}
		second = append(second, tablestore.Op{Verb: tablestore.Insert, Key: event, Properties: text})
	}
	if _, err := store.CommitAll(b.Context(), []tablestore.Batch{second, {{Verb: tablestore.Discard, Key: timer}}}, nil); err != nil {
		b.Error(err)
	}
}

// serverCost returns how many bytes of log the server has written, how often it has flushed
// it, and how much CPU time, in µs, its living processes have used.
func serverCost(b *testing.B, connection *pgx.Conn) (log, flushes, cpu float64) {
	b.Helper()
	if err := connection.QueryRow(b.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0', "+
		"(SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_get_io() WHERE object = 'wal')").Scan(&log, &flushes); err != nil {
		b.Fatal(err)
	}
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // The process has ended.
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if string(fields[1]) == strconv.Itoa(postgrestest.Server.Owned().Pid) {
			user, _ := strconv.Atoi(string(fields[11]))
			system, _ := strconv.Atoi(string(fields[12]))
			cpu += float64(user+system) * 10_000 // A tick is 10 ms.
		}
	}
	return log, flushes, cpu
}
