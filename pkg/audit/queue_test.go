package audit_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// queueDamages are damages to the work items and to the ready index.
var queueDamages = map[string]damage{
	"an item keeps its worker after the deadline": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.set(f.key("running", "STEP:0000:step0"), "state", text("FAILED_RETRY"))
		f.set(f.key("running", "STEP:0000:step0"), "lease_expires_at", text(""))
	}},
	"a queued item has an owner": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.set(f.open("queued"), "owner", text("worker"))
	}},
	"a claimed item has no owner": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.set(f.open("claimed"), "owner", text(""))
	}},
	"a step shows another owner": {rule: audit.Queue, says: "shows work item", do: func(f *fixture) {
		f.set(f.key("running", "STEP:0000:step0"), "owner", text("another"))
	}},
	"a step of a queued item shows no item": {rule: audit.Queue, says: "shows work item", do: func(f *fixture) {
		f.set(f.key("queued", "STEP:0000:step0"), "work_id", text(""))
	}},
	"a stalled item came back without its next attempt": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.set(f.open("offered twice"), "attempt_no", tablestore.Int(1))
	}},
	"an open item of a step on the other bus": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.set(f.key("stalled", "OUTBOX:0000:000001"), "bus", text("servicebus"))
	}},
	"an open item of a step that is not the job's": {rule: audit.Queue, says: "does not fit step", do: func(f *fixture) {
		f.copy(f.key("running", "OPENITEM:0000:000001"), f.key("running", "OPENITEM:0001:000001"))
		f.set(f.key("running", "OPENITEM:0001:000001"), "step_index", tablestore.Int(1))
	}},
	"an item outlives its job": {rule: audit.Queue, says: "is open", do: func(f *fixture) {
		f.copy(f.key("failed", "ITEM:0000:000001"), f.key("failed", "OPENITEM:0000:000001"))
		f.set(f.key("failed", "OPENITEM:0000:000001"), "ended", text(""))
	}},
	"an open item has ended": {rule: audit.Queue, says: "is open and ended", do: func(f *fixture) {
		f.set(f.open("running"), "ended", text("failed"))
	}},
	"two items are open": {rule: audit.Queue, says: "open at once", do: func(f *fixture) {
		f.copy(f.open("running"), f.key("running", "OPENITEM:0000:000002"))
	}},
	"a worker has a step and no item": {rule: audit.Queue, says: "no work item is open", do: func(f *fixture) { f.drop(f.open("running")) }},
	"an item is lost": {rule: audit.Queue, says: "that of 0 work items", do: func(f *fixture) {
		f.drop(f.key("done", "ITEM:0000:000001"))
	}},
	"two items of one attempt": {rule: audit.Queue, says: "that of 2 work items", do: func(f *fixture) {
		f.copy(f.open("running"), f.key("running", "ITEM:0000:000001"))
	}},
	"an item of a step that is not there": {rule: audit.Queue, says: "missing", do: func(f *fixture) {
		f.set(f.open("queued"), "step_index", tablestore.Int(7))
	}},
	"an item under another's key": {rule: audit.Queue, says: "under the key", do: func(f *fixture) {
		f.set(f.open("queued"), "work_id", text(f.jobs["done"]+".0.1"))
	}},
	"an item carries a message that was not sent": {rule: audit.Queue, says: "was not sent", do: func(f *fixture) {
		f.set(f.open("queued"), "message_id", text(f.jobs["queued"]+".0.1/2"))
	}},
	"an item succeeded and the worker said that it failed": {rule: audit.Queue, says: "the RESULT of its attempt", do: func(f *fixture) {
		f.set(f.key("retry", "ITEM:0000:000001"), "ended", text("succeeded"))
	}},
	"an item that ended was removed": {rule: audit.Queue, says: "the RESULT of its attempt", do: func(f *fixture) {
		f.set(f.key("done", "ITEM:0000:000001"), "removed", tablestore.Bool(true))
	}},
	"an item was claimed more often than it moved": {rule: audit.Queue, says: "must be above attempt", do: func(f *fixture) {
		f.set(f.open("running"), "claims", tablestore.Int(9))
	}},
	"an item that failed does not say why": {rule: audit.Queue, says: "must be present when failed", do: func(f *fixture) {
		f.set(f.key("failed", "ITEM:0000:000001"), "error_code", text(""))
	}},
	"the result of an item is not what the step keeps": {rule: audit.Queue, says: "must be a JSON object", do: func(f *fixture) {
		f.set(f.key("done", "STEP:0000:step0"), "gave_result", tablestore.Bool(true))
	}},
	"an item remembers a request that is still to come": {rule: audit.Queue, says: "must not be beyond the item's rev", do: func(f *fixture) {
		f.set(f.open("running"), "requests", text(`[{"a":"worker","i":"x","o":"start","r":99,"n":1,"e":"2026-01-28T02:00:00Z"}]`))
	}},
	"the requests of an item are not readable": {rule: audit.Readable, do: func(f *fixture) {
		f.set(f.open("running"), "requests", text(`[{`))
	}},
	"a heartbeat is lost": {rule: audit.Queue, says: "its history", do: func(f *fixture) {
		f.drop(f.key("running", "BEAT:0000:000001:00000004"))
	}},
	"a heartbeat is not readable": {rule: audit.Readable, do: func(f *fixture) {
		f.ledger.Put(f.key("running", "BEAT:0000:000001:00000004"), tablestore.AppendLarge(nil, "moves", []byte(`[{`)))
	}},
	"an item moved outside of its history": {rule: audit.Queue, says: "its history", do: func(f *fixture) {
		f.set(f.open("queued"), "rev", tablestore.Int(2))
	}},
	"a history takes a move that is not in the table": {rule: audit.Queue, says: "must be in the table", do: func(f *fixture) {
		f.moves("running", func(moves string) string { return strings.Replace(moves, `"started"`, `"succeeded"`, 1) })
	}},
	"a removal is not in the history": {rule: audit.Queue, says: "last", do: func(f *fixture) {
		f.set(f.key("paused", "ITEM:0000:000001"), "removed", tablestore.Bool(false))
	}},
	"a history of no item": {rule: audit.Queue, says: "has a history", do: func(f *fixture) {
		f.drop(f.key("done", "ITEM:0000:000001"))
	}},
	"an item names a hint of another change": {rule: audit.Queue, says: "was offered at", do: func(f *fixture) {
		f.set(f.open("queued"), "ready_rev", tablestore.Int(2))
	}},
	"an item is ready since another time": {rule: audit.Queue, says: "was offered at", do: func(f *fixture) {
		f.set(f.open("queued"), "ready_since", tablestore.Time(time.Now().Add(time.Hour)))
	}},
	"an item names a hint of another class": {rule: audit.Queue, says: `in class "bulk", and was offered`, do: func(f *fixture) {
		f.set(f.open("queued"), "ready_class", tablestore.String("bulk"))
	}},
	"a job is of a class that its history does not know": {rule: audit.Queue, says: "its history ends with", do: func(f *fixture) {
		f.change("queued", statemachine.Prioritize{Class: statemachine.ClassBulk})
		f.set(f.key("queued", "JOB"), "class", tablestore.String(""))
	}},
	"a hint is in the partition of another class": {rule: audit.Forward, says: "is missing", do: func(f *fixture) {
		hint := f.find(tables.Queue, "queued", "ready")
		f.drop(hint.Key)
		hint.Key.Partition += ":bulk"
		f.ledger.Put(hint.Key, hint.Properties)
	}},
	"a hint names another lane": {rule: audit.Queue, says: "ready hint says", do: func(f *fixture) {
		f.set(f.find(tables.Queue, "queued", "ready").Key, "lane", tablestore.Int(7))
	}},
	"the kind of work is not in the catalog": {rule: audit.Queue, says: "catalog", do: func(f *fixture) {
		f.drop(tablestore.Key{Table: tables.Queue, Partition: "catalog", Row: "ocr:OCR"})
	}},
	"a held item names a run slot that is free": {rule: audit.Queue, says: "names run slot 3 service:ocr", do: func(f *fixture) {
		f.set(f.open("running"), "slots", text(`[{"limit":"service:ocr","no":3}]`))
	}},
	"a queued item names a run slot": {rule: audit.Queue, says: "is queued and names run slots", do: func(f *fixture) {
		f.set(f.open("queued"), "slots", text(`[{"limit":"service:ocr","no":3}]`))
	}},
	"a run slot is taken and no item names it": {rule: audit.Queue, says: "no held item names it", late: true, wait: time.Hour, do: func(f *fixture) {
		f.ledger.Put(tablestore.Key{Table: tables.Queue, Partition: "admission", Row: "limit:ocr::"},
			tablestore.Properties{{Name: "max_running", Value: tablestore.Int(5)}})
		f.ledger.Put(tablestore.Key{Table: tables.Queue, Partition: "limit:ocr::", Row: "run:0000003"},
			tablestore.Properties{{Name: "work_id", Value: text(f.jobs["running"] + ".0.1")}, {Name: "at", Value: tablestore.Time(time.Now())}})
	}},
	"a hint is not readable": {rule: audit.Readable, do: func(f *fixture) { f.hint(".0.1:", ".0.1.") }},
	"a hint that no work item names": {rule: audit.Queue, says: "no work item names it", late: true, wait: time.Hour, do: func(f *fixture) {
		f.hint(f.jobs["queued"], f.jobs["done"])
	}},
	"a hint of a job that is purged": {rule: audit.Queue, says: "no work item names it", late: true, wait: time.Hour, do: func(f *fixture) {
		f.hint(f.jobs["queued"], "00000000-0000-7000-8000-000000000000", ":000000000001", ":000000000002")
	}},
	"a hint of an accept that never came": {rule: audit.Queue, says: "never committed", late: true, wait: time.Hour, do: func(f *fixture) {
		f.hint(f.jobs["queued"], "00000000-0000-7000-8000-000000000000")
	}},
	"a hint of a change that never came": {rule: audit.Queue, says: "the job is at rev", late: true, wait: time.Hour, do: func(f *fixture) {
		f.hint(":000000000001", ":000000000099")
	}},
}

// TestAudit_ForgivesNoVoidHintAtRest expects a hint that no item names to be a
// violation once nothing is left to do: claims and the reconciler had to delete it.
func TestAudit_ForgivesNoVoidHintAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, false)
		f.hint(f.jobs["queued"], f.jobs["done"])
		void := func() int {
			count := 0
			for _, finding := range f.audit(audit.Options{Quiescent: true}).Findings {
				if finding.Invariant == audit.Queue && !finding.Late {
					count++
				}
			}
			return count
		}
		if got := void(); got != 0 {
			t.Errorf("%d violations while its deletion may be under way", got)
		}
		time.Sleep(time.Hour)
		if got := void(); got != 1 {
			t.Errorf("%d violations, want 1", got)
		}
	})
}

// open is the row of the job's open item.
func (f *fixture) open(name string) tablestore.Key { return f.key(name, "OPENITEM:0000:000001") }

// copy writes a copy of a row under another key.
func (f *fixture) copy(from, to tablestore.Key) {
	f.t.Helper()
	row := f.ledger.Row(from)
	f.ledger.Put(to, row.Properties)
}

// hint writes the ready hint of the queued job again, with parts of its key replaced.
func (f *fixture) hint(replaced ...string) {
	f.t.Helper()
	hint := f.find(tables.Queue, "queued", "ready")
	hint.Key.Row = strings.NewReplacer(replaced...).Replace(hint.Key.Row)
	f.ledger.Put(hint.Key, hint.Properties)
}

// moves rewrites the moves of work items in every change of a job.
func (f *fixture) moves(name string, edit func(string) string) {
	f.t.Helper()
	key := f.key(name, "")
	page, err := f.store.Scan(f.t.Context(), tablestore.Query{
		Table: key.Table, Partition: key.Partition, From: "EVENT:", To: "EVENT;",
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, row := range page.Rows {
		moves := edit(string(tablestore.Large(row.Properties, "moves")))
		kept := slices.DeleteFunc(row.Properties, func(p tablestore.Property) bool { return strings.HasPrefix(p.Name, "moves") })
		f.ledger.Put(row.Key, tablestore.AppendLarge(kept, "moves", []byte(moves)))
	}
}
