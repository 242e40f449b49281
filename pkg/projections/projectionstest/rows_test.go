package projectionstest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// A row that a newer version wrote keeps columns that this version does not
// know.
func TestProject_KeepsUnknownColumns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.Submit(command("c"))
	keys := []tablestore.Key{
		{Table: "luciusjobs", Partition: bucketOf(jobID), Row: jobID},
		{Table: "luciusoutbox", Partition: bucketOf(jobID), Row: jobID + ".0.1"},
	}
	for _, key := range keys {
		row, err := b.memory.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		op := tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: row.ETag, Properties: append(row.Properties,
			tablestore.Property{Name: "newer", Value: tablestore.Int(7)})}
		if _, err := b.memory.Commit(t.Context(), tablestore.Batch{op}); err != nil {
			t.Fatal(err)
		}
	}
	b.live(t, jobID, "published")
	for _, key := range keys {
		row, err := b.memory.Get(t.Context(), key)
		if err != nil || row.Properties.Get("newer").Int() != 7 || row.Properties.Get("rev").Int() != 2 {
			t.Errorf("%s: %v, %v", key, row.Properties, err)
		}
	}
}

// bucketOf returns the partition of a job's rows.
func bucketOf(jobID string) string { return "tenant=2Fa:" + ledger.IDTime(jobID).Format("200601") }

// The next change of a projected row writes it again if an operator deleted it.
func TestProject_WritesADeletedOutboxRowAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.Submit(command("c"))
	key := tablestore.Key{Table: "luciusoutbox", Partition: bucketOf(jobID), Row: jobID + ".0.1"}
	if _, err := b.memory.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
		t.Fatal(err)
	}
	if found := b.differences(t); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	b.live(t, jobID, "published")
	b.assertShown(t, "published")
}

// A failed projection is reported as PostErr; the change is committed
// nevertheless.
func TestProject_ReportsFaults(t *testing.T) {
	t.Parallel()
	for table := range projected {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.store.set(func(batch tablestore.Batch) error {
				if batch[0].Key.Table == table {
					return tablestore.ErrUnknown
				}
				return nil
			})
			accepted, err := b.Accept(t.Context(), command("c"))
			if err != nil || !errors.Is(accepted.PostErr, tablestore.ErrUnknown) {
				t.Errorf("answered %v, and then %v", err, accepted.PostErr)
			}
			if job, err := b.Job(t.Context(), accepted.Job.ID); err != nil || job.Job.State != statemachine.JobDispatching {
				t.Errorf("the job is %+v, %v", job, err)
			}
		})
	}
}

// A store can only be opened in the layout of its jobs.
func TestOpen_RefusesAnotherLayout(t *testing.T) {
	t.Parallel()
	memory := memstore.New(memstore.Options{})
	if _, err := ledger.Open(t.Context(), ledger.Config{Store: memory}); err != nil {
		t.Fatal(err)
	}
	_, err := ledger.Open(t.Context(), ledger.Config{Store: memory, Projector: projections.New(memory, projections.Tables{}, nil)})
	if want := "open ledger: the store keeps its jobs in the layout ledger, not table"; err == nil || err.Error() != want {
		t.Errorf("answered %v", err)
	}
	b := setup(t)
	_, err = ledger.Open(t.Context(), ledger.Config{Store: b.store})
	if want := "open ledger: the store keeps its jobs in the layout table, not ledger"; err == nil || err.Error() != want {
		t.Errorf("answered %v", err)
	}
}

// The comparison of these tests detects every kind of difference.
func TestCompare_DetectsDifferences(t *testing.T) {
	t.Parallel()
	set := func(name string, value tablestore.Value) func(tablestore.Properties) tablestore.Properties {
		return func(p tablestore.Properties) tablestore.Properties {
			for i := range p {
				if p[i].Name == name {
					p[i].Value = value
					return p
				}
			}
			return append(p, tablestore.Property{Name: name, Value: value})
		}
	}
	for name, change := range map[string]struct {
		table  string
		change func(tablestore.Properties) tablestore.Properties
	}{
		"state of a job":          {"luciusjobs", set("state", tablestore.String("SUCCEEDED"))},
		"time of a job":           {"luciusjobs", set("completed_at", tablestore.Time(time.Now()))},
		"reference of a job":      {"luciusjobs", set("input_ref", tablestore.String("{}"))},
		"surplus in a job":        {"luciusjobs", set("claim", tablestore.String("x"))},
		"state of an outbox row":  {"luciusoutbox", set("state", tablestore.String("SENT"))},
		"flag of an outbox row":   {"luciusoutbox", set("rejected", tablestore.Bool(true))},
		"rev of an outbox row":    {"luciusoutbox", set("rev", tablestore.Int(2))},
		"payload of a row":        {"luciusoutbox", set("payload", tablestore.String("{}"))},
		"type of an event":        {"luciusevents", set("event_type", tablestore.String("job.lost"))},
		"payload of an event":     {"luciusevents", set("payload", tablestore.String(`{"rev":7}`))},
		"an event that says none": {"luciusevents", set("payload", tablestore.String(""))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Submit(command("c"))
			b.assertShown(t, "accepted")
			rows, err := b.memory.(tablestore.Walker).Walk(t.Context(), tablestore.Walk{Table: change.table})
			if err != nil {
				t.Fatal(err)
			}
			op := tablestore.Op{Verb: tablestore.Put, Key: rows[0].Key, Properties: change.change(rows[0].Properties)}
			if _, err := b.memory.Commit(t.Context(), tablestore.Batch{op}); err != nil {
				t.Fatal(err)
			}
			if found := b.differences(t); len(found) == 0 {
				t.Error("nothing was seen")
			}
			op = tablestore.Op{Verb: tablestore.Put, Key: rows[0].Key, Properties: op.Properties}
			op.Key.Row += "0"
			if _, err := b.memory.Commit(t.Context(), tablestore.Batch{op}); err != nil {
				t.Fatal(err)
			}
			if found := b.differences(t); len(found) < 2 {
				t.Errorf("a row too many was not seen: %v", found)
			}
		})
	}
}

// An unreadable row is an error, of the store or of the row.
func TestCompare_ReportsUnreadableRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.Submit(command("c"))
	op := tablestore.Op{Verb: tablestore.Put, Key: tablestore.Key{Table: aggregates, Partition: jobID, Row: "EVENT:000000000001"}}
	if _, err := b.memory.Commit(t.Context(), tablestore.Batch{op}); err != nil {
		t.Fatal(err)
	}
	walker := b.memory.(tablestore.Walker)
	if _, err := projectionstest.Compare(t.Context(), walker, aggregates); err == nil {
		t.Error("a journal row without entries was read")
	}
	if _, err := projectionstest.Compare(t.Context(), walker, ""); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("a table without a name: %v", err)
	}
}
