package workqueue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outgoing collects what the ledger hands to the relay.
type outgoing struct {
	mu       sync.Mutex
	messages []ledger.Message
}

func (o *outgoing) Offer(message ledger.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages = append(o.messages, message)
}

func (o *outgoing) take() []ledger.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.messages
	o.messages = nil
	return taken
}

// bundle is a queue over a real ledger.
type bundle struct {
	*workqueue.Queue
	ctx    context.Context //nolint:containedctx // The test's, for the cases of a table.
	ledger *ledger.Ledger
	out    *outgoing
	store  tablestore.Store
	serial atomic.Int64
	held   string // the tenant whose dispatch is paused
}

func setup(t testing.TB, split bool) *bundle {
	t.Helper()
	return reopen(t, memstore.New(memstore.Options{Split: split}))
}

// reopen is another process on the same store.
func reopen(t testing.TB, store tablestore.Store) *bundle {
	t.Helper()
	b := &bundle{ctx: t.Context(), out: &outgoing{}, store: store}
	storage := workqueue.NewStorage(store, "")
	var err error
	b.ledger, err = ledger.Open(t.Context(), ledger.Config{
		Store: store, Handoff: b.out, Follower: storage, Shards: 2, Hold: time.Minute,
		Projector: projectionstest.Projector(t, store),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Queue, err = workqueue.New(workqueue.Config{
		Storage: storage, Ledger: b.ledger, Held: func(tenantID string) bool { return tenantID == b.held },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// accept makes a job of one step and returns its directive.
func (b *bundle) accept(t testing.TB, tenant, service, stepType string) ledger.Message {
	t.Helper()
	minute := []time.Duration{time.Minute, time.Minute, time.Minute}
	cmd := ledger.Command{
		Job: statemachine.Job{TenantID: tenant, IdempotencyHash: fmt.Sprint("hash-", b.serial.Add(1), t.Name())},
		Steps: []statemachine.Step{{
			ID: "step", Type: stepType, Service: service,
			Policy: statemachine.Policy{
				AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: minute, Ack: minute, Execution: minute,
			},
		}},
		Payload: json.RawMessage(`{}`),
	}
	if _, err := b.ledger.Accept(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	messages := b.out.take()
	return messages[len(messages)-1]
}

// relay publishes what the ledger handed over, and marks it.
func (b *bundle) relay(t testing.TB, messages ...ledger.Message) {
	t.Helper()
	if len(messages) == 0 {
		messages = b.out.take()
	}
	for i, err := range b.Publish(t.Context(), messages) {
		if err != nil {
			t.Fatalf("publish: %v", err)
		}
		event := statemachine.Published{OutboxID: messages[i].OutboxID, AttemptNo: messages[i].AttemptNo, AwaitsClaim: true}
		if _, err := b.ledger.Change(t.Context(), messages[i].JobID, event); err != nil {
			t.Fatal(err)
		}
	}
}

// work makes a job and brings it into the queue.
func (b *bundle) work(t testing.TB) ledger.Message {
	t.Helper()
	message := b.accept(t, "tenant_a", "ocr", "OCR")
	b.relay(t, message)
	return message
}

// claim claims up to max items at once.
func (b *bundle) claim(t testing.TB, owner, requestID string, most int, start bool) []workqueue.View {
	t.Helper()
	views, err := b.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
		Owner: owner, RequestID: requestID, Max: most, Start: start,
	})
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return views
}

// step is the job's only step.
func (b *bundle) step(t testing.TB, jobID string) statemachine.Step {
	t.Helper()
	agg, err := b.ledger.Job(t.Context(), jobID)
	if err != nil {
		t.Fatal(err)
	}
	return agg.Steps[0]
}

// by is a worker's request on the item as it saw it.
func by(owner, id string, item lifecycle.Item) lifecycle.Request {
	return lifecycle.Request{Actor: owner, ExpectedRev: item.Rev, ID: id}
}

// tapped is a split store that shows each batch before it is written; an error
// of the tap is the batch's outcome.
type tapped struct {
	tablestore.Store
	mu   sync.Mutex
	tap  func(tablestore.Batch) error
	read func() // once, after the next item is read
}

func tap() *tapped { return &tapped{Store: memstore.New(memstore.Options{Split: true})} }

func (s *tapped) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	s.mu.Lock()
	tap := s.tap
	s.mu.Unlock()
	if tap != nil {
		if err := tap(batch); err != nil {
			return nil, err
		}
	}
	return s.Store.Commit(ctx, batch)
}

func (s *tapped) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	row, err := s.Store.Get(ctx, key)
	if strings.HasPrefix(key.Row, "ITEM:") {
		s.mu.Lock()
		read := s.read
		s.read = nil
		s.mu.Unlock()
		if read != nil {
			read()
		}
	}
	return row, err
}

// afterRead calls do when the next item was read and before the reader has it.
func (s *tapped) afterRead(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = do
}

// fail lets every write of such a row of the queue fail.
func (s *tapped) fail(err error, prefixes ...string) {
	s.set(func(batch tablestore.Batch) error {
		key := batch[0].Key
		for _, prefix := range prefixes {
			if key.Table == workqueue.DefaultTable && (strings.HasPrefix(key.Row, prefix) || strings.HasPrefix(key.Partition, prefix)) {
				return err
			}
		}
		return nil
	})
}

// on sets the tap for batches that write a row of the queue whose partition or
// row begins so, the first times of them; no tap is in place while it runs.
func (s *tapped) on(prefix string, times int, do func() error) {
	s.set(func(batch tablestore.Batch) error {
		key := batch[0].Key
		row := strings.HasPrefix(key.Row, prefix) || strings.HasPrefix(key.Partition, prefix)
		if key.Table != workqueue.DefaultTable || !row {
			return nil
		}
		s.mu.Lock()
		was := s.tap
		s.mu.Unlock()
		s.set(nil)
		err := do()
		if times--; times > 0 {
			s.set(was)
		}
		return err
	})
}

func (s *tapped) set(tap func(tablestore.Batch) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tap = tap
}

// bothStores runs a test on a store that applies a change at once, and on one
// that always splits it.
func bothStores(t *testing.T, run func(t *testing.T, b *bundle)) {
	for name, split := range map[string]bool{"atomic": false, "split": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, setup(t, split))
		})
	}
}
