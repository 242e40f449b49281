package projectionstest_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The fields of the tests below are copied from the Ledger and state model,
// Data model, in its order. Each must have its exact value, including numbers
// that are 0; JSON is text.
//
// The job's life: accepted at 0 s, published at 1 s, ACKed at 2 s and failed for
// good at 3 s, in its first step, on lane 0.
type life struct {
	*bundle
	jobID, outboxID, leaseID string
	start                    time.Time
	directive                []byte
}

// liveFor runs a job's life for that many seconds.
func liveFor(t *testing.T, seconds int) *life {
	t.Helper()
	b, cmd := setup(t), command("key_1")
	cmd.Job.DocID, cmd.Job.IdempotencyHash, cmd.Job.CorrelationID = "doc_1", "87f4dbde", "corr_1"
	cmd.Job.WorkspaceRef, cmd.Job.Traceparent = []byte(`{"uri":"s3://b/work"}`), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for i := range cmd.Steps {
		cmd.Steps[i].Routing.Lane, cmd.Steps[i].Routing.Topic = 0, "global-bus-p0"
	}
	start := time.Now().UTC()
	accepted, err := b.Accept(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Handoff.Last()
	for _, event := range []statemachine.Event{
		published(m), statemachine.Ack{StepID: m.StepID, Pair: pair(m)},
		statemachine.Result{
			StepID: m.StepID, Pair: pair(m), Status: statemachine.ResultFailedFinal, ErrorCode: "bad_scan", ErrorMessage: "page 3 is blank",
		},
	}[:seconds] {
		time.Sleep(time.Second)
		b.Send(accepted.Job.ID, event, worker)
	}
	return &life{b, accepted.Job.ID, m.OutboxID, m.LeaseID, start, m.Directive}
}

// at returns the time of that second of the life.
func (l *life) at(seconds int) tablestore.Value {
	return tablestore.Time(l.start.Add(time.Duration(seconds) * time.Second))
}

func (l *life) row(t *testing.T, table, partition, row string) tablestore.Properties {
	t.Helper()
	stored, err := l.memory.Get(t.Context(), tablestore.Key{Table: table, Partition: partition, Row: row})
	if err != nil {
		t.Fatal(err)
	}
	return stored.Properties
}

// field is a field of a row and its value; the zero value means that it is not
// set.
type field struct {
	name  string
	value tablestore.Value
}

var (
	word   = tablestore.String
	number = tablestore.Int
	unset  tablestore.Value
)

func assertFields(t *testing.T, row tablestore.Properties, want ...field) {
	t.Helper()
	for _, f := range want {
		if diff := cmp.Diff(f.value, row.Get(f.name), cmp.AllowUnexported(tablestore.Value{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.name, diff)
		}
	}
}

func TestPhase1_Jobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // In a synctest bubble the time begins at 2000-01-01.
		l := liveFor(t, 3)
		assertFields(t, l.row(t, "luciusjobs", "tenant=2Fa:200001", l.jobID),
			field{"tenant_id", word("tenant/a")}, field{"request_type", word("doc.ingest")},
			field{"protocol_id", word("doc_ingest_v1")}, field{"mode", word("DEFAULT")},
			field{"doc_id", word("doc_1")},
			field{"state", word("FAILED_FINAL")},
			field{"idempotency_key", word("key_1")}, field{"idempotency_hash", word("87f4dbde")},
			field{"current_step_id", word("one")}, field{"current_step_index", number(0)},
			field{"attempts_total", number(1)},
			field{"created_at", l.at(0)}, field{"updated_at", l.at(3)}, field{"completed_at", l.at(3)},
			field{"error_code", word("bad_scan")}, field{"error_message", word("page 3 is blank")},
			field{"correlation_id", word("corr_1")},
			field{"traceparent", word("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		)
	})
}

// A step's workspace_ref and payload are the command's. A job stores them once, in
// other rows of the same partition.
func TestPhase1_Steps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		seconds int
		set     func(l *life) []field
	}{
		"running": {2, func(l *life) []field {
			return []field{
				{"state", word("IN_PROGRESS")}, {"lease_expires_at", l.at(2 + 60)},
				{"last_error_code", unset}, {"last_error_message", unset}, {"updated_at", l.at(2)}, {"completed_at", unset},
			}
		}},
		"failed": {3, func(l *life) []field {
			return []field{
				{"state", word("FAILED_FINAL")}, {"lease_expires_at", unset}, // No lease runs.
				{"last_error_code", word("bad_scan")}, {"last_error_message", word("page 3 is blank")},
				{"updated_at", l.at(3)}, {"completed_at", l.at(3)},
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := liveFor(t, test.seconds)
				step := l.row(t, "luciussteps", l.jobID, "STEP:0000:one")
				assertFields(t, step, test.set(l)...)
				assertFields(t, step,
					field{"step_id", word("one")}, field{"step_type", word("ONE")}, field{"service", word("ones")},
					field{"attempt_no", number(1)}, field{"lease_id", word(l.leaseID)},
					field{"input_ref", word(`{"uri":"s3://b/in"}`)}, field{"output_ref", word(`{"uri":"s3://b/out"}`)},
					field{"resolved_mode", word("DEFAULT")}, field{"lane", number(0)}, field{"routing_key_used", word("tenant/a")},
					field{"decision_source", word("default")}, field{"decision_reason", word("none was asked for")},
					field{"created_at", l.at(0)},
				)
				assertFields(t, step, field{"step_index", number(0)}) // In the document it is part of the key.
				assertFields(t, l.row(t, "luciussteps", l.jobID, "JOB"), field{"workspace_ref", word(`{"uri":"s3://b/work"}`)})
				payload := tablestore.Large(l.row(t, "luciussteps", l.jobID, "COMMAND"), "payload")
				if string(payload) != string(command("").Payload) {
					t.Errorf("payload is %.40s", payload)
				}
				// A step that did not begin has attempt_no 0.
				assertFields(t, l.row(t, "luciussteps", l.jobID, "STEP:0001:two"),
					field{"state", word("PENDING")}, field{"attempt_no", number(0)}, field{"lane", number(0)})
			})
		})
	}
}

func TestPhase1_Outbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := liveFor(t, 1)
		row := l.row(t, "luciusoutbox", "tenant=2Fa:200001", l.outboxID)
		assertFields(t, row,
			field{"jobId", word(l.jobID)}, field{"stepId", word("one")}, field{"attempt_no", number(1)},
			field{"lease_id", word(l.leaseID)},
			field{"state", word("SENT")},
			field{"topic", word("global-bus-p0")}, field{"partition", number(0)},
			field{"resolved_mode", word("DEFAULT")}, field{"lane", number(0)}, field{"routing_key_used", word("tenant/a")},
			field{"decision_source", word("default")}, field{"decision_reason", word("none was asked for")},
			field{"created_at", l.at(0)}, field{"sent_at", l.at(1)}, field{"updated_at", l.at(1)},
		)
		if payload := tablestore.Large(row, "payload"); string(payload) != string(l.directive) || !json.Valid(payload) {
			t.Errorf("payload is %.40s", payload)
		}
		// The row has the job's and the step's id only once, and names the time
		// of the next try as the steps do.
		assertFields(t, row, field{"outbox_id", word(l.outboxID)}, field{"step_id", unset}, field{"due_at", unset},
			field{"next_attempt_at", unset})
	})
	synctest.Test(t, func(t *testing.T) {
		l := liveFor(t, 0)
		assertFields(t, l.row(t, "luciusoutbox", "tenant=2Fa:200001", l.outboxID),
			field{"state", word("PENDING")}, field{"next_attempt_at", l.at(60)}, field{"sent_at", unset}) // The relay holds it.
	})
}

func TestPhase1_Events(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := liveFor(t, 3)
		const eventID = "000000000004-000"
		row := l.row(t, "luciusevents", l.jobID, "20000101T000003.000Z:"+eventID)
		assertFields(t, row,
			field{"event_type", word("step.failed_final")}, field{"created_at", l.at(3)}, field{"event_id", word(eventID)},
		)
		var payload map[string]any
		if err := json.Unmarshal(tablestore.Large(row, "payload"), &payload); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{
			"event_id": eventID, "rev": 4.0, "type": "step.failed_final", "at": "2000-01-01T00:00:03.000Z", "actor": "worker-1",
			"object": "step", "object_id": "one", "from": "IN_PROGRESS", "to": "FAILED_FINAL", "attempt_no": 1.0,
			"cause": "RESULT FAILED_FINAL", "request_id": "request-2", "detail": "bad_scan",
		}, payload); diff != "" {
			t.Errorf("payload (-want +got):\n%s", diff)
		}
	})
}
