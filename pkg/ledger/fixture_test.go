package ledger_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// hook may fail a commit before it is applied, or lose its reply after.
type (
	hook   func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error)
	commit func() ([]tablestore.ETag, error)
)

// hooked is a store whose commits go through a hook. It is not atomic.
type hooked struct {
	tablestore.Store
	limit atomic.Int64 // of each tenant's jobs in flight, for the processes on the store

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
	// A test may call it after the change that the batch belongs to.
	commit := func() ([]tablestore.ETag, error) { return h.Store.Commit(context.WithoutCancel(ctx), batch) }
	if f == nil {
		return commit()
	}
	return f(batch, commit)
}

// bundle is a ledger on a store with hooks.
type bundle struct {
	*ledgertest.Ledger
	store *hooked
}

// Purge purges the job of one entry.
func (b *bundle) Purge(ctx context.Context, entry ledger.Entry) (ledger.Purged, error) {
	result := b.Ledger.Purge(ctx, []ledger.Entry{entry})[0]
	return result.Outcome, result.Err
}

// split returns an empty store that is not atomic.
func split() *hooked { return &hooked{Store: ledgertest.Split()} }

// open returns a process on that store, configured as cfg says.
func open(t *testing.T, store *hooked, cfg ledger.Config) *bundle {
	t.Helper()
	handoff := &ledgertest.Handoff{}
	cfg.Store, cfg.Handoff, cfg.Hold = store, handoff, cmp.Or(cfg.Hold, time.Minute)
	if cfg.Limit == nil {
		cfg.Limit = func(string) int { return int(store.limit.Load()) }
	}
	b := &bundle{ledgertest.Open(t, cfg), store}
	b.Handoff = handoff
	return b
}

// setup returns a process that publishes to Service Bus, on an empty store.
func setup(t *testing.T) *bundle {
	t.Helper()
	return reopen(t, split())
}

// reopen returns another such process on the same store.
func reopen(t *testing.T, store *hooked) *bundle {
	t.Helper()
	return open(t, store, ledger.Config{Bus: statemachine.BusServiceBus, Shards: 4})
}

// pulling returns a process whose bus is the pull queue.
func pulling(t *testing.T, store *hooked) *bundle {
	t.Helper()
	return open(t, store, ledger.Config{Shards: 1, Retention: time.Hour})
}

// keeper returns a process that keeps ended jobs for an hour and their keys for two.
func keeper(t *testing.T, store *hooked, archive func(context.Context, *ledger.Archived) error) *bundle {
	t.Helper()
	return open(t, store, ledger.Config{Shards: 1, Retention: time.Hour, KeyTTL: 2 * time.Hour, Archive: archive})
}

// command is a command of two steps, with that hash.
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

// succeed walks the newest message's step to its end.
func (b *bundle) succeed(m ledger.Message) {
	b.Apply(m.JobID, ledgertest.Sent(m))
	b.Apply(m.JobID, ledgertest.Started(m))
	result := ledgertest.Ended(m, statemachine.ResultSucceeded, "")
	result.ResultRef = fmt.Appendf(nil, `{"uri":"s3://b/%s"}`, m.StepID)
	b.Apply(m.JobID, result)
}

// entries returns all schedule entries, due or not.
func (b *bundle) entries() []ledger.Entry {
	var all []ledger.Entry
	for _, kind := range ledger.Kinds {
		all = append(all, b.Entries(kind, time.Now().AddDate(1, 0, 0))...)
	}
	return all
}

// takesSlot reports whether the batch takes a slot.
func takesSlot(batch tablestore.Batch) bool {
	return strings.HasPrefix(batch[0].Key.Row, "live:") && batch[0].Verb != tablestore.Discard && batch[0].Verb != tablestore.Delete
}

// entryKey addresses the row of a schedule entry.
func entryKey(entry *ledger.Entry) tablestore.Key {
	return tablestore.Key{
		Table: "luciusschedule", Partition: tablestore.Join("shard", tablestore.Pad(int64(entry.Shard), 3)),
		Row: tablestore.Join(string(entry.Kind), tablestore.Pad(entry.Due.UnixMilli(), 13), entry.JobID, entry.Nonce),
	}
}

// commits reports whether the batch is the commit of a job's change.
func commits(batch tablestore.Batch) bool { return batch[0].Key.Table == "luciusledger" }

// inspected returns the findings of inspecting all slots.
func (b *bundle) inspected(t *testing.T) []ledger.Finding {
	t.Helper()
	var all []ledger.Finding
	for shard := range b.Shards() {
		found, next, err := b.Inspect(t.Context(), shard, 100, "")
		if err != nil || next != "" {
			t.Fatalf("inspect: %q, %v", next, err)
		}
		all = append(all, found...)
	}
	return all
}

// hintKinds are the kinds of the fixture's two steps.
var hintKinds = []ledger.WorkKind{{Service: "ones", StepType: "ONE"}, {Service: "twos", StepType: "TWO"}}

// hints are all rows of the ready index, those of bulk work after the others of their kind.
func (b *bundle) hints(t *testing.T) []ledger.Hint {
	t.Helper()
	var all []ledger.Hint
	for _, kind := range hintKinds {
		for _, class := range []statemachine.Class{statemachine.ClassNormal, statemachine.ClassBulk} {
			hints, more, bad, err := b.ReadyHints(t.Context(), ledger.WorkClass{WorkKind: kind, Class: class}, 0, "", "", 100)
			if err != nil || bad != nil || more {
				t.Fatalf("hints: %v, %v, more %t", err, bad, more)
			}
			all = append(all, hints...)
		}
	}
	return all
}

// take claims the items of the hints.
func (b *bundle) take(t *testing.T, request string, start bool, hints ...ledger.Hint) []ledger.Claimed {
	t.Helper()
	claimed, err := b.Claim(t.Context(), hints, &ledger.Claim{Owner: "w", RequestID: request, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	for i := range claimed {
		if claimed[i].Err != nil {
			t.Fatal(claimed[i].Err)
		}
	}
	return claimed
}

// lose makes the commit of the job's change in do fail, and returns that commit, so that
// the test can send it late.
func (b *bundle) lose(t *testing.T, do func()) (late func() error) {
	t.Helper()
	var lost tablestore.Batch
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if !commits(batch) {
			return commit()
		}
		lost = batch
		return nil, tablestore.ErrUnavailable
	})
	do()
	b.store.set(nil)
	if lost == nil {
		t.Fatal("nothing was committed")
	}
	return func() error {
		_, err := b.store.Commit(t.Context(), lost)
		return err
	}
}

// leaveHints makes the deletion of hints fail in do, as a crash would.
func (b *bundle) leaveHints(do func()) {
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if batch[0].Key.Table == "luciusqueue" && batch[0].Verb == tablestore.Discard {
			return nil, tablestore.ErrUnavailable
		}
		return commit()
	})
	do()
	b.store.set(nil)
}

// loseAccept is lose for an accept.
func (b *bundle) loseAccept(t *testing.T, cmd ledger.Command) (late func() error) {
	t.Helper()
	return b.lose(t, func() {
		if _, err := b.Accept(t.Context(), cmd); err == nil {
			t.Fatal("the accept was meant to fail")
		}
	})
}

// loseResult is lose for the RESULT of a started item.
func (b *bundle) loseResult(t *testing.T, item *statemachine.Item) (late func() error) {
	t.Helper()
	return b.lose(t, func() {
		_, _ = b.Change(t.Context(), item.JobID, statemachine.Result{
			StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID},
			Status: statemachine.ResultSucceeded,
		})
	})
}
