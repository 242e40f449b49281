package search_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// A row that was not stored for two hours is deleted, and the totals lack its events; until
// then they count. The process that deletes it adopts what it has counted by day. A process that was
// idle or suspended meanwhile counts nothing twice.
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
				musttest.NoError(t, a.RunOnce(t.Context()))
				stored := tablestore.Now()
				want := func(p *process, accepted, attempts int64) {
					t.Helper()
					if got, ended := p.Report().Accepted.Total, p.service("ocr").Attempts.Total; got != accepted || ended != attempts {
						t.Errorf("%s: %d jobs were accepted, %d attempts ended, want %d and %d", p.name, got, ended, accepted, attempts)
					}
					if ocr, ended := p.service("ocr"), p.Report().InDay[statemachine.JobSucceeded]; ended != 1 || ocr.TookInDay.Count != 1 || ocr.WaitedInDay.Count != 1 {
						t.Errorf("%s: in a day %d jobs ended, attempts took %+v and waited %+v", p.name, ended, ocr.TookInDay, ocr.WaitedInDay)
					}
				}
				for n := range int64(30) {
					time.Sleep(10 * time.Minute)
					if !suspended {
						musttest.NoError(t, a.RunOnce(t.Context()))
					}
					b.submit("embed")
					musttest.NoError(t, b.RunOnce(t.Context()))
					if gone := suspended && tablestore.Now().Sub(stored) > 2*time.Hour; gone {
						want(b, n+1, 0)
						if got := b.Report().Complete; got.Before(stored) {
							t.Errorf("b misses nothing since %s, but the events of a until %s", got, stored)
						}
					} else {
						want(b, n+4, 1)
					}
				}
				row := tablestore.Key{Table: a.ledger.Tables().Queue, Partition: "counts", Row: "a"}
				if _, err := store.Get(t.Context(), row); errors.Is(err, tablestore.ErrNotFound) != suspended {
					t.Errorf("the row of a: %v", err)
				}
				a.submit("ocr")
				for range 2 {
					for _, p := range []*process{a, b} {
						musttest.NoError(t, p.RunOnce(t.Context()))
					}
				}
				for _, p := range []*process{a, b} {
					want(p, 34, 1)
				}
			})
		})
	}
}

// Old rows that cannot be deleted count no more than deleted ones.
func TestRead_LeavesOutOldRowsThatCannotBeDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		a := start(t, store, "a")
		noDelete, faults := storetest.Faulty(store)
		b := search.NewCounts(search.CountsConfig{Store: noDelete, Table: a.ledger.Tables().Queue, Replica: "b"})
		a.submit("ocr")
		musttest.NoError(t, a.RunOnce(t.Context()))
		time.Sleep(3 * time.Hour)
		faults.Plan(storetest.Fault{Call: storetest.CommitCall, Nth: 2}) // The first one stores the row of b.
		if err := b.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatalf("the row was deleted: %v", err)
		}
		if got := b.Report().Accepted.Total; got != 0 {
			t.Errorf("%d jobs were accepted, want none", got)
		}
	})
}

// A process has more workers than its row lists. The other processes still know for which
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
		musttest.NoError(t, err)
	}
	musttest.NoError(t, a.RunOnce(t.Context()))
	musttest.NoError(t, b.RunOnce(t.Context()))
	if at, ok := b.queue.LastPoll(ocrKind, "tenant"); !ok {
		t.Errorf("no worker is known to have polled since %s", at)
	}
}

// A worker is unmatched if its last poll is for nothing that exists.
func TestReport_NamesWorkersThatPollForNothing(t *testing.T) {
	t.Parallel()
	c := start(t, memstore.New(memstore.Options{}), "a")
	poll := func(owner string, services, stepTypes []string) {
		_, err := c.queue.Claim(t.Context(), workqueue.ClaimRequest{Owner: owner, RequestID: "1", Max: 1, Services: services, StepTypes: stepTypes})
		musttest.NoError(t, err)
	}
	poll("mended", []string{"extrakt"}, nil)
	poll("mended", []string{"ocr"}, nil)
	poll("any", nil, nil)
	poll("half", []string{"extrakt", "ocr"}, nil)
	poll("wrong service", []string{"extrakt"}, nil)
	poll("wrong type", []string{"ocr"}, []string{"EMBED"})
	var unmatched []string
	for _, poller := range c.Report(ocrKind).Unmatched {
		unmatched = append(unmatched, poller.Owner)
	}
	if want := []string{"wrong type", "wrong service"}; !slices.Equal(unmatched, want) {
		t.Errorf("%q poll for nothing that exists, want %q", unmatched, want)
	}
}

// manyPollers is a queue that these workers poll.
type manyPollers []workqueue.Poller

func (c manyPollers) Pollers() []workqueue.Poller      { return c }
func (c manyPollers) LastPolls() []workqueue.Poller    { return c }
func (manyPollers) PolledElsewhere([]workqueue.Poller) {}

// Figures that do not fit into a row lose their workers, not their counts.
func TestStore_FitsInARow(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Split: true})
	p := start(t, store, "p")
	var workers manyPollers
	for n := range 500 {
		workers = append(workers, workqueue.Poller{
			Owner: fmt.Sprint(n, strings.Repeat("x", 1500)), LastPoll: time.Now().Add(time.Hour),
		})
	}
	manyPollersed := search.NewCounts(search.CountsConfig{Store: store, Table: p.ledger.Tables().Queue, Replica: "manyPollersed", Queue: workers})
	musttest.NoError(t, manyPollersed.RunOnce(t.Context()))
}

// Figures of many kinds that do not fit into a row lose the counts by day, and then those by protocol.
func TestStore_FitsInARowWithManyKinds(t *testing.T) {
	t.Parallel()
	p := start(t, memstore.New(memstore.Options{Split: true}), "a")
	now := time.Now()
	for n := range 60 * 100 {
		at := now.Add(-time.Duration(n/100) * time.Minute)
		job := &statemachine.Aggregate{
			Job: statemachine.Job{ID: uuid.NewString(), ProtocolID: "p", State: statemachine.JobDispatching, UpdatedAt: at},
			Steps: []statemachine.Step{{
				ID: "s", Type: strings.Repeat("T", 200), Service: fmt.Sprint(strings.Repeat("s", 2000), n%100),
				State: statemachine.StepAwaitingAck, OutboxID: "o",
			}},
			Outbox: &statemachine.Outbox{Bus: statemachine.BusServiceBus, SentAt: at},
		}
		p.Observe(&statemachine.Aggregate{}, job, []statemachine.Transition{{Object: statemachine.ObjectJob}})
	}
	musttest.NoError(t, p.RunOnce(t.Context()))
	b := start(t, p.store, "b")
	if report := b.Report(); report.Accepted.Total != 6000 || len(report.Services) != 100 || len(b.ReportOf("p").Services) != 0 {
		t.Errorf("%d were accepted, %d kinds are counted", report.Accepted.Total, len(report.Services))
	}
}

// The workers in the row of a crashed process first stop waiting, and then drop out.
func TestReplicas_ForgetTheWorkersOfACrashedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		a := start(t, store, "a")
		b := search.NewCounts(search.CountsConfig{
			Store: store, Table: a.ledger.Tables().Queue, Replica: "b",
			Queue: manyPollers{{Owner: "worker", LastPoll: time.Now().Add(time.Millisecond), Waiting: true}},
		})
		musttest.NoError(t, b.RunOnce(t.Context()))
		report := func(workers int, waits bool) {
			t.Helper()
			musttest.NoError(t, a.RunOnce(t.Context()))
			report := a.Report(ocrKind)
			found := report.Services[0].Workers
			if len(found) != workers || workers > 0 && found[0].Waiting != waits {
				t.Errorf("%+v", found)
			}
		}
		time.Sleep(5 * time.Second)
		report(1, true)
		time.Sleep(time.Minute)
		report(1, false)
		time.Sleep(time.Hour)
		report(0, false)
	})
}

// A stored row that this program cannot read, such as one of another release, does not keep
// a process from starting: the counts are empty until a walk has counted the live jobs.
func TestOpen_CountsAgainAfterAnUnreadableRow(t *testing.T) {
	t.Parallel()
	for name, split := range map[string]bool{"of one process": false, "of several": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memstore.New(memstore.Options{Split: split})
			p := start(t, store, "a")
			p.submit("ocr")
			p.walk(nil)
			musttest.NoError(t, p.Close(t.Context(), true))
			rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: p.ledger.Tables().Queue, Partition: "counts"})
			musttest.NoError(t, err)
			for _, row := range rows {
				_, err := store.Commit(t.Context(), tablestore.Batch{{
					Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag,
					Properties: tablestore.AppendLarge(nil, "figures", []byte(`{"live":[]}`)),
				}})
				musttest.NoError(t, err)
			}
			p = start(t, store, "b")
			if report := p.Report(); len(rows) == 0 || report.Exact || report.Jobs[statemachine.JobDispatching] != 0 {
				t.Errorf("%d rows, after the start: %+v", len(rows), report)
			}
			p.walk(nil)
			musttest.NoError(t, p.RunOnce(t.Context()))
			same(t, p, "after a walk")
		})
	}
}
