package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// hook may fail a commit before it is applied, or take its reply away after.
type hook func(batch tablestore.Batch, commit func() ([]tablestore.ETag, error)) ([]tablestore.ETag, error)

// hooked is a split store whose commits go through a hook.
type hooked struct {
	tablestore.Store
	mu   sync.Mutex
	hook hook
}

func (h *hooked) set(f hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = f
}

func (h *hooked) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	h.mu.Lock()
	f := h.hook
	h.mu.Unlock()
	commit := func() ([]tablestore.ETag, error) { return h.Store.Commit(ctx, batch) }
	if f == nil {
		return commit()
	}
	return f(batch, commit)
}

// gotten is a store on which something happens before the first Get of a row whose
// partition begins so.
type gotten struct {
	tablestore.Store
	prefix    string
	once      sync.Once
	meanwhile func()
}

func (g *gotten) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if strings.HasPrefix(key.Partition, g.prefix) {
		g.once.Do(g.meanwhile)
	}
	return g.Store.Get(ctx, key)
}

// inbox collects what the ledger hands to the relay.
type inbox struct {
	mu       sync.Mutex
	messages []ledger.Message
}

func (i *inbox) Offer(message ledger.Message) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.messages = append(i.messages, message)
}

func (i *inbox) last() ledger.Message {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.messages[len(i.messages)-1]
}

// bundle is a ledger on a store with hooks.
type bundle struct {
	*ledger.Ledger
	store *hooked
	inbox *inbox
}

func setup(t *testing.T) *bundle {
	t.Helper()
	store := &hooked{Store: memstore.New(memstore.Options{Split: true})}
	return reopen(t, store)
}

// reopen is another process on the same store.
func reopen(t *testing.T, store *hooked) *bundle {
	t.Helper()
	in := &inbox{}
	l, err := ledger.Open(t.Context(), ledger.Config{
		Store: store, Bus: statemachine.BusServiceBus, Handoff: in, Shards: 4, Hold: time.Minute,
		Projector: projectionstest.Projector(t, store),
	})
	if err != nil {
		t.Fatal(err)
	}
	return &bundle{Ledger: l, store: store, inbox: in}
}

// command is a command of two steps, with a hash that stands for its content.
func command(hash string) ledger.Command {
	policy := statemachine.Policy{
		AckTimeout: time.Second, Lease: time.Minute,
		Dispatch: []time.Duration{time.Second}, Ack: []time.Duration{time.Second}, Execution: []time.Duration{time.Second},
	}
	return ledger.Command{
		Job: statemachine.Job{
			TenantID: "tenant_a", IdempotencyHash: hash, RequestType: "doc.ingest",
			InputRef: []byte(`{"uri":"s3://b/in"}`), OutputRef: []byte(`{"uri":"s3://b/out"}`),
		},
		Steps: []statemachine.Step{
			{ID: "one", Type: "ONE", Service: "ones", Input: statemachine.InputJob, Policy: policy},
			{ID: "two", Type: "TWO", Service: "twos", Input: statemachine.InputPrevious, PayloadPointer: "/x", Policy: policy},
		},
		Payload: []byte(`{"x": {"y": 1.50}}`),
	}
}

func (b *bundle) mustAccept(t *testing.T, cmd ledger.Command) ledger.Accepted {
	t.Helper()
	accepted, err := b.Accept(t.Context(), cmd)
	if err != nil {
		t.Fatalf("accept: %v", err)
	}
	return accepted
}

func (b *bundle) mustChange(t *testing.T, jobID string, event statemachine.Event) ledger.Result {
	t.Helper()
	result, err := b.Change(t.Context(), jobID, event, ledger.By("test", "request-1"))
	if err != nil {
		t.Fatalf("%T: %v", event, err)
	}
	if result.Outcome != statemachine.Applied {
		t.Fatalf("%T: %s: %s", event, result.Outcome, result.Reason)
	}
	return result
}

// pair is the pair of the newest message.
func pair(m ledger.Message) statemachine.Pair {
	return statemachine.Pair{AttemptNo: m.AttemptNo, LeaseID: m.LeaseID}
}

// succeed walks the newest message's step to its end.
func (b *bundle) succeed(t *testing.T, m ledger.Message) {
	t.Helper()
	b.mustChange(t, m.JobID, statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo})
	b.mustChange(t, m.JobID, statemachine.Ack{StepID: m.StepID, Pair: pair(m)})
	b.mustChange(t, m.JobID, statemachine.Result{
		StepID: m.StepID, Pair: pair(m), Status: statemachine.ResultSucceeded,
		ResultRef: fmt.Appendf(nil, `{"uri":"s3://b/%s"}`, m.StepID),
	})
}

// entries are all schedule entries, whenever they are due.
func (b *bundle) entries(t *testing.T) []ledger.Entry {
	t.Helper()
	var all []ledger.Entry
	for _, kind := range ledger.Kinds {
		for shard := range b.Shards() {
			page, _, err := b.Due(t.Context(), kind, shard, time.Now().AddDate(1, 0, 0), 1000, "")
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page...)
		}
	}
	return all
}

// live are the jobs that hold a slot.
func (b *bundle) live(t *testing.T) []string {
	t.Helper()
	var all []string
	for shard := range b.Shards() {
		page, _, err := b.Live(t.Context(), shard, 1000, "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
	}
	return all
}

// commits reports whether the batch is the commit of a job's change.
func commits(batch tablestore.Batch) bool { return batch[0].Key.Table == "luciusledger" }
