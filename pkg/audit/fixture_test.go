package audit_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// keyTTL and retention are those of the town's ledger.
const (
	keyTTL    = 24 * time.Hour
	retention = 48 * time.Hour
)

var tables = audit.Tables{
	Ledger: "luciusledger", Schedule: "luciusschedule", Inflight: "luciusinflight", Idempotency: "jobidempotency",
	Index: "luciusjobindex", Queue: "luciusqueue",
}

// town is a store with a job in each walk of life, by name, that the program's
// own code wrote.
type town struct {
	t      *testing.T
	store  tablestore.Store
	ledger *ledger.Ledger
	queue  *workqueue.Queue
	jobs   map[string]string
	held   bool // dispatch is paused
}

// settle builds the town on a store that is atomic, or writes batch by batch.
func settle(t *testing.T, split bool) *town {
	t.Helper()
	w := &town{t: t, store: memstore.New(memstore.Options{Split: split}), jobs: map[string]string{}}
	mirror := workqueue.NewMirror(0)
	var err error
	w.ledger, err = ledger.Open(t.Context(), ledger.Config{
		Store: w.store, Ready: mirror.Ready, Hold: time.Minute, KeyTTL: keyTTL, Retention: retention,
		Held: func(string, string, int) bool { return w.held },
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.queue, err = workqueue.New(workqueue.Config{Ledger: w.ledger, Store: w.store, Mirror: mirror}); err != nil {
		t.Fatal(err)
	}
	w.accept("done")
	w.work("done", statemachine.ResultSucceeded)
	w.work("done", statemachine.ResultSucceeded)
	w.accept("failed")
	w.work("failed", statemachine.ResultFailedFinal)
	w.accept("retry")
	w.work("retry", statemachine.ResultFailedRetry)
	w.accept("stalled")
	w.stall("stalled")
	w.accept("offered twice")
	w.stall("offered twice")
	w.change("offered twice", statemachine.Retry{})
	w.start("offered twice")
	w.accept("held")
	w.stall("held")
	w.held = true
	w.change("held", statemachine.Retry{})
	w.held = false
	w.accept("paused")
	w.change("paused", statemachine.Pause{})
	w.accept("running")
	w.beat(w.start("running"))
	w.accept("claimed")
	w.claim("claimed", false)
	w.accept("queued")
	w.held = true
	w.accept("dispatching")
	return w
}

// accept makes a job of two steps.
func (w *town) accept(name string) {
	w.t.Helper()
	minute := []time.Duration{time.Minute}
	policy := statemachine.Policy{
		AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: minute, Ack: minute, Execution: minute, MaxAttempts: 10,
	}
	cmd := ledger.Command{
		Job: statemachine.Job{
			TenantID: "tenant_a", RequestType: "doc.ingest", IdempotencyHash: name, CorrelationID: "of " + name,
			CallbackURLs: []string{"https://example.org/" + name},
		},
		Payload: json.RawMessage(`{}`),
	}
	for i := range 2 {
		cmd.Steps = append(cmd.Steps, statemachine.Step{
			ID: fmt.Sprintf("step%d", i), Type: "OCR", Service: "ocr", Policy: policy,
		})
	}
	accepted, err := w.ledger.Accept(w.t.Context(), cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	w.jobs[name] = accepted.Job.ID
}

// claim has a worker take the job's item, and start it if it says so.
func (w *town) claim(name string, start bool) lifecycle.Item {
	w.t.Helper()
	views, err := w.queue.Claim(w.t.Context(), workqueue.ClaimRequest{
		Owner: "worker", RequestID: fmt.Sprint(name, time.Now().UnixNano()), Max: 1, Start: start,
	})
	if err != nil || len(views) != 1 || views[0].Item.JobID != w.jobs[name] {
		w.t.Fatalf("claim for %s: %d items, %v", name, len(views), err)
	}
	time.Sleep(time.Millisecond)
	return views[0].Item
}

func (w *town) start(name string) lifecycle.Item {
	w.t.Helper()
	return w.claim(name, true)
}

// request is the next request about an item.
func request(actor string, item *lifecycle.Item) lifecycle.Request {
	return lifecycle.Request{Actor: actor, ExpectedRev: item.Rev, ID: fmt.Sprint("request-", item.Rev)}
}

// beat has the worker report that it is alive.
func (w *town) beat(item lifecycle.Item) {
	w.t.Helper()
	if _, err := w.queue.Heartbeat(w.t.Context(), item.WorkID, request("worker", &item)); err != nil {
		w.t.Fatal(err)
	}
}

// stall has a worker take the job's item, and an operator take it from the worker.
func (w *town) stall(name string) {
	w.t.Helper()
	item := w.start(name)
	if _, err := w.queue.Stall(w.t.Context(), item.WorkID, request("operator", &item)); err != nil {
		w.t.Fatal(err)
	}
}

// change brings an event to the job.
func (w *town) change(name string, event statemachine.Event) {
	w.t.Helper()
	result, err := w.ledger.Change(w.t.Context(), w.jobs[name], event)
	if err != nil || result.Outcome != statemachine.Applied {
		w.t.Fatalf("%T of %s: %s %s, %v", event, name, result.Outcome, result.Reason, err)
	}
	time.Sleep(time.Millisecond)
}

// work lets a worker carry the step that is next to that result.
func (w *town) work(name string, status statemachine.ResultStatus) {
	w.t.Helper()
	item := w.start(name)
	w.change(name, statemachine.Result{
		StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID},
		Status: status, ErrorCode: "said",
	})
}

// key is a row of a job's partition in the ledger.
func (w *town) key(name, row string) tablestore.Key {
	return tablestore.Key{Table: tables.Ledger, Partition: w.jobs[name], Row: row}
}

// find is the only row of a table that is about a job and has that prefix.
func (w *town) find(table, name, partition string) tablestore.Row {
	w.t.Helper()
	rows, err := w.store.(tablestore.Walker).Walk(w.t.Context(), tablestore.Walk{Table: table})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, row := range rows {
		mine := row.Properties.Get("job_id").String() == w.jobs[name]
		switch parts, err := tablestore.Split(row.Key.Row); {
		case err != nil:
		case len(parts) == 3:
			mine = mine || parts[1] == w.jobs[name]
		case len(parts) == 5:
			mine = mine || strings.HasPrefix(parts[2], w.jobs[name]+".")
		}
		if mine && strings.HasPrefix(row.Key.Partition, partition) {
			return row
		}
	}
	w.t.Fatalf("%s has no row of %s in %s", table, name, partition)
	return tablestore.Row{}
}

// write commits one op, which must go well.
func (w *town) write(op tablestore.Op) {
	w.t.Helper()
	if _, err := w.store.Commit(w.t.Context(), tablestore.Batch{op}); err != nil {
		w.t.Fatal(err)
	}
}

// drop deletes a row.
func (w *town) drop(key tablestore.Key) {
	w.t.Helper()
	if _, err := w.store.Get(w.t.Context(), key); err != nil {
		w.t.Fatal(err)
	}
	w.write(tablestore.Op{Verb: tablestore.Discard, Key: key})
}

// set changes one property of a row, which must be there.
func (w *town) set(key tablestore.Key, name string, value tablestore.Value) {
	w.t.Helper()
	row, err := w.store.Get(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	p := slices.DeleteFunc(row.Properties, func(p tablestore.Property) bool { return p.Name == name })
	w.write(tablestore.Op{Verb: tablestore.Put, Key: key, Properties: append(p, tablestore.Property{Name: name, Value: value})})
}

// audit audits the town.
func (w *town) audit(o audit.Options) *audit.Report {
	w.t.Helper()
	o.Tables, o.KeyTTL, o.Retention = tables, keyTTL, retention
	auditor, err := audit.New(audit.Config{Store: w.store.(audit.Store), Options: o})
	if err != nil {
		w.t.Fatal(err)
	}
	report, err := auditor.Run(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

func emptyStore() tablestore.Store { return memstore.New(memstore.Options{}) }
