package workqueue_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tables of the jobs, and of hints and the memories of claims.
const (
	ledgerTable = "luciusledger"
	queueTable  = "luciusqueue"
)

// bundle is one process: a queue with a real ledger.
type bundle struct {
	*workqueue.Queue
	ctx    context.Context //nolint:containedctx // The test's, for the cases of a table.
	ledger *ledgertest.Ledger
	mirror *workqueue.Mirror
	store  tablestore.Store
	serial atomic.Int64
	// pending makes new rows PENDING, as under a pause. heldTenant and heldProtocol name
	// work that claims must not hand out.
	pending      atomic.Bool
	heldTenant   atomic.Value
	heldProtocol atomic.Value
}

func setup(t testing.TB, split bool) *bundle {
	t.Helper()
	return reopen(t, memstore.New(memstore.Options{Split: split}))
}

// reopen returns another process on the same store.
func reopen(t testing.TB, store tablestore.Store) *bundle {
	t.Helper()
	return reopenWith(t, store, ledger.Config{}, 0)
}

// reopenWith is [reopen] with a limit of the mirror and settings of the ledger.
func reopenWith(t testing.TB, store tablestore.Store, cfg ledger.Config, limit int) *bundle {
	t.Helper()
	return reopenLogged(t, store, cfg, limit, nil)
}

// reopenLogged is [reopenWith] with a log.
func reopenLogged(t testing.TB, store tablestore.Store, cfg ledger.Config, limit int, log *slog.Logger) *bundle {
	t.Helper()
	b := &bundle{ctx: t.Context(), store: store, mirror: workqueue.NewMirror(limit)}
	b.heldTenant.Store("")
	b.heldProtocol.Store("")
	cfg.Store, cfg.Shards, cfg.Hold, cfg.Ready, cfg.Taker = store, 2, time.Minute, b.mirror.Ready, b.mirror.Taker
	cfg.Held = func(statemachine.Target) bool { return b.pending.Load() }
	b.ledger = ledgertest.Open(t, cfg)
	b.Queue = workqueue.New(workqueue.Config{
		Ledger: b.ledger.Ledger, Store: store, Mirror: b.mirror, Logger: log,
		Held: func(target statemachine.Target) bool {
			return target.ProtocolID != "" && target.ProtocolID == b.heldProtocol.Load()
		},
		HeldTenant: func(tenantID string) bool { return tenantID == b.heldTenant.Load() },
	})
	return b
}

// command is a command of one step.
func (b *bundle) command(tenant, service, stepType string) ledger.Command {
	return ledgertest.Command(tenant, fmt.Sprintf("%d-%p", b.serial.Add(1), b), ledgertest.Step("step", stepType, service))
}

// accept makes a job of one step and returns its directive: its item is queued by the same
// commit, unless new rows are pending.
func (b *bundle) accept(tenant, service, stepType string) ledger.Message {
	return b.ledger.MessageOf(b.ledger.Submit(b.command(tenant, service, stepType)))
}

// work makes a job, whose item is queued.
func (b *bundle) work() ledger.Message { return b.accept("tenant_a", "ocr", "OCR") }

// mark publishes a row that is PENDING, as the relay does.
func (b *bundle) mark(m ledger.Message) { b.ledger.Send(m.JobID, ledgertest.Sent(m)) }

// claim claims up to most items at once.
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

// events returns the types of the item's events, and the actor of the last one.
func (b *bundle) events(t testing.TB, workID string) (types []statemachine.ItemEventType, last statemachine.ItemEvent) {
	t.Helper()
	events, _, err := b.Events(t.Context(), workID, 0, 1000)
	musttest.NoError(t, err)
	for _, e := range events {
		types, last = append(types, e.Type), e
	}
	return types, last
}

// step is the job's only step.
func (b *bundle) step(jobID string) statemachine.Step { return b.ledger.Read(jobID).Steps[0] }

// by returns a worker's request on the item at the rev that it saw.
func by(owner, id string, item statemachine.Item) statemachine.ItemRequest {
	return statemachine.ItemRequest{Actor: owner, ExpectedRev: item.Rev, ID: id}
}

// beating returns the heartbeat as a verb without progress.
func beating(q *workqueue.Queue) func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error) {
	return func(ctx context.Context, workID string, r statemachine.ItemRequest) (workqueue.View, error) {
		return q.Heartbeat(ctx, workID, r, nil)
	}
}

// workIDs are the ids of the views' items.
func workIDs(views []workqueue.View) []string {
	ids := make([]string, len(views))
	for i := range views {
		ids[i] = views[i].Item.WorkID
	}
	return ids
}

// tapped is a store that calls a tap with each batch before it is written, and with each
// page of the ready index before its reader gets it. An error of the tap becomes the
// batch's outcome.
type tapped struct {
	tablestore.Store
	mu   sync.Mutex
	tap  func(tablestore.Batch) error
	page func() // called once, after a number of further pages of the ready index was read
	skip int
	// pages counts the pages of the ready index that were read, by their partition.
	pages map[string]int
}

// tap is a split store that records its reads.
func tap() *tapped { return tapOn(ledgertest.Split()) }

func tapOn(store tablestore.Store) *tapped {
	s := &tapped{pages: map[string]int{}}
	s.Store = storetest.AfterRead(storetest.BeforeCommit(store, s.commit), s.read)
	return s
}

// tapAtomic is an atomic one.
func tapAtomic() *atomicTapped {
	s := tapOn(ledgertest.Atomic())
	return &atomicTapped{s, s.Store.(tablestore.AtomicStore)}
}

type atomicTapped struct {
	*tapped
	tablestore.AtomicStore
}

func (s *tapped) commit(batch tablestore.Batch) error {
	s.mu.Lock()
	tap := s.tap
	s.mu.Unlock()
	if tap == nil {
		return nil
	}
	return tap(batch)
}

func (s *tapped) read(r *storetest.Request) {
	if !strings.HasPrefix(r.Query.Partition, "ready") {
		return
	}
	s.mu.Lock()
	s.pages[r.Query.Partition]++
	read := s.page
	if s.skip--; s.skip >= 0 {
		read = nil
	} else {
		s.page = nil
	}
	s.mu.Unlock()
	if read != nil {
		read()
	}
}

// afterPage calls do once a page of the ready index was read, after skipping a number of
// pages, before the reader gets it.
func (s *tapped) afterPage(skip int, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page, s.skip = do, skip
}

// indexPages is how many pages of the ready index were read.
func (s *tapped) indexPages() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, pages := range s.pages {
		n += pages
	}
	return n
}

// writes reports whether the batch begins with a row of that table whose partition or row
// has that prefix.
func writes(batch tablestore.Batch, table, prefix string) bool {
	key := batch[0].Key
	return key.Table == table && (strings.HasPrefix(key.Row, prefix) || strings.HasPrefix(key.Partition, prefix))
}

// on sets the tap for the first batch that begins with such a row; no tap is in
// place while it runs.
func (s *tapped) on(table, prefix string, do func() error) {
	s.set(func(batch tablestore.Batch) error {
		if !writes(batch, table, prefix) {
			return nil
		}
		s.set(nil)
		return do()
	})
}

func (s *tapped) set(tap func(tablestore.Batch) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tap = tap
}

// down is the tap of a store that cannot be reached.
func down() error { return tablestore.ErrUnavailable }

// bothStores runs a test on a store that applies a change atomically, and on one that
// always splits it.
func bothStores(t *testing.T, run func(t *testing.T, b *bundle)) {
	for name, split := range map[string]bool{"atomic": false, "split": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, setup(t, split))
		})
	}
}
