package ledger_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// spent counts the requests of a change to a store that supports only batches, such
// as Azure Table Storage.
type spent struct {
	Before int // what makes it findable or reserved
	Commit int
	After  int // clean-up
	Reads  int
}

// metered counts the requests of a function.
type metered struct {
	mu  sync.Mutex
	now spent
}

func (m *metered) count(f func(*spent)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.now)
}

func (m *metered) of(f func()) spent {
	m.count(func(s *spent) { *s = spent{} })
	f()
	var out spent
	m.count(func(s *spent) { out = *s })
	return out
}

// costly is one change of a job with its expected cost.
type costly struct {
	what string
	do   func()
	want spent
}

// meteredLedger returns a ledger on a store that supports only batches, and a check of
// the cost of each change.
func meteredLedger(t *testing.T, bus statemachine.Bus, held *atomic.Bool) (*bundle, func(steps []costly)) {
	t.Helper()
	inner, counter := storetest.Counting(memstore.New(memstore.Options{Split: true}))
	b := open(t, &hooked{Store: inner}, ledger.Config{
		Bus: bus, Retention: 720 * time.Hour, KeyTTL: 168 * time.Hour,
		Held: func(statemachine.Target) bool { return held.Load() },
	})
	meter := &metered{}
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		meter.count(func(s *spent) {
			switch {
			case commits(batch):
				s.Commit++
			case s.Commit == 0:
				s.Before++
			default:
				s.After++
			}
		})
		return commit()
	})
	return b, func(steps []costly) {
		t.Helper()
		for _, step := range steps {
			counter.Reset()
			got := meter.of(step.do)
			got.Reads = int(counter.Counts().Gets + counter.Counts().Scans)
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.what, diff)
			}
		}
	}
}

// TestCost_OfServiceBusOnAStoreThatOnlyKnowsBatches holds each change of a step to the
// requests that docs/scale.md states, all of them made by one process.
func TestCost_OfServiceBusOnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	b, check := meteredLedger(t, statemachine.BusServiceBus, &atomic.Bool{})
	var m ledger.Message
	accept := func(name string) func() {
		return func() {
			cmd := command(name)
			cmd.Job.CorrelationID = name // Every command that comes in has one.
			b.mustAccept(t, cmd)
			m = b.inbox.last()
		}
	}
	change := func(event func() statemachine.Event) func() {
		return func() { b.mustChange(t, m.JobID, event()) }
	}
	published := func() statemachine.Event {
		return statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo}
	}
	ack := func() statemachine.Event { return statemachine.Ack{StepID: m.StepID, Pair: pair(m)} }
	heartbeat := func() statemachine.Event { return statemachine.Heartbeat{StepID: m.StepID, Pair: pair(m)} }
	result := func() statemachine.Event {
		return statemachine.Result{StepID: m.StepID, Pair: pair(m), Status: statemachine.ResultSucceeded}
	}
	check([]costly{
		{"a tenant's first command", accept("first"), spent{Before: 5, Commit: 1}},
		{"a command", accept("next"), spent{Before: 4, Commit: 1}},
		{"dispatch", change(published), spent{Before: 1, Commit: 1, After: 1}},
		{"ACK", change(ack), spent{Commit: 1}},
		{"heartbeat", change(heartbeat), spent{Commit: 1}},
		{"RESULT", func() { change(result)(); m = b.inbox.last() }, spent{Commit: 1}},
		{"dispatch of the next step", change(published), spent{Commit: 1}},
		{"ACK of the next step", change(ack), spent{Commit: 1}},
		{"the RESULT that ends the job", change(result), spent{Before: 1, Commit: 1, After: 1}},
	})
}

// TestCost_OfThePullQueueOnAStoreThatOnlyKnowsBatches does so for the pull queue, as
// a worker uses it.
func TestCost_OfThePullQueueOnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	var held atomic.Bool
	b, check := meteredLedger(t, statemachine.BusQueue, &held)
	accept := func(name string) func() {
		return func() {
			cmd := command(name)
			cmd.Job.CorrelationID = name // Every command that comes in has one.
			b.mustAccept(t, cmd)
		}
	}
	var item lifecycle.Item
	claims := 0
	claim := func(start bool) func() {
		return func() {
			hints := b.hints(t)
			claims++
			claimed, err := b.Claim(t.Context(), hints[len(hints)-1:], &ledger.Claim{
				Owner: "w", RequestID: fmt.Sprint(claims), Start: start,
				Memory: func([]ledger.Candidate, time.Time) (tablestore.Batch, error) {
					key := tablestore.Key{Table: "luciusqueue", Partition: "claims", Row: fmt.Sprint(claims)}
					return tablestore.Batch{{Verb: tablestore.Insert, Key: key}}, nil
				},
			})
			if err != nil || claimed[0].Standing != ledger.HintNamed {
				t.Fatalf("%+v, %v", claimed, err)
			}
			item = claimed[0].Item
		}
	}
	verb := func(operation lifecycle.Operation, event func(statemachine.Pair) statemachine.Event) func() {
		return func() {
			result, err := b.Work(t.Context(), item.WorkID, ledger.Verb{
				Operation: operation,
				Request:   lifecycle.Request{Actor: "w", ExpectedRev: item.Rev, ID: fmt.Sprint(operation, item.Rev)},
				Event: func(item *lifecycle.Item, _ time.Time) statemachine.Event {
					return event(statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID})
				},
			})
			if err != nil || result.Outcome != statemachine.Applied {
				t.Fatalf("%s: %s %s, %v", operation, result.Outcome, result.Reason, err)
			}
			item = result.Item
		}
	}
	start := verb(lifecycle.OpStart, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Ack{StepID: item.StepID, Pair: p}
	})
	heartbeat := verb(lifecycle.OpHeartbeat, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Heartbeat{StepID: item.StepID, Pair: p}
	})
	complete := verb(lifecycle.OpComplete, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Result{StepID: item.StepID, Pair: p, Status: statemachine.ResultSucceeded}
	})
	check([]costly{
		{"a tenant's first command, of a new kind", accept("first"), spent{Before: 7, Commit: 1}},
		{"a command", accept("next"), spent{Before: 5, Commit: 1}},
		{"a claim", claim(false), spent{Before: 1, Commit: 1, After: 1, Reads: 2}},
		{"start", start, spent{Commit: 1}},
		{"heartbeat", heartbeat, spent{Commit: 1}},
		{"complete, with the next step of a new kind", complete, spent{Before: 2, Commit: 1}},
		{"a claim with start, of the next step", claim(true), spent{Before: 1, Commit: 1, After: 1, Reads: 2}},
		{"complete, which ends the job", complete, spent{Before: 1, Commit: 1, After: 1}},
		{"a claim with start", claim(true), spent{Before: 1, Commit: 1, After: 1, Reads: 2}},
		{"complete, with the next step", complete, spent{Before: 1, Commit: 1}},
	})
	held.Store(true)
	check([]costly{{"a command under a pause", accept("held"), spent{Before: 4, Commit: 1}}})
	held.Store(false)
	entries := b.entries(t)
	id := entries[slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Kind == ledger.Dispatch })].JobID
	check([]costly{{"its mark", func() {
		b.mustChange(t, id, statemachine.Published{OutboxID: id + ".0.1", AttemptNo: 1})
	}, spent{Before: 1, Commit: 1, After: 1}}})
}

// TestCost_EntitiesOfAJob holds the rows that a job of three steps writes and deletes on
// Service Bus to the figure in docs/scale.md: Azure counts each as an entity.
func TestCost_EntitiesOfAJob(t *testing.T) {
	t.Parallel()
	b, _ := meteredLedger(t, statemachine.BusServiceBus, &atomic.Bool{})
	var entities atomic.Int64
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		entities.Add(int64(len(batch)))
		return commit()
	})
	run := func(name string) int64 {
		entities.Store(0)
		cmd := command(name)
		cmd.Job.CorrelationID = name
		three := cmd.Steps[1]
		three.ID = "three"
		cmd.Steps = append(cmd.Steps, three)
		b.mustAccept(t, cmd)
		for range cmd.Steps {
			b.succeed(t, b.inbox.last())
		}
		return entities.Load()
	}
	run("a tenant's first")
	if n := run("next"); n != 55 {
		t.Errorf("a job of three steps costs %d entities", n)
	}
}
