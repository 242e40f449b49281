package projections_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// The rows have the keys and the fields of the seeds.
func TestRows_AreThoseOfPhase1(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t) // It is 2000-01-01 in a bubble.
		jobID := b.accept(t, "c")
		b.live(t, jobID, "refused for good")
		for key, fields := range map[tablestore.Key][]string{
			{Table: "luciusjobs", Partition: "tenant=2Fa:200001", Row: jobID}: {
				"tenant_id", "request_type", "protocol_id", "mode", "state", "idempotency_key", "idempotency_hash",
				"current_step_id", "attempts_total", "created_at", "updated_at", "completed_at", "error_code",
				"error_message", "correlation_id", "rev",
			},
			{Table: "luciussteps", Partition: jobID, Row: "STEP:0000:one"}: {
				"step_id", "step_type", "service", "state", "attempt_no", "lease_id", "input_ref", "output_ref",
				"resolved_mode", "lane", "routing_key_used", "decision_source", "decision_reason", "last_error_code",
				"last_error_message", "created_at", "updated_at", "completed_at",
			},
			{Table: "luciusoutbox", Partition: "tenant=2Fa:200001", Row: jobID + ".0.1"}: {
				"jobId", "stepId", "attempt_no", "lease_id", "state", "topic", "payload", "resolved_mode", "lane",
				"routing_key_used", "decision_source", "decision_reason", "created_at", "updated_at", "rev",
			},
			{Table: "luciusevents", Partition: jobID, Row: "20000101T000000.000Z:000000000002-000"}: {
				"event_type", "payload", "created_at", "rev",
			},
		} {
			row, err := b.memory.Get(t.Context(), key)
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
			for _, field := range fields {
				if row.Properties.Get(field).Kind() == 0 {
					t.Errorf("%s has no %s", key, field)
				}
			}
		}
	})
}

// A row that a newer version wrote keeps what this one does not know.
func TestProject_CarriesAlongWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.accept(t, "c")
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

// bucketOf is where a job's rows lie.
func bucketOf(jobID string) string { return "tenant=2Fa:" + ledger.IDTime(jobID).Format("200601") }

// A projected row that somebody deleted by mistake comes back with the next change
// of it.
func TestProject_MakesAnOutboxRowAnew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.accept(t, "c")
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

// What cannot be shown stays an error of what follows the change, which holds.
func TestProject_TellsOfFaults(t *testing.T) {
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

// A store is opened in the layout that its jobs lie in.
func TestOpen_RefusesAnotherLayout(t *testing.T) {
	t.Parallel()
	memory := memstore.New(memstore.Options{})
	if _, err := ledger.Open(t.Context(), ledger.Config{Store: memory}); err != nil {
		t.Fatal(err)
	}
	_, err := ledger.Open(t.Context(), ledger.Config{Store: memory, Projector: projections.New(memory, projections.Tables{})})
	if want := "open ledger: the store keeps its jobs in the layout ledger, not table"; err == nil || err.Error() != want {
		t.Errorf("answered %v", err)
	}
	b := setup(t)
	_, err = ledger.Open(t.Context(), ledger.Config{Store: b.store})
	if want := "open ledger: the store keeps its jobs in the layout table, not ledger"; err == nil || err.Error() != want {
		t.Errorf("answered %v", err)
	}
}

func TestTables_AreThreeOfTheirOwn(t *testing.T) {
	t.Parallel()
	names := projections.Tables{Outbox: "myoutbox"}.WithDefaults().All()
	if diff := cmp.Diff([]string{"luciusjobs", "myoutbox", "luciusevents"}, names); diff != "" {
		t.Error(diff)
	}
}

// The comparison of these tests sees whatever is wrong.
func TestCompare_SeesWhatIsWrong(t *testing.T) {
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
		"reference of a job":      {"luciusjobs", set("input_ref", tablestore.Bytes([]byte("{}")))},
		"surplus in a job":        {"luciusjobs", set("claim", tablestore.String("x"))},
		"state of an outbox row":  {"luciusoutbox", set("state", tablestore.String("SENT"))},
		"flag of an outbox row":   {"luciusoutbox", set("rejected", tablestore.Bool(true))},
		"rev of an outbox row":    {"luciusoutbox", set("rev", tablestore.Int(2))},
		"payload of a row":        {"luciusoutbox", set("payload", tablestore.Bytes([]byte("{}")))},
		"type of an event":        {"luciusevents", set("event_type", tablestore.String("job.lost"))},
		"payload of an event":     {"luciusevents", set("payload", tablestore.Bytes([]byte(`{"rev":7}`)))},
		"an event that says none": {"luciusevents", set("payload", tablestore.Bytes(nil))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.accept(t, "c")
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

// What cannot be read is an error, of the store or of the row.
func TestCompare_TellsOfRowsThatItCannotRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.accept(t, "c")
	op := tablestore.Op{Verb: tablestore.Put, Key: tablestore.Key{Table: aggregates, Partition: jobID, Row: "EVENT:000000000001"}}
	if _, err := b.memory.Commit(t.Context(), tablestore.Batch{op}); err != nil {
		t.Fatal(err)
	}
	walker := b.memory.(tablestore.Walker)
	if _, err := projectionstest.Compare(t.Context(), walker, aggregates, projections.Tables{}); err == nil {
		t.Error("a journal row without entries was read")
	}
	if _, err := projectionstest.Compare(t.Context(), walker, "", projections.Tables{}); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("a table without a name: %v", err)
	}
}
