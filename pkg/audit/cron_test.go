package audit_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// cronProtocol is that of the commands of the schedule.
const cronProtocol = `
protocol_id: report
request_types: [report.make]
steps:
  - {step_id: make, step_type: OCR, service: ocr}
`

// cron makes a schedule whose newest two occurrences were fired and, an hour before, many missed. It returns its id.
func (f *fixture) cron() (id string) {
	f.t.Helper()
	f.held = false
	registry, err := commands.LoadProtocolsFS(fstest.MapFS{"report.yaml": {Data: []byte(cronProtocol)}})
	if err != nil {
		f.t.Fatal(err)
	}
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		f.t.Fatal(err)
	}
	accepting, err := commands.New(commands.Config{
		Ledger: f.ledger.Ledger, Protocols: commands.NewProtocolHolder(registry), Router: router, Defaults: ledgertest.Policy(),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctl := schedules.New(schedules.Config{Store: f.store, Commands: accepting, Ledger: f.ledger.Ledger})
	made, err := ctl.Create(f.t.Context(), schedules.Definition{
		TenantID: "tenant_a", Name: "minutely", Spec: calendar.Spec{Every: time.Minute}, Overlap: schedules.OverlapAllow,
		CatchUp: schedules.CatchUp{Policy: schedules.CatchUpNone},
		Command: []byte(`{"request_type":"report.make","schema_version":"1","payload":{},"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"}}`),
	}, "ops")
	if err != nil {
		f.t.Fatal(err)
	}
	fires := background.NewCron(background.CronConfig{Schedules: ctl})
	pass := func() {
		if _, err := fires.RunOnce(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		fires.Wait()
	}
	time.Sleep(time.Hour)
	pass() // Most are missed.
	for range 2 {
		time.Sleep(time.Minute)
		pass()
	}
	return made.ID
}

// cronRows returns the rows of a schedule whose keys begin so, the newest occurrence first.
func (f *fixture) cronRows(id, begins string) []tablestore.Row {
	f.t.Helper()
	rows, err := tablestore.ScanAll(f.t.Context(), f.store, tablestore.Query{
		Table: tables.Cron, Partition: id, From: begins, To: tablestore.PrefixEnd(begins),
	})
	if err != nil || len(rows) == 0 {
		f.t.Fatalf("%d rows %s of the schedule: %v", len(rows), begins, err)
	}
	return rows
}

// cronDamages are changes that no part of the program may make to a schedule.
var cronDamages = map[string]struct {
	says string
	do   func(f *fixture, id string)
}{
	"an occurrence is forgotten": {"counts as decided, and is not in the history", func(f *fixture, id string) {
		f.drop(f.cronRows(id, "FIRE:")[1].Key)
	}},
	"many missed occurrences are forgotten": {"counts as decided, and is not in the history", func(f *fixture, id string) {
		f.drop(f.cronRows(id, "RANGE:")[0].Key)
	}},
	"an occurrence that was fired is shown as missed": {"is missed and names job", func(f *fixture, id string) {
		f.set(f.cronRows(id, "FIRE:")[0].Key, "outcome", text("missed"))
	}},
	"an occurrence was fired without a job": {"is missing", func(f *fixture, id string) {
		f.set(f.cronRows(id, "FIRE:")[0].Key, "job_id", text("00000000-0000-7000-8000-000000000000"))
	}},
	"two jobs are of one occurrence": {"has the jobs", func(f *fixture, id string) {
		fires := f.cronRows(id, "FIRE:")
		first := tablestore.Key{Table: tables.Ledger, Partition: fires[0].Properties.Get("job_id").String(), Row: "JOB"}
		second := tablestore.Key{Table: tables.Ledger, Partition: fires[1].Properties.Get("job_id").String(), Row: "JOB"}
		for _, name := range []string{"occurrence", "claim"} {
			f.set(second, name, f.ledger.Row(first).Properties.Get(name))
		}
	}},
	"nothing leads to the next occurrence": {"is missing", func(f *fixture, id string) {
		f.drop(f.cronEntry(id))
	}},
	"nothing goes on with a backfill": {"the entry of its backfill", func(f *fixture, id string) {
		row := tablestore.NewCodec[schedules.Backfill]().Encode(&schedules.Backfill{ID: "b1", Due: time.Now()}, nil)
		f.ledger.Put(tablestore.Key{Table: tables.Cron, Partition: id, Row: "BACKFILL:b1"}, row)
	}},
	"a backfill left a claim": {"is claimed for backfill b1, which has ended", func(f *fixture, id string) {
		fire := f.cronRows(id, "FIRE:")[0].Key
		f.set(fire, "outcome", text("claimed"))
		f.set(fire, "backfill_id", text("b1"))
	}},
	"the entry is later than the next occurrence": {"and the next occurrence at", func(f *fixture, id string) {
		entry := f.ledger.Row(f.cronEntry(id))
		due := f.cronRows(id, "HEAD")[0].Properties.Get("entry_due").Time().Add(time.Hour)
		f.set(f.cronRows(id, "HEAD")[0].Key, "entry_due", tablestore.Time(due))
		entry.Key.Row = tablestore.Pad(due.UnixMilli(), 13) + entry.Key.Row[13:]
		f.ledger.Put(entry.Key, entry.Properties)
	}},
	"the next occurrence is decided": {"the last occurrence is", func(f *fixture, id string) {
		head := f.cronRows(id, "HEAD")[0]
		f.set(head.Key, "next", head.Properties.Get("last"))
	}},
	"the definition is not readable": {"cannot be read", func(f *fixture, id string) {
		f.set(f.cronRows(id, "VERSION:")[0].Key, "time_zone", text("Mars/Olympus"))
	}},
}

// cronEntry is the key of the entry that leads to the schedule's next occurrence.
func (f *fixture) cronEntry(id string) tablestore.Key {
	f.t.Helper()
	head := f.cronRows(id, "HEAD")[0].Properties
	return tablestore.Key{
		Table: tables.Schedule, Partition: "cron",
		Row: tablestore.Join(tablestore.Pad(head.Get("entry_due").Time().UnixMilli(), 13), id, head.Get("entry_nonce").String()),
	}
}

func TestAudit_NoticesEveryDamageOfASchedule(t *testing.T) {
	t.Parallel()
	about := func(f *fixture) (found []string) {
		for _, finding := range f.audit(audit.Options{}).Findings {
			if finding.Invariant == audit.Schedules {
				found = append(found, finding.Detail)
			}
		}
		return found
	}
	for name, damage := range cronDamages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, true)
				id := f.cron()
				if found := about(f); found != nil {
					t.Fatalf("before the damage: %q", found)
				}
				damage.do(f, id)
				found := about(f)
				if !slices.ContainsFunc(found, func(detail string) bool { return strings.Contains(detail, damage.says) }) {
					t.Errorf("found %q, want one that says %q", found, damage.says)
				}
			})
		})
	}
}
