package audit_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestAudit_FindsNothingInTheProgramsRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, split := range []bool{false, true} {
			report := newFixture(t, split).audit(audit.Options{})
			want := map[string]int{
				"SUCCEEDED": 1, "FAILED_FINAL": 1, "IN_PROGRESS": 5, "PAUSED": 2, "DISPATCHING": 3, "QUEUED": 1,
			}
			if diff := cmp.Diff(want, report.States); diff != "" || report.Jobs != 13 || report.Rows < 150 {
				t.Errorf("%d jobs, %d rows, states (-want +got):\n%s", report.Jobs, report.Rows, diff)
			}
			for _, finding := range report.Findings {
				t.Errorf("split %t: %s", split, finding)
			}
		}
	})
}

func TestAudit_KnowsThatClocksDiffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, false)
		for name := range f.jobs {
			if f.ledger.Read(f.jobs[name]).Job.Rev > 1 {
				f.backdate(name, 2*time.Second)
			}
		}
		for _, finding := range f.audit(audit.Options{}).Findings {
			t.Error(finding)
		}
	})
}

// A key that named a second job under a shorter TTL is no violation of a longer one.
func TestAudit_KnowsThatKeysWereKeptForLessTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, false)
		first, late := f.jobs["done"], 0
		time.Sleep(keyTTL + time.Hour)
		f.accept("done")
		for _, finding := range f.audit(audit.Options{KeyTTL: 3 * keyTTL}).Findings {
			switch {
			case !finding.Late:
				t.Error(finding)
			case finding.Invariant == audit.Key && finding.JobID == first:
				late++
			}
		}
		if late != 1 {
			t.Errorf("%d findings say that the key names another job, want 1", late)
		}
	})
}

func TestAudit_ReportsWorkThatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, true)
		quiet := 0
		for _, finding := range f.audit(audit.Options{Quiescent: true}).Findings {
			if finding.Invariant == audit.Quiet && !finding.Late {
				quiet++
			}
		}
		if quiet != 11 {
			t.Errorf("%d jobs are said to go on, want 11", quiet)
		}
		time.Sleep(time.Hour) // No background work runs.
		late := map[string]bool{}
		for _, finding := range f.audit(audit.Options{}).Findings {
			if !finding.Late {
				t.Error(finding)
			}
			late[finding.JobID] = true
		}
		for _, name := range []string{"running", "retry", "dispatching", "stalled", "held", "claimed"} {
			if !late[f.jobs[name]] {
				t.Errorf("%s is overdue, and no finding reports it", name)
			}
		}
	})
}

// An audit that sees no rows must not pass: the rows may be hidden, or in other tables.
func TestAudit_RefusesAStoreWithoutSettings(t *testing.T) {
	t.Parallel()
	_, err := audit.Run(t.Context(), audit.Config{
		Store: emptyStore().(audit.Store), Options: audit.Options{Tables: audit.Tables{Ledger: "luciusledger", Schedule: "luciusschedule"}},
	})
	if !errors.Is(err, audit.ErrNoSettings) || !strings.Contains(err.Error(), "luciusschedule") {
		t.Errorf("an empty store: %v", err)
	}
}

// Rows of another format would look damaged.
func TestAudit_RefusesRowsOfAnotherFormat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, true)
		f.set(tablestore.Key{Table: tables.Schedule, Partition: "meta", Row: "settings"}, "format", tablestore.Int(7))
		_, err := audit.Run(t.Context(), audit.Config{Store: f.store.(audit.Store), Options: audit.Options{Tables: tables}})
		if err == nil || !strings.Contains(err.Error(), "format 7, and this program reads 1") {
			t.Errorf("rows of another format: %v", err)
		}
	})
}

// damage is one change to the fixture, and the finding that it must cause.
type damage struct {
	rule  audit.Invariant
	says  string // a part of the finding, for rules with several; optional
	late  bool
	do    func(f *fixture)
	wait  time.Duration
	split bool
}

func text(s string) tablestore.Value { return tablestore.String(s) }

// damages are changes that no part of the program may make, each with the invariant
// that must notice it.
var damages = map[string]damage{
	"a JOB row is lost":   {rule: audit.Accepted, do: func(f *fixture) { f.drop(f.key("running", "JOB")) }},
	"the payload is lost": {rule: audit.Accepted, says: "payload", do: func(f *fixture) { f.drop(f.key("running", "COMMAND")) }},
	"the outbox row of a step that has ended is lost": {rule: audit.Accepted, says: "outbox", do: func(f *fixture) {
		f.drop(f.key("done", "OUTBOX:0000:000001"))
		f.drop(f.key("done", "ITEM:0000:000001")) // None on Service Bus.
	}},
	"the last step is lost":      {rule: audit.Accepted, says: "has step step1", do: func(f *fixture) { f.drop(f.key("done", "STEP:0001:step1")) }},
	"all rows of a job are lost": {rule: audit.Accepted, do: loseQueued},
	// Here an accept may have crashed after its claim.
	"all rows of a job are lost, batch by batch": {rule: audit.Accepted, late: true, split: true, wait: time.Hour, do: loseQueued},
	"a failed job is live again": {rule: audit.Journal, do: func(f *fixture) {
		f.set(f.key("failed", "JOB"), "state", text("IN_PROGRESS"))
	}},
	"history goes on after the end": {rule: audit.Terminal, do: func(f *fixture) {
		row := f.ledger.Row(f.key("failed", "JOB"))
		rev := row.Properties.Get("rev").Int() + 1
		f.set(f.key("failed", "JOB"), "rev", tablestore.Int(rev))
		f.journal("failed", rev, `[{"object":"job","type":"job.succeeded","from":"FAILED_FINAL","to":"SUCCEEDED"}]`)
	}},
	"history walks an edge that is not listed": {rule: audit.Edges, do: func(f *fixture) {
		row := f.ledger.Row(f.key("queued", "JOB"))
		rev := row.Properties.Get("rev").Int() + 1
		f.set(f.key("queued", "JOB"), "rev", tablestore.Int(rev))
		f.journal("queued", rev, `[{"object":"job","type":"job.succeeded","from":"DISPATCHING","to":"SUCCEEDED"}]`)
	}},
	"a job that has begun waits for its date": {rule: audit.Dates, says: "with 1 attempts", do: func(f *fixture) {
		f.set(f.key("queued", "JOB"), "parked", tablestore.Bool(true))
	}},
	"a timer leads to a job that waits for its date": {rule: audit.Dates, says: `of the kind "timer"`, do: func(f *fixture) {
		f.set(f.key("parked", "JOB"), "entry_kind", text("timer"))
	}},
	"a job began before its date": {rule: audit.Dates, says: "it began at", do: func(f *fixture) {
		f.set(f.key("running", "JOB"), "not_before", tablestore.Time(time.Now().Add(time.Hour)))
	}},
	"a job expired without a date": {rule: audit.Dates, says: "it expired at", do: func(f *fixture) {
		f.set(f.key("failed", "JOB"), "error_code", text("expired"))
	}},
	"a job that waits has no place in its line": {rule: audit.Lines, says: "its place 2 in line", do: func(f *fixture) {
		f.line()
		f.ledger.Discard(f.place(2))
	}},
	"a line counts more places than it has": {rule: audit.Lines, says: "counts 3 places", do: func(f *fixture) {
		f.line()
		key := f.place(1)
		key.Row = "LINE"
		f.set(key, "count", tablestore.Int(3))
	}},
	"a job began before the one before it had ended": {rule: audit.Lines, says: "has not ended", do: func(f *fixture) {
		f.line()
		key := f.key("first", "JOB")
		place := f.ledger.Row(key).Properties.Get("place").String()
		f.set(key, "place", text(strings.Replace(place, `"seq":1`, `"seq":3`, 1)))
	}},
	"a job ended after the next of its line had begun": {rule: audit.Lines, says: "set back", do: func(f *fixture) {
		f.line()
		f.change("first", statemachine.Cancel{})
		f.set(f.key("first", "JOB"), "completed_at", tablestore.Time(time.Now().Add(time.Minute)))
	}},
	"the job of a place never came": {rule: audit.Lines, late: true, says: "it has a place", wait: time.Hour, do: func(f *fixture) {
		f.line()
		f.set(f.place(2), "job_id", text("00000000-0000-7000-8000-000000000000"))
	}},
	"a job left its line and kept its place": {rule: audit.Lines, late: true, says: "still has a place", wait: time.Hour, do: func(f *fixture) {
		f.line()
		line := f.place(2)
		line.Row = "LINE"
		place, before := f.ledger.Row(f.place(2)).Properties, f.ledger.Row(line).Properties
		f.ledger.Send(f.jobs["second"], statemachine.Cancel{})
		f.ledger.Put(f.place(2), place)
		f.ledger.Put(line, before)
	}},
	"a job has a key and no place": {rule: audit.Lines, says: "its order key has 3 bytes", do: func(f *fixture) {
		f.set(f.key("queued", "JOB"), "order_key", text("key"))
	}},
	"nothing leads to a paused job that expires": {rule: audit.Forward, says: "has no schedule entry", do: func(f *fixture) {
		f.set(f.key("paused", "JOB"), "not_after", tablestore.Time(time.Now().Add(time.Hour)))
	}},
	"a step is taken over by a job that is no rerun": {rule: audit.Lineage, says: "is no rerun", do: func(f *fixture) {
		f.set(f.key("running", "STEP:0000:step0"), "outcome", text("carried"))
	}},
	"a step is taken over after one that is executed": {rule: audit.Lineage, says: "which the job executes", do: func(f *fixture) {
		f.set(f.key("rerun", "STEP:0001:step1"), "outcome", text("carried"))
	}},
	"a step that was taken over is executed": {rule: audit.Lineage, says: "with 1 attempts", do: func(f *fixture) {
		f.set(f.key("rerun", "STEP:0000:step0"), "outcome", text("resolved"))
	}},
	"a step is taken over later": {rule: audit.Lineage, says: "not at the start", do: func(f *fixture) {
		row := f.ledger.Row(f.key("queued", "JOB"))
		rev := row.Properties.Get("rev").Int() + 1
		f.set(f.key("queued", "JOB"), "rev", tablestore.Int(rev))
		f.journal("queued", rev, `[{"object":"step","id":"step1","type":"step.carried","from":"","to":"SUCCEEDED"}]`)
	}},
	"a refused callback without a cause": {rule: audit.Rejected, says: `refused with ""`, do: func(f *fixture) {
		row := f.find("luciusledger", "done", "CALLBACK:")
		f.set(row.Key, "rejected", text(strings.Replace(row.Properties.Get("rejected").String(), "stale_attempt", "", 1)))
	}},
	"a refused callback of no step": {rule: audit.Rejected, says: "does not have", do: func(f *fixture) {
		f.reject("running", "step9")
	}},
	"more refused callbacks than fit": {rule: audit.Rejected, says: "not about 64", do: func(f *fixture) {
		row := f.find("luciusledger", "done", "CALLBACK:")
		for i := range 128 {
			row.Key.Row = fmt.Sprint("CALLBACK:", i)
			f.ledger.Put(row.Key, row.Properties)
		}
	}},
	"a refused callback is not readable": {rule: audit.Readable, says: "a refused callback", do: func(f *fixture) {
		f.set(f.find("luciusledger", "done", "CALLBACK:").Key, "rejected", text(`{"k":`))
	}},
	"a change is missing": {rule: audit.Journal, do: func(f *fixture) { f.drop(f.key("done", "EVENT:000000000003")) }},
	"a change is not readable": {rule: audit.Readable, do: func(f *fixture) {
		f.journal("done", 3, `[{`)
	}},
	"a change is a minute earlier than the one before": {rule: audit.Journal, late: true, says: "before the one before it", do: func(f *fixture) {
		f.backdate("done", time.Minute)
	}},
	"two changes are one operation": {rule: audit.Journal, do: func(f *fixture) {
		row := f.ledger.Row(f.key("done", "EVENT:000000000003"))
		f.set(f.key("done", "EVENT:000000000004"), "operation", row.Properties.Get("operation"))
	}},
	"two steps at once": {rule: audit.OneStep, do: func(f *fixture) {
		f.set(f.key("running", "STEP:0001:step1"), "state", text("IN_PROGRESS"))
	}},
	"a step is missing":   {rule: audit.OneStep, do: func(f *fixture) { f.drop(f.key("running", "STEP:0000:step0")) }},
	"a step out of order": {rule: audit.OneStep, do: func(f *fixture) { f.set(f.key("done", "STEP:0000:step0"), "state", text("PENDING")) }},
	"the lease is gone": {rule: audit.Pair, do: func(f *fixture) {
		f.set(f.key("running", "STEP:0000:step0"), "lease_id", text(""))
	}},
	"two attempts have one lease": {rule: audit.Pair, do: func(f *fixture) {
		row := f.ledger.Row(f.key("done", "OUTBOX:0000:000001"))
		f.set(f.key("done", "OUTBOX:0001:000001"), "lease_id", row.Properties.Get("lease_id"))
	}},
	"the outbox row of the attempt is gone": {rule: audit.Outbox, do: func(f *fixture) { f.drop(f.key("dispatching", "OUTBOX:0000:000001")) }},
	"marked sent while the step is dispatching": {rule: audit.Outbox, do: func(f *fixture) {
		f.set(f.key("dispatching", "OUTBOX:0000:000001"), "state", text("SENT"))
	}},
	"marked sent without a time": {rule: audit.Published, do: func(f *fixture) {
		f.set(f.key("done", "OUTBOX:0000:000001"), "sent_at", text(""))
	}},
	"the directive is gone": {rule: audit.Directive, do: func(f *fixture) { f.drop(f.key("running", "DIRECTIVE:0000:000001")) }},
	"the directive is that of another job": {rule: audit.Directive, do: func(f *fixture) {
		row := f.ledger.Row(f.key("done", "DIRECTIVE:0000:000001"))
		f.ledger.Put(f.key("running", "DIRECTIVE:0000:000001"), row.Properties)
	}},
	"an outbox row names no bus": {rule: audit.Outbox, do: func(f *fixture) {
		f.set(f.key("done", "OUTBOX:0000:000001"), "bus", text("pigeon"))
	}},
	"the key is forgotten":     {rule: audit.Key, do: func(f *fixture) { f.drop(f.find(tables.Idempotency, "done", "").Key) }},
	"the key names another":    {rule: audit.Key, do: func(f *fixture) { f.set(f.find(tables.Idempotency, "running", "").Key, "job_id", text(f.jobs["done"])) }},
	"the key has another hash": {rule: audit.Key, do: func(f *fixture) { f.set(f.find(tables.Idempotency, "running", "").Key, "idempotency_hash", text("x")) }},
	"a key that a purge deletes stays": {rule: audit.Key, late: true, says: "its idempotency key is taken since", wait: time.Hour, do: func(f *fixture) {
		f.set(f.key("done", "JOB"), "tombstone", tablestore.Bool(true))
	}},
	"failed with budget left": {rule: audit.Budget, do: func(f *fixture) {
		f.set(f.key("failed", "STEP:0000:step0"), "attempts", text("1:x:acked:"))
	}},
	"the entry is gone":                  {rule: audit.Forward, do: func(f *fixture) { f.drop(f.find(tables.Schedule, "running", "timer").Key) }},
	"the entry is too late":              {rule: audit.Forward, do: func(f *fixture) { f.postpone("running") }},
	"the work is not in the ready index": {rule: audit.Forward, do: func(f *fixture) { f.drop(f.find(tables.Queue, "queued", "ready").Key) }},
	"an accepted job has no entry": {rule: audit.Forward, split: true, do: func(f *fixture) {
		f.drop(f.find(tables.Schedule, "queued", "timer").Key)
		f.set(f.key("queued", "JOB"), "entry_kind", text(""))
	}},
	"no worker can continue the work": {rule: audit.Forward, says: "neither a worker nor", do: func(f *fixture) {
		f.drop(f.key("queued", "OPENITEM:0000:000001"))
	}},
	"the slot is free while the job runs": {rule: audit.Slot, do: func(f *fixture) { f.drop(f.find(tables.Schedule, "running", "live").Key) }},
	"the slot is taken after the end": {rule: audit.Slot, do: func(f *fixture) {
		row := f.ledger.Row(f.key("done", "JOB"))
		f.ledger.Put(tablestore.Key{
			Table: tables.Schedule, Partition: row.Properties.Get("slot_partition").String(), Row: row.Properties.Get("slot_row").String(),
		}, tablestore.Properties{{Name: "job_id", Value: text(f.jobs["done"])}})
	}},
	"a second slot is kept": {rule: audit.Slot, late: true, wait: time.Hour, do: func(f *fixture) {
		slot := f.find(tables.Schedule, "running", "live")
		slot.Key.Row += "2"
		f.ledger.Put(slot.Key, slot.Properties)
	}},
	"not in the list of its month":    {rule: audit.Listed, do: func(f *fixture) { f.drop(f.find(tables.Index, "running", "jobs").Key) }},
	"not in the list of failures":     {rule: audit.Listed, do: func(f *fixture) { f.drop(f.find(tables.Index, "failed", "ended").Key) }},
	"not in the list of its document": {rule: audit.Listed, do: func(f *fixture) { f.drop(f.find(tables.Index, "running", "doc").Key) }},
	"not in the list of its second tag": {rule: audit.Listed, do: func(f *fixture) {
		f.drop(f.find(tables.Index, "done", "job:").Key)
	}},
	"a rerun is not in the list of a tag that it copied": {rule: audit.Listed, do: func(f *fixture) {
		f.drop(f.find(tables.Index, "rerun", "env:").Key)
	}},
	"not in the list of its state": {rule: audit.Listed, do: func(f *fixture) { f.drop(f.find(tables.Index, "running", "live").Key) }},
	"in the list of a state that it left": {rule: audit.Listed, says: "and not there", do: func(f *fixture) {
		row := f.find(tables.Index, "running", "live")
		row.Key.Partition = strings.Replace(row.Key.Partition, "IN_PROGRESS", "DISPATCHING", 1)
		f.ledger.Put(row.Key, row.Properties)
	}},
	"in the list of live jobs after its end": {rule: audit.Listed, says: "and not there", do: func(f *fixture) {
		row := f.find(tables.Index, "done", "jobs")
		row.Key.Partition = tablestore.Join("live", "tenant_a", "IN_PROGRESS")
		f.ledger.Put(row.Key, row.Properties)
	}},
	"not in the list of reruns": {rule: audit.Listed, do: func(f *fixture) { f.drop(f.find(tables.Index, "rerun", "reruns").Key) }},
	"a webhook is lost":         {rule: audit.Ended, do: func(f *fixture) { f.drop(f.key("done", "WEBHOOK:00")) }},
	"nothing leads to a webhook": {rule: audit.Ended, says: "is pending", do: func(f *fixture) {
		f.drop(f.find(tables.Schedule, "done", "webhook").Key)
	}},
	"the post work of the end is undone": {rule: audit.Ended, late: true, wait: time.Hour, do: func(f *fixture) {
		row := f.ledger.Row(f.key("done", "JOB"))
		entry := f.find(tables.Schedule, "done", "retention")
		entry.Key.Row = tablestore.Join("timer", tablestore.Pad(row.Properties.Get("entry_due").Time().UnixMilli(), 13), f.jobs["done"],
			row.Properties.Get("entry_nonce").String())
		f.ledger.Put(entry.Key, entry.Properties)
	}},
}

// loseQueued deletes a job, but not the rows that name it.
func loseQueued(f *fixture) {
	f.t.Helper()
	query := tablestore.Query{Table: tables.Ledger, Partition: f.jobs["queued"]}
	if err := tablestore.DiscardAll(f.t.Context(), f.store, query, ""); err != nil {
		f.t.Fatal(err)
	}
}

// postpone moves the entry of a job an hour.
func (f *fixture) postpone(name string) {
	f.t.Helper()
	entry := f.find(tables.Schedule, name, "timer")
	parts, err := tablestore.Split(entry.Key.Row)
	if err != nil {
		f.t.Fatal(err)
	}
	row := f.ledger.Row(f.key(name, "JOB"))
	due := row.Properties.Get("entry_due").Time().Add(time.Hour)
	f.set(f.key(name, "JOB"), "entry_due", tablestore.Time(due))
	entry.Key.Row = tablestore.Join(parts[0], tablestore.Pad(due.UnixMilli(), 13), parts[2], parts[3])
	f.ledger.Put(entry.Key, entry.Properties)
}

// backdate makes the second change of a job earlier than the first.
func (f *fixture) backdate(name string, by time.Duration) {
	first := f.ledger.Row(f.key(name, "EVENT:000000000001")).Properties.Get("at").Time()
	f.set(f.key(name, "EVENT:000000000002"), "at", tablestore.Time(first.Add(-by)))
}

// journal writes a change into a job's history.
func (f *fixture) journal(name string, rev int64, entries string) {
	f.t.Helper()
	f.ledger.Put(f.key(name, "EVENT:"+tablestore.Pad(rev, 12)), tablestore.AppendLarge(tablestore.Properties{
		{Name: "rev", Value: tablestore.Int(rev)}, {Name: "operation", Value: text("ours")}, {Name: "at", Value: tablestore.Time(time.Now())},
	}, "entries", []byte(entries)))
}

func TestAudit_NoticesEveryDamage(t *testing.T) {
	t.Parallel()
	all := maps.Clone(damages)
	maps.Copy(all, queueDamages)
	for name, damage := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, damage.split)
				damage.do(f)
				time.Sleep(damage.wait)
				var lines string
				for _, finding := range f.audit(audit.Options{}).Findings {
					if finding.Invariant == damage.rule && finding.Late == damage.late && strings.Contains(finding.Detail, damage.says) {
						return
					}
					lines += "\n" + finding.String()
				}
				t.Errorf("nothing of %q was found, but:%s", damage.rule, lines)
			})
		})
	}
}

func TestInvariants_EachHasADamageThatItNotices(t *testing.T) {
	t.Parallel()
	noticed := map[audit.Invariant]bool{audit.Quiet: true, audit.Schedules: len(cronDamages) > 0} // Shown by other tests.
	for _, damage := range damages {
		noticed[damage.rule] = true
	}
	for _, damage := range queueDamages {
		noticed[damage.rule] = true
	}
	for _, rule := range audit.Invariants {
		if !noticed[rule] {
			t.Errorf("no damage shows that %q is checked", rule)
		}
	}
}
