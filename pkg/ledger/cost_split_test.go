package ledger_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// spent counts the requests of a change to a store that supports only batches, such
// as Azure Table Storage.
type spent struct {
	Before int // writes that make it findable or reserve something
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

// ordinary is a command of three steps with the default settings.
func ordinary(name string) ledger.Command {
	cmd := command(name)
	cmd.Job.CorrelationID = name // Every command that comes in has one.
	cmd.Steps = append(cmd.Steps, cmd.Steps[1])
	cmd.Steps[2].ID = "three"
	for i := range cmd.Steps {
		cmd.Steps[i].Policy.AckTimeout, cmd.Steps[i].Policy.Lease = 30*time.Second, 15*time.Minute
	}
	return cmd
}

// meteredLedger returns a ledger with the default settings on a store that supports only
// batches, and a check of the cost of each change, which returns the sum.
func meteredLedger(t *testing.T, cfg ledger.Config) (*bundle, func(steps []costly) spent) {
	t.Helper()
	inner, counter := storetest.Counting(ledgertest.Split())
	cfg.Hold, cfg.Retention, cfg.KeyTTL = 15*time.Second, 720*time.Hour, 168*time.Hour
	b := open(t, &hooked{Store: inner}, cfg)
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
	return b, func(steps []costly) (sum spent) {
		t.Helper()
		for _, step := range steps {
			counter.Reset()
			got := meter.of(step.do)
			got.Reads = int(counter.Counts().Gets + counter.Counts().Scans)
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.what, diff)
			}
			sum = spent{sum.Before + got.Before, sum.Commit + got.Commit, sum.After + got.After, sum.Reads + got.Reads}
		}
		return sum
	}
}

// expectSum checks the cost of a job.
func expectSum(t *testing.T, got spent, writes, reads int) {
	t.Helper()
	if n := got.Before + got.Commit + got.After; n != writes || got.Reads != reads {
		t.Errorf("a job costs %d writes and %d reads, want %d and %d", n, got.Reads, writes, reads)
	}
}

// TestCost_OfServiceBusOnAStoreThatOnlyKnowsBatches holds each change of a step, and a job
// of three short ones, to the requests that docs/run/scale.md states, all of them made by one
// process.
func TestCost_OfServiceBusOnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, check := meteredLedger(t, ledger.Config{Bus: statemachine.BusServiceBus})
		var m ledger.Message
		accept := func(name string) func() {
			return func() {
				b.Submit(ordinary(name))
				m = b.Handoff.Last()
			}
		}
		change := func(event func() statemachine.Event) func() {
			return func() {
				b.Apply(m.JobID, event())
				m = b.Handoff.Last()
			}
		}
		published := change(func() statemachine.Event {
			return ledgertest.Sent(m)
		})
		ack := change(func() statemachine.Event { return ledgertest.Started(m) })
		heartbeat := change(func() statemachine.Event { return statemachine.Heartbeat{StepID: m.StepID, Pair: ledgertest.Pair(m)} })
		result := change(func() statemachine.Event {
			return ledgertest.Ended(m, statemachine.ResultSucceeded, "")
		})
		check([]costly{{"a tenant's first command", accept("first"), spent{Before: 5, Commit: 1}}})
		expectSum(t, check([]costly{
			{"a command", accept("next"), spent{Before: 4, Commit: 1}},
			{"dispatch", published, spent{Commit: 1}},
			{"ACK", ack, spent{Commit: 1}},
			{"RESULT", result, spent{Commit: 1}},
			{"dispatch of the next step", published, spent{Commit: 1}},
			{"ACK of the next step", ack, spent{Commit: 1}},
			{"RESULT of the next step", result, spent{Commit: 1}},
			{"dispatch of the last step", published, spent{Commit: 1}},
			{"ACK of the last step", ack, spent{Commit: 1}},
			{"the RESULT that ends the job", result, spent{Before: 1, Commit: 1, After: 1}},
		}), 16, 0)
		check([]costly{
			{"another command", accept("long"), spent{Before: 4, Commit: 1}},
			{"its dispatch", published, spent{Commit: 1}},
			{"its ACK", ack, spent{Commit: 1}},
			{"a heartbeat", heartbeat, spent{Commit: 1}},
		})
		time.Sleep(16 * time.Second)
		entry := b.entries()[slices.IndexFunc(b.entries(), func(e ledger.Entry) bool { return e.JobID == m.JobID })]
		check([]costly{
			{"a timer that fires early", func() {
				if fired, _, err := b.Fire(t.Context(), entry, statemachine.DeadlinePassed{}); err != nil || fired != ledger.Acted {
					t.Fatal(fired, err)
				}
			}, spent{Before: 1, Commit: 1, After: 1, Reads: 1}},
			{"a cancellation", change(func() statemachine.Event { return statemachine.Cancel{} }), spent{Commit: 1}},
			{"the end of a job whose timer is due later", result, spent{Before: 2, Commit: 1, After: 1}},
		})
	})
}

// TestCost_OfThePullQueueOnAStoreThatOnlyKnowsBatches does the same for the pull queue and
// one worker.
func TestCost_OfThePullQueueOnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Bool
		w := &costlyWorker{}
		b, check := meteredLedger(t, ledger.Config{
			Held: func(statemachine.Target) bool { return held.Load() }, Ready: w.offered,
		})
		w.bundle = b
		accept := func(name string) func() {
			return func() { b.MustAccept(ordinary(name)) }
		}
		check([]costly{
			{"a tenant's first command, of a new kind", accept("first"), spent{Before: 7, Commit: 1}},
			{"a claim", w.claim(t, false), spent{Before: 1, Commit: 1, After: 1}},
			{"start", w.start(t), spent{Commit: 1}},
			{"heartbeat", w.heartbeat(t), spent{Commit: 1}},
			{"complete, with the next step of a new kind", w.complete(t), spent{Before: 2, Commit: 1}},
			{"a claim of that", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete", w.complete(t), spent{Before: 1, Commit: 1}},
			{"the last claim", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete, which ends the job", w.complete(t), spent{Before: 1, Commit: 1, After: 1}},
		})
		expectSum(t, check([]costly{
			{"a command", accept("next"), spent{Before: 5, Commit: 1}},
			{"a claim with start", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete, with the next step", w.complete(t), spent{Before: 1, Commit: 1}},
			{"a claim with start of the next step", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete, with the last step", w.complete(t), spent{Before: 1, Commit: 1}},
			{"a claim with start of the last step", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete, which ends the job", w.complete(t), spent{Before: 1, Commit: 1, After: 1}},
		}), 22, 0)
		held.Store(true)
		check([]costly{{"a command under a pause", accept("held"), spent{Before: 4, Commit: 1}}})
		held.Store(false)
		entries := b.entries()
		id := entries[slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Kind == ledger.Dispatch })].JobID
		check([]costly{{"its mark", func() {
			b.Apply(id, statemachine.Published{OutboxID: id + ".0.1", AttemptNo: 1})
		}, spent{Before: 1, Commit: 1, After: 1}}})
		check([]costly{
			{"a command that waits for its date", func() {
				cmd := ordinary("dated")
				cmd.Job.NotBefore = time.Now().Add(time.Hour)
				b.MustAccept(cmd)
			}, spent{Before: 4, Commit: 1, After: 1}},
		})
		time.Sleep(time.Hour)
		due := b.Entries(ledger.Date, time.Now())[0]
		check([]costly{
			{"its begin", func() {
				if fired, _, err := b.Fire(t.Context(), due, statemachine.DeadlinePassed{}); fired != ledger.Acted {
					t.Errorf("fired %v, %v", fired, err)
				}
			}, spent{Before: 1, Commit: 1, After: 1, Reads: 2}},
			{"a command that expires", func() {
				cmd := ordinary("expires")
				cmd.Job.NotAfter = time.Now().Add(time.Hour)
				b.MustAccept(cmd)
			}, spent{Before: 5, Commit: 1}},
		})
	})
}

// Neither clients nor workers wait for a look, which follows a commit. The numbers do not depend on how many
// jobs wait in the line.
func TestCost_OfALineOnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &costlyWorker{}
		b, check := meteredLedger(t, ledger.Config{Ready: w.offered})
		w.bundle = b
		accept := func(name string) func() {
			return func() {
				cmd := ordinary(name)
				cmd.Job.Order = statemachine.Order{Key: "doc", Mode: statemachine.OrderFIFO, Blocks: true}
				cmd.Steps = cmd.Steps[:1]
				b.MustAccept(cmd)
			}
		}
		b.MustAccept(ordinary("before")) // The tenant's first, of a new kind.
		check([]costly{
			{"a command whose line is empty", accept("a"), spent{Before: 6, Commit: 1, Reads: 1}},
			{"the first that waits, whose look lists the line", accept("b"), spent{Before: 5, Commit: 1, After: 3, Reads: 3}},
		})
		for i := range 200 {
			accept(fmt.Sprint("more ", i))()
		}
		check([]costly{
			{"another that waits", accept("c"), spent{Before: 5, Commit: 1, After: 1, Reads: 3}},
			{"a claim with start", w.claim(t, true), spent{Before: 1, Commit: 1, After: 1}},
			{"complete, with the turn of the next job", w.complete(t), spent{Before: 1, Commit: 2, After: 4, Reads: 4}},
		})
	})
}

// costlyWorker is a worker of the pull queue, with the item that it holds.
type costlyWorker struct {
	*bundle
	hint   ledger.Hint // of the newest item
	item   statemachine.Item
	claims int
}

func (w *costlyWorker) offered(hint ledger.Hint, queued bool) {
	if queued {
		w.hint = hint
	}
}

func (w *costlyWorker) claim(t *testing.T, start bool) func() {
	return func() {
		t.Helper()
		w.claims++
		claimed, err := w.Claim(t.Context(), []ledger.Hint{w.hint}, &ledger.Claim{
			Owner: "w", RequestID: fmt.Sprint(w.claims), Start: start,
			Memory: func([]ledger.Candidate, time.Time) tablestore.Batch {
				key := tablestore.Key{Table: "luciusqueue", Partition: "claims", Row: fmt.Sprint(w.claims)}
				return tablestore.Batch{{Verb: tablestore.Insert, Key: key}}
			},
		})
		if err != nil || claimed[0].Standing != ledger.HintNamed {
			t.Fatalf("%+v, %v", claimed, err)
		}
		w.item = claimed[0].Item
	}
}

func (w *costlyWorker) verb(t *testing.T, operation statemachine.ItemOperation, event func(statemachine.Pair) statemachine.Event) func() {
	return func() {
		t.Helper()
		result, err := w.Work(t.Context(), w.item.WorkID, ledger.Verb{
			Operation: operation,
			Request:   statemachine.ItemRequest{Actor: "w", ExpectedRev: w.item.Rev, ID: fmt.Sprint(operation, w.item.Rev)},
			Event: func(item *statemachine.Item, _ time.Time) statemachine.Event {
				return event(statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID})
			},
		})
		if err != nil || result.Outcome != statemachine.Applied {
			t.Fatalf("%s: %s %s, %v", operation, result.Outcome, result.Reason, err)
		}
		w.item = result.Item
	}
}

func (w *costlyWorker) start(t *testing.T) func() {
	return w.verb(t, statemachine.OpStart, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Ack{StepID: w.item.StepID, Pair: p}
	})
}

func (w *costlyWorker) heartbeat(t *testing.T) func() {
	return w.verb(t, statemachine.OpHeartbeat, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Heartbeat{StepID: w.item.StepID, Pair: p}
	})
}

func (w *costlyWorker) complete(t *testing.T) func() {
	return w.verb(t, statemachine.OpComplete, func(p statemachine.Pair) statemachine.Event {
		return statemachine.Result{StepID: w.item.StepID, Pair: p, Status: statemachine.ResultSucceeded}
	})
}

// TestCost_EntitiesOfAJob holds the rows that a job of three steps writes and deletes on
// Service Bus to the figure in docs/run/scale.md: Azure counts each as an entity.
func TestCost_EntitiesOfAJob(t *testing.T) {
	t.Parallel()
	b, _ := meteredLedger(t, ledger.Config{Bus: statemachine.BusServiceBus})
	var entities atomic.Int64
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		entities.Add(int64(len(batch)))
		return commit()
	})
	run := func(name string) int64 {
		entities.Store(0)
		cmd := ordinary(name)
		b.Submit(cmd)
		for range cmd.Steps {
			b.succeed(b.Handoff.Last())
		}
		return entities.Load()
	}
	run("a tenant's first")
	if n := run("next"); n != 53 {
		t.Errorf("a job of three steps costs %d entities", n)
	}
}
