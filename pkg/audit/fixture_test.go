package audit_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// The settings of the fixture's ledger.
const (
	keyTTL    = 24 * time.Hour
	retention = 48 * time.Hour
)

var tables = audit.Tables{
	Ledger: "luciusledger", Schedule: "luciusschedule", Idempotency: "jobidempotency",
	Index: "luciusjobindex", Queue: "luciusqueue", Cron: "luciuscron",
}

// fixture is a store with a job in each state, by name, that the program's
// own code wrote.
type fixture struct {
	t      *testing.T
	store  tablestore.Store
	ledger *ledgertest.Ledger
	queue  *workqueue.Queue
	jobs   map[string]string
	held   bool // dispatch is paused
}

// newFixture fills a store that is atomic, or writes batch by batch.
func newFixture(t *testing.T, split bool) *fixture {
	t.Helper()
	f := &fixture{t: t, store: memstore.New(memstore.Options{Split: split}), jobs: map[string]string{}}
	mirror := workqueue.NewMirror(0)
	f.ledger = ledgertest.Open(t, ledger.Config{
		Store: f.store, Shared: true, Ready: mirror.Ready, Taker: mirror.Taker, Hold: time.Minute, KeyTTL: keyTTL, Retention: retention, SpreadIDs: split,
		Held: func(statemachine.Target) bool { return f.held },
	})
	f.queue = workqueue.New(workqueue.Config{Ledger: f.ledger.Ledger, Store: f.store, Mirror: mirror})
	f.accept("done")
	f.work("done", statemachine.ResultSucceeded)
	f.work("done", statemachine.ResultSucceeded)
	f.reject("done", "step1")
	f.accept("failed")
	f.work("failed", statemachine.ResultFailedFinal)
	f.accept("retry")
	f.work("retry", statemachine.ResultFailedRetry)
	f.accept("stalled")
	f.stall("stalled")
	f.accept("offered twice")
	f.stall("offered twice")
	f.change("offered twice", statemachine.Retry{})
	f.start("offered twice")
	f.accept("held")
	f.stall("held")
	f.held = true
	f.change("held", statemachine.Retry{})
	f.held = false
	f.accept("paused")
	f.change("paused", statemachine.Pause{})
	f.rerun("rerun", "failed")
	f.change("rerun", statemachine.Pause{})
	f.park("parked")
	f.accept("running")
	f.beat(f.start("running"))
	f.accept("claimed")
	f.claim("claimed", false)
	f.accept("queued")
	f.held = true
	f.accept("dispatching")
	return f
}

// park accepts a job that waits for its date.
func (f *fixture) park(name string) {
	cmd := command(name)
	cmd.Job.NotBefore, cmd.Job.NotAfter = time.Now().UTC().Add(time.Hour), time.Now().UTC().Add(2*time.Hour)
	f.jobs[name] = f.ledger.Submit(cmd)
}

// line accepts two jobs of one line, of which the second waits.
func (f *fixture) line() {
	for _, name := range []string{"first", "second"} {
		cmd := command(name)
		cmd.Job.Order = statemachine.Order{Key: "doc", Mode: statemachine.OrderFIFO, Blocks: true}
		f.jobs[name] = f.ledger.Submit(cmd)
	}
}

// place is the key of a place in that line.
func (f *fixture) place(seq int) tablestore.Key {
	return tablestore.Key{
		Table: tables.Schedule, Partition: "line:" + ledger.LineID("tenant_a", "doc"), Row: "P:" + tablestore.Pad(seq, 12),
	}
}

// accept accepts a job of two steps.
func (f *fixture) accept(name string) { f.jobs[name] = f.ledger.Submit(command(name)) }

// command is a command of two steps.
func command(name string) ledger.Command {
	first, second := ledgertest.Step("step0", "OCR", "ocr"), ledgertest.Step("step1", "OCR", "ocr")
	first.Policy.MaxAttempts, second.Policy.MaxAttempts = 10, 10
	cmd := ledgertest.Command("tenant_a", name, first, second)
	cmd.Job.CorrelationID, cmd.Job.CallbackURLs = "of "+name, []string{"https://example.org/" + name}
	cmd.Job.DocID, cmd.Job.Tags = "the "+name, statemachine.NewTags(map[string]string{"env": "prod", "job": "a:" + name})
	return cmd
}

// rerun reruns a job.
func (f *fixture) rerun(name, failed string) {
	f.jobs[name] = f.ledger.RerunOf(f.jobs[failed], ledger.FromFailed)
}

// claim lets a worker claim the job's item, and start it if start is true.
func (f *fixture) claim(name string, start bool) statemachine.Item {
	f.t.Helper()
	views, err := f.queue.Claim(f.t.Context(), workqueue.ClaimRequest{
		Owner: "worker", RequestID: fmt.Sprint(name, time.Now().UnixNano()), Max: 1, Start: start,
	})
	if err != nil || len(views) != 1 || views[0].Item.JobID != f.jobs[name] {
		f.t.Fatalf("claim for %s: %d items, %v", name, len(views), err)
	}
	time.Sleep(time.Millisecond)
	return views[0].Item
}

func (f *fixture) start(name string) statemachine.Item {
	f.t.Helper()
	return f.claim(name, true)
}

// request returns the next request about an item.
func request(actor string, item *statemachine.Item) statemachine.ItemRequest {
	return statemachine.ItemRequest{Actor: actor, ExpectedRev: item.Rev, ID: fmt.Sprint("request-", item.Rev)}
}

// beat sends a heartbeat of the worker.
func (f *fixture) beat(item statemachine.Item) {
	f.t.Helper()
	if _, err := f.queue.Heartbeat(f.t.Context(), item.WorkID, request("worker", &item), nil); err != nil {
		f.t.Fatal(err)
	}
}

// stall lets a worker start the job's item, and an operator stall it.
func (f *fixture) stall(name string) {
	f.t.Helper()
	item := f.start(name)
	if _, err := f.queue.Stall(f.t.Context(), item.WorkID, request("operator", &item)); err != nil {
		f.t.Fatal(err)
	}
}

// change applies an event to the job.
func (f *fixture) change(name string, event statemachine.Event) {
	f.ledger.Apply(f.jobs[name], event)
	time.Sleep(time.Millisecond)
}

// work lets a worker execute the next step with that result.
func (f *fixture) work(name string, status statemachine.ResultStatus) {
	f.t.Helper()
	item := f.start(name)
	f.change(name, statemachine.Result{
		StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID},
		Status: status, ErrorCode: "said",
	})
}

// key returns the key of a row in a job's partition of the ledger.
func (f *fixture) key(name, row string) tablestore.Key {
	return tablestore.Key{Table: tables.Ledger, Partition: f.jobs[name], Row: row}
}

// find returns the only row of a table that belongs to a job, in a partition with that prefix.
func (f *fixture) find(table, name, begins string) tablestore.Row {
	f.t.Helper()
	rows, err := f.store.(tablestore.Walker).Walk(f.t.Context(), tablestore.Walk{Table: table})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, row := range rows {
		mine := row.Properties.Get("job_id").String() == f.jobs[name] || row.Key.Partition == f.jobs[name]
		switch parts, err := tablestore.Split(row.Key.Row); {
		case err != nil:
		case len(parts) == 4:
			mine = mine || parts[2] == f.jobs[name]
		case len(parts) == 5:
			mine = mine || strings.HasPrefix(parts[2], f.jobs[name]+".")
		}
		if mine && (strings.HasPrefix(row.Key.Partition, begins) || strings.HasPrefix(row.Key.Row, begins)) {
			return row
		}
	}
	f.t.Fatalf("%s has no row of %s in %s", table, name, begins)
	return tablestore.Row{}
}

// reject records an ACK of a step as refused.
func (f *fixture) reject(name, step string) {
	f.t.Helper()
	one := ledger.Rejection{StepID: step, Kind: "ACK", AttemptNo: 1, LeaseDigest: "d", Cause: "stale_attempt"}
	if err := f.ledger.Reject(f.t.Context(), &f.ledger.Read(f.jobs[name]).Job, one); err != nil {
		f.t.Fatal(err)
	}
}

// drop deletes a row.
func (f *fixture) drop(key tablestore.Key) {
	f.t.Helper()
	_ = f.ledger.Row(key)
	f.ledger.Discard(key)
}

// set changes one property of an existing row.
func (f *fixture) set(key tablestore.Key, name string, value tablestore.Value) {
	f.t.Helper()
	row := f.ledger.Row(key)
	p := slices.DeleteFunc(row.Properties, func(p tablestore.Property) bool { return p.Name == name })
	f.ledger.Put(key, append(p, tablestore.Property{Name: name, Value: value}))
}

// audit audits the fixture.
func (f *fixture) audit(o audit.Options) *audit.Report {
	f.t.Helper()
	o.Tables, o.KeyTTL, o.Retention = tables, cmp.Or(o.KeyTTL, keyTTL), retention
	report, err := audit.Run(f.t.Context(), audit.Config{Store: f.store.(audit.Store), Options: o})
	if err != nil {
		f.t.Fatal(err)
	}
	return report
}

func emptyStore() tablestore.Store { return memstore.New(memstore.Options{}) }
