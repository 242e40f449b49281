package audit_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
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
	out    []ledger.Message
	jobs   map[string]string
}

// Offer implements the ledger's hand-off.
func (w *town) Offer(m ledger.Message) { w.out = append(w.out, m) }

// settle builds the town.
func settle(t *testing.T) *town {
	t.Helper()
	w := &town{t: t, store: memstore.New(memstore.Options{}), jobs: map[string]string{}}
	storage := workqueue.NewStorage(w.store, "")
	var err error
	w.ledger, err = ledger.Open(t.Context(), ledger.Config{
		Store: w.store, Handoff: w, Follower: storage, Hold: time.Minute, KeyTTL: keyTTL, Retention: retention,
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.queue, err = workqueue.New(workqueue.Config{Storage: storage, Ledger: w.ledger}); err != nil {
		t.Fatal(err)
	}
	w.accept("done")
	w.work("done", statemachine.ResultSucceeded)
	w.work("done", statemachine.ResultSucceeded)
	w.accept("failed")
	w.work("failed", statemachine.ResultFailedFinal)
	w.accept("retry")
	w.work("retry", statemachine.ResultFailedRetry)
	w.accept("running")
	w.start("running")
	w.accept("queued")
	w.publish()
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

// publish brings what is pending into the queue.
func (w *town) publish() {
	w.t.Helper()
	messages := w.out
	w.out = nil
	for i, err := range w.queue.Publish(w.t.Context(), messages) {
		if err != nil {
			w.t.Fatal(err)
		}
		event := statemachine.Published{OutboxID: messages[i].OutboxID, AttemptNo: messages[i].AttemptNo, AwaitsClaim: true}
		if _, err := w.ledger.Change(w.t.Context(), messages[i].JobID, event); err != nil {
			w.t.Fatal(err)
		}
	}
}

// start publishes, and has a worker take the job's step up.
func (w *town) start(name string) statemachine.Pair {
	w.t.Helper()
	w.publish()
	views, err := w.queue.Claim(w.t.Context(), workqueue.ClaimRequest{
		Owner: "worker", RequestID: fmt.Sprint(name, time.Now().UnixNano()), Max: 1, Start: true,
	})
	if err != nil || len(views) != 1 || views[0].Item.JobID != w.jobs[name] {
		w.t.Fatalf("claim for %s: %d items, %v", name, len(views), err)
	}
	return statemachine.Pair{AttemptNo: views[0].Item.AttemptNo, LeaseID: views[0].Item.LeaseID}
}

// work lets a worker carry the step that is next to that result.
func (w *town) work(name string, status statemachine.ResultStatus) {
	w.t.Helper()
	pair := w.start(name)
	agg, err := w.ledger.Job(w.t.Context(), w.jobs[name])
	if err != nil {
		w.t.Fatal(err)
	}
	event := statemachine.Result{StepID: agg.Job.CurrentStepID, Pair: pair, Status: status, ErrorCode: "said"}
	if _, err := w.ledger.Change(w.t.Context(), w.jobs[name], event); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Millisecond)
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
		if parts, err := tablestore.Split(row.Key.Row); err == nil && len(parts) == 3 {
			mine = mine || parts[1] == w.jobs[name]
		}
		if mine && len(row.Key.Partition) >= len(partition) && row.Key.Partition[:len(partition)] == partition {
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
