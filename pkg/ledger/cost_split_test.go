package ledger_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// spent counts the requests that a change makes of a store that knows no more
// than batches, such as Azure Table Storage.
type spent struct {
	Before int // what makes it findable or reserved
	Commit int
	After  int // clean-up
	Reads  int
}

// metered counts what happens within a function.
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

// TestCost_OnAStoreThatOnlyKnowsBatches holds each change of a step to the
// requests that docs/scale.md goes by.
func TestCost_OnAStoreThatOnlyKnowsBatches(t *testing.T) {
	t.Parallel()
	inner, counter := storetest.Counting(memstore.New(memstore.Options{Split: true}))
	b := reopen(t, &hooked{Store: inner})
	var err error
	b.Ledger, err = ledger.Open(t.Context(), ledger.Config{
		Store: b.store, Handoff: b.inbox, Hold: time.Minute, Retention: 720 * time.Hour, KeyTTL: 168 * time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	meter := &metered{}
	b.store.set(func(batch tablestore.Batch, commit func() ([]tablestore.ETag, error)) ([]tablestore.ETag, error) {
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
	for _, step := range []struct {
		what string
		do   func()
		want spent
	}{
		{"a tenant's first command", accept("first"), spent{Before: 6, Commit: 1, After: 1}},
		{"a command", accept("next"), spent{Before: 5, Commit: 1, After: 1}},
		{"dispatch", change(published), spent{Before: 1, Commit: 1, After: 1, Reads: 1}},
		{"ACK", change(ack), spent{Commit: 1, Reads: 1}},
		{"heartbeat", change(heartbeat), spent{Commit: 1, Reads: 1}},
		{"RESULT", func() { change(result)(); m = b.inbox.last() }, spent{Commit: 1, Reads: 2}},
		{"dispatch of the next step", change(published), spent{Commit: 1, Reads: 1}},
		{"ACK of the next step", change(ack), spent{Commit: 1, Reads: 1}},
		{"the RESULT that ends the job", change(result), spent{Before: 1, Commit: 1, After: 3, Reads: 1}},
	} {
		counter.Reset()
		got := meter.of(step.do)
		got.Reads = int(counter.Counts().Gets + counter.Counts().Scans)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}
