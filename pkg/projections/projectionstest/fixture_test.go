package projectionstest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// aggregates is the table that the ledger works on.
const aggregates = "luciussteps"

// worker says who sends the events.
var worker = ledger.By("worker-1", "request-2")

// hooked is a store that calls a hook before each write, which may fail it.
type hooked struct {
	tablestore.Store
	mu   sync.Mutex
	hook func(batch tablestore.Batch) error
}

func (h *hooked) set(hook func(tablestore.Batch) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

func (h *hooked) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	h.mu.Lock()
	hook := h.hook
	h.mu.Unlock()
	if hook != nil {
		if err := hook(batch); err != nil {
			return nil, err
		}
	}
	return h.Store.Commit(ctx, batch)
}

// recorder records the revisions that a projector gets.
type recorder struct {
	ledger.Projector
	mu        sync.Mutex
	revisions []*ledger.Revision
}

func (r *recorder) Project(ctx context.Context, revision *ledger.Revision) (int64, error) {
	r.mu.Lock()
	r.revisions = append(r.revisions, revision)
	r.mu.Unlock()
	return r.Projector.Project(ctx, revision)
}

// bundle is a ledger in the table layout with its test doubles.
type bundle struct {
	*ledgertest.Ledger
	memory      tablestore.Store // without the hook
	store       *hooked
	projections *projections.Projector
	seen        *recorder
}

// Purge purges the job of one entry.
func (b *bundle) Purge(ctx context.Context, entry ledger.Entry) (ledger.Purged, error) {
	result := b.Ledger.Purge(ctx, []ledger.Entry{entry})[0]
	return result.Outcome, result.Err
}

// setup returns a ledger on an empty store that is not atomic.
func setup(t *testing.T) *bundle {
	t.Helper()
	return on(t, memstore.New(memstore.Options{Split: true}))
}

// on returns a process on that store. Its writes call the hook only if the
// store is not atomic.
func on(t *testing.T, memory tablestore.Store) *bundle {
	t.Helper()
	b := &bundle{memory: memory, store: &hooked{Store: memory}}
	store := memory
	if _, atomic := memory.(tablestore.AtomicStore); !atomic {
		store = b.store
	}
	b.projections = projections.New(store, projections.Tables{}, nil)
	b.seen = &recorder{Projector: b.projections}
	b.Ledger = ledgertest.Publishing(t, ledger.Config{
		Store: store, Tables: ledger.Tables{Ledger: aggregates}, Projector: b.seen, Shards: 2,
		Hold: time.Minute, Retention: time.Hour, KeyTTL: time.Hour,
	})
	return b
}

// command returns a command of two steps.
func command(name string) ledger.Command {
	second := []time.Duration{time.Second, time.Second}
	policy := statemachine.Policy{
		AckTimeout: time.Second, Lease: time.Minute, Dispatch: second, Ack: second, Execution: second,
	}
	routing := statemachine.Routing{
		ResolvedMode: statemachine.ModeDefault, Lane: 7, Topic: "global-bus-p7", RoutingKeyUsed: "tenant/a",
		DecisionSource: "default", DecisionReason: "none was asked for",
	}
	output := []byte(`{"uri":"s3://b/out"}`)
	return ledger.Command{
		Job: statemachine.Job{
			TenantID: "tenant/a", IdempotencyKey: name, IdempotencyHash: name, RequestType: "doc.ingest",
			SchemaVersion: "1", ProtocolID: "doc_ingest_v1", Mode: statemachine.ModeDefault,
			InputRef: []byte(`{"uri":"s3://b/in"}`), OutputRef: output, CorrelationID: name,
			CallbackURLs: []string{"https://a.example/hook"},
		},
		Steps: []statemachine.Step{
			{
				ID: "one", Type: "ONE", Service: "ones", Input: statemachine.InputJob, Policy: policy, Routing: routing,
				Product: statemachine.Product{OutputRef: output},
			},
			{
				ID: "two", Type: "TWO", Service: "twos", Input: statemachine.InputPrevious, Policy: policy, Routing: routing,
				Product: statemachine.Product{OutputRef: output},
			},
		},
		Payload: fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 70_000)), // Larger than one property.
		Actor:   "client", RequestID: "request-1",
	}
}

// assertShown checks that the projected rows equal the aggregates.
func (b *bundle) assertShown(t *testing.T, when string) {
	t.Helper()
	for _, sentence := range b.differences(t) {
		t.Errorf("%s: %s", when, sentence)
	}
}

func (b *bundle) differences(t *testing.T) []string {
	t.Helper()
	found, err := projectionstest.Compare(t.Context(), b.memory.(tablestore.Walker), aggregates)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
