package census_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// A process that was idle or suspended until its sheet was merged into the base counts
// nothing twice.
func TestReplicas_CountOnceAfterASilence(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]bool{"idle": false, "suspended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(memstore.Options{Split: true})
				a, b := start(t, store, "a"), start(t, store, "b")
				for range 3 {
					a.submit("ocr")
				}
				a.complete(a.claim("ocr", 1, true)[0])
				must(t, a.RunOnce(t.Context()))
				for range 30 {
					time.Sleep(10 * time.Minute)
					if !suspended {
						must(t, a.RunOnce(t.Context()))
					}
					b.held = !b.held // so that b has something to store
					b.submit("embed")
					must(t, b.RunOnce(t.Context()))
				}
				row := tablestore.Key{Table: a.ledger.Tables().Queue, Partition: "census", Row: tablestore.Join("replica", "a")}
				if _, err := store.Get(t.Context(), row); errors.Is(err, tablestore.ErrNotFound) != suspended {
					t.Errorf("the row of a: %v", err)
				}
				a.submit("ocr")
				for range 2 {
					for _, p := range []*process{a, b} {
						must(t, p.RunOnce(t.Context()))
					}
				}
				for _, p := range []*process{a, b} {
					same(t, p, p.name)
					if ocr := p.service("ocr"); p.Report().Accepted.Total != 34 || ocr.Attempts.Total != 1 {
						t.Errorf("%s: %d jobs were accepted, %d attempts ended", p.name, p.Report().Accepted.Total, ocr.Attempts.Total)
					}
				}
			})
		})
	}
}

// The base holds no more than the windows, however many sheets were merged into it.
func TestBase_DoesNotGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		reader := start(t, store, "reader")
		size := func() (size int) {
			rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: reader.ledger.Tables().Queue, Partition: "census"})
			must(t, err)
			for i := range rows {
				if rows[i].Key.Row == "base" {
					size = tablestore.RowBytes(rows[i].Properties)
				}
			}
			return size
		}
		first := 0
		for n := range 20 {
			p := start(t, store, fmt.Sprint("p", n))
			p.submit("ocr")
			p.complete(p.claim("ocr", 1, true)[0])
			must(t, p.RunOnce(t.Context()))
			time.Sleep(3 * time.Hour)
			must(t, reader.RunOnce(t.Context()))
			if n == 0 {
				first = size()
			}
		}
		if last := size(); first == 0 || last > first+20 {
			t.Errorf("the base grew from %d to %d bytes", first, last)
		}
		if got := reader.Report().Accepted.Total; got != 20 {
			t.Errorf("%d jobs were accepted, want 20", got)
		}
	})
}

// noDelete is a store that cannot delete.
type noDelete struct{ tablestore.Store }

func (s noDelete) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if batch[0].Verb == tablestore.Delete {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}

// If the base cannot be written, reports still include the sheets that were read.
func TestRead_ReadsOtherSheetsIfTheBaseCannotBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		a := start(t, store, "a")
		b, err := census.New(census.Config{Store: noDelete{store}, Table: a.ledger.Tables().Queue, Replica: "b"})
		must(t, err)
		a.submit("ocr")
		must(t, a.RunOnce(t.Context()))
		time.Sleep(3 * time.Hour)
		if err := b.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatalf("the base was written: %v", err)
		}
		if got := b.Report().Accepted.Total; got != 1 {
			t.Errorf("%d jobs were accepted, want 1", got)
		}
	})
}

// watched is a store that calls a function before each commit.
type watched struct {
	tablestore.Store
	before func(tablestore.Batch)
}

func (s *watched) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	s.before(batch)
	return s.Store.Commit(ctx, batch)
}

// While a process merges a silent sheet into the base, its reports count neither twice.
func TestReport_DuringAMerge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &watched{Store: memstore.New(memstore.Options{Split: true}), before: func(tablestore.Batch) {}}
		reader := start(t, store, "reader")
		merges := 0
		store.before = func(batch tablestore.Batch) {
			if batch[0].Verb != tablestore.Delete || batch[0].Key.Partition != "census" {
				return
			}
			merges++
			if got := reader.Report().Accepted.Total; got != int64(merges) {
				t.Errorf("merge %d: %d jobs were accepted", merges, got)
			}
		}
		for n := range 3 {
			p := start(t, store, fmt.Sprint("p", n))
			p.submit("ocr")
			must(t, p.RunOnce(t.Context()))
			must(t, reader.RunOnce(t.Context()))
			time.Sleep(3 * time.Hour)
			must(t, reader.RunOnce(t.Context()))
		}
		if merges != 3 {
			t.Errorf("%d merges", merges)
		}
	})
}

// A process has more workers than its sheet lists. The other processes still know for which
// work they poll.
func TestReplicas_KnowAllPolls(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Split: true})
	a, b := start(t, store, "a"), start(t, store, "b")
	a.claim("ocr", 1, false)
	for n := range 600 {
		_, err := a.queue.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: fmt.Sprint("worker", n), RequestID: "1", Max: 1, Services: []string{"embed"},
		})
		must(t, err)
	}
	must(t, a.RunOnce(t.Context()))
	must(t, b.RunOnce(t.Context()))
	if at, ok := b.queue.LastPoll(ocrKind, "tenant"); !ok {
		t.Errorf("no worker is known to have polled since %s", at)
	}
}

// crowd is a queue that these workers poll.
type crowd []workqueue.Poller

func (c crowd) Pollers() []workqueue.Poller      { return c }
func (c crowd) LastPolls() []workqueue.Poller    { return c }
func (crowd) PolledElsewhere([]workqueue.Poller) {}

// A sheet that does not fit into a row loses its workers, not its counts.
func TestStore_FitsInARow(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Split: true})
	p := start(t, store, "p")
	var workers crowd
	for n := range 500 {
		workers = append(workers, workqueue.Poller{
			Owner: fmt.Sprint(n, strings.Repeat("x", 1500)), LastPoll: time.Now().Add(time.Hour),
		})
	}
	crowded, err := census.New(census.Config{Store: store, Table: p.ledger.Tables().Queue, Replica: "crowded", Queue: workers})
	must(t, err)
	must(t, crowded.RunOnce(t.Context()))
}

// Long backlogs of many kinds lose the precision of their ages, not their counts.
func TestStore_FitsInARowWithLongBacklogs(t *testing.T) {
	t.Parallel()
	p := alone(t)
	began := time.Now().Add(-12 * time.Hour)
	for n := range 50 * 900 {
		job := &statemachine.Aggregate{
			Job: statemachine.Job{ID: uuid.NewString(), State: statemachine.JobDispatching, CreatedAt: began, UpdatedAt: began},
			Steps: []statemachine.Step{{
				ID: "s", Type: "T", Service: fmt.Sprint("service-", n%50), State: statemachine.StepAwaitingAck, OutboxID: "o",
			}},
			Outbox: &statemachine.Outbox{Bus: statemachine.BusServiceBus, SentAt: began.Add(time.Duration(n) * time.Second)},
		}
		p.Observe(&statemachine.Aggregate{}, job, []statemachine.Transition{{
			Object: statemachine.ObjectJob, To: string(statemachine.JobQueued),
		}})
	}
	must(t, p.Close(t.Context(), true))
	report := start(t, p.store, "").Report()
	last := began.Add(9 * time.Second) // the first of service-9
	if of := report.Services[49]; of.Queued != 900 || of.Oldest.After(last) || last.Sub(of.Oldest) > 900*50*time.Second/4 {
		t.Errorf("after the restart: %+v, want the oldest at %s", of, last)
	}
}

// The workers on the sheet of a crashed process first stop waiting, and then drop out.
func TestReplicas_ForgetTheWorkersOfACrashedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		a := start(t, store, "a")
		b, err := census.New(census.Config{
			Store: store, Table: a.ledger.Tables().Queue, Replica: "b",
			Queue: crowd{{Owner: "worker", LastPoll: time.Now().Add(time.Millisecond), Waiting: true}},
		})
		must(t, err)
		must(t, b.RunOnce(t.Context()))
		stored := time.Now()
		report := func(workers int, waits bool, asOf time.Time) {
			t.Helper()
			a.walk(nil)
			report := a.Report(ocrKind)
			found := report.Services[0].Workers
			if len(found) != workers || workers > 0 && found[0].Waiting != waits || !report.AsOf.Equal(asOf) {
				t.Errorf("as of %s, want %s: %+v", report.AsOf, asOf, found)
			}
		}
		time.Sleep(5 * time.Second)
		report(1, true, stored)
		time.Sleep(time.Minute)
		report(1, false, time.Now())
		time.Sleep(time.Hour)
		report(0, false, time.Now())
	})
}

// A stored sheet that this program cannot read, such as one of another release, does not keep
// a process from starting: the counts are empty until a walk has counted the live jobs.
func TestOpen_CountsAgainAfterAnUnreadableSheet(t *testing.T) {
	t.Parallel()
	for name, split := range map[string]bool{"of one process": false, "of several": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memstore.New(memstore.Options{Split: split})
			p := start(t, store, "a")
			p.submit("ocr")
			p.walk(nil)
			must(t, p.Close(t.Context(), true))
			rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: p.ledger.Tables().Queue, Partition: "census"})
			must(t, err)
			for _, row := range rows {
				_, err := store.Commit(t.Context(), tablestore.Batch{{
					Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag,
					Properties: tablestore.AppendLarge(nil, "sheet", []byte(`{"live":[]}`)),
				}})
				must(t, err)
			}
			p = start(t, store, "b")
			if report := p.Report(); len(rows) == 0 || report.Exact || report.Jobs[statemachine.JobDispatching] != 0 {
				t.Errorf("%d rows, after the start: %+v", len(rows), report)
			}
			p.walk(nil)
			must(t, p.RunOnce(t.Context()))
			same(t, p, "after a walk")
		})
	}
}
