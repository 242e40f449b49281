package ledger_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rewrite changes a stored row without the ledger.
func (b *bundle) rewrite(t *testing.T, id, row string, change func(tablestore.Properties) tablestore.Properties) {
	t.Helper()
	key := tablestore.Key{Table: "luciusledger", Partition: id, Row: row}
	stored := b.Row(key)
	op := tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: stored.ETag, Properties: change(stored.Properties)}
	if _, err := b.store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
		t.Fatal(err)
	}
}

func TestRows_ANewerVersionsColumnsAreCarriedAlong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	message := b.Handoff.Last()
	for _, row := range []string{"JOB", "STEP:0000:one", "OUTBOX:0000:000001"} {
		b.rewrite(t, id, row, func(p tablestore.Properties) tablestore.Properties {
			return append(p, tablestore.Property{Name: "from_the_future", Value: tablestore.String("kept")})
		})
	}
	b.Apply(id, ledgertest.Started(message))
	for _, row := range []string{"JOB", "STEP:0000:one", "OUTBOX:0000:000001"} {
		stored := b.Row(tablestore.Key{Table: "luciusledger", Partition: id, Row: row})
		if got := stored.Properties.Get("from_the_future").String(); got != "kept" {
			t.Errorf("%s lost the column of a newer version", row)
		}
	}
}

func TestRows_AVersionTooNewIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	b.rewrite(t, id, "JOB", func(p tablestore.Properties) tablestore.Properties {
		p = append(tablestore.Properties(nil), p...)
		for i := range p {
			if p[i].Name == "v" {
				p[i].Value = tablestore.Int(99)
			}
		}
		return p
	})
	if _, err := b.Job(t.Context(), id); err == nil || !strings.Contains(err.Error(), "schema version 99") {
		t.Errorf("answered %v", err)
	}
}

// The settings are the first row of a store that a ledger reads.
func TestOpen_RefusesRowsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for says, other := range map[string]struct {
		store  tablestore.Store
		column tablestore.Property
	}{
		"schema version 99 is newer":                   {ledgertest.Atomic(), tablestore.Property{Name: "v", Value: tablestore.Int(99)}},
		"rows have format 0, and this program reads 1": {ledgertest.Split(), tablestore.Property{Name: "format"}},
	} {
		cfg := ledger.Config{Store: other.store, Bus: statemachine.BusQueue}
		if _, err := ledger.Open(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		row, err := other.store.Get(t.Context(), tablestore.Key{Table: "luciusschedule", Partition: "meta", Row: "settings"})
		if err != nil {
			t.Fatal(err)
		}
		op := tablestore.Op{Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag}
		for _, p := range row.Properties {
			if p.Name != other.column.Name {
				op.Properties = append(op.Properties, p)
			}
		}
		if other.column.Value != (tablestore.Value{}) {
			op.Properties = append(op.Properties, other.column)
		}
		if _, err := other.store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
			t.Fatal(err)
		}
		if _, err := ledger.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("opened with %v, want %q", err, says)
		}
	}
}

func TestRows_WhatIsAcceptedIsWhatIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("h")
	cmd.Job.CallbackURLs = []string{"https://a.example/x", "https://b.example/y"}
	cmd.Job.DocID, cmd.Job.CorrelationID, cmd.Job.Mode = "doc", "corr", statemachine.ModeBurst
	cmd.Steps[0].Routing = statemachine.Routing{ResolvedMode: statemachine.ModeBurst, Lane: 5, Topic: "t5", RoutingKeyUsed: "k"}
	cmd.Steps[0].Policy.MaxAttempts = 7
	id := b.Submit(cmd)
	agg := b.Read(id)
	if diff := cmp.Diff(cmd.Job.CallbackURLs, agg.Job.CallbackURLs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(cmd.Steps[0].Policy, agg.Steps[0].Policy); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(cmd.Steps[0].Routing, agg.Steps[0].Routing); diff != "" {
		t.Error(diff)
	}
	if agg.Job.DocID != "doc" || agg.Job.Mode != statemachine.ModeBurst || agg.Job.CorrelationID != "corr" {
		t.Errorf("read %+v", agg.Job)
	}
}

func TestParseOutboxID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ledger.OutboxID{
		"0190-ab.0.1": {JobID: "0190-ab", FirstAttempt: 1},
		"a.b.12.34":   {JobID: "a.b", StepIndex: 12, FirstAttempt: 34},
	} {
		if got, err := ledger.ParseOutboxID(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "job", "job.0", ".0.1", "job.x.1", "job.0.0", "job.-1.1"} {
		if _, err := ledger.ParseOutboxID(text); err == nil {
			t.Errorf("%q was taken for an outbox id", text)
		}
	}
}

// The rows and their fields are copied from Option B, 12.1 to 12.4: a table of the jobs
// with their steps, and one of the keys. Keys have ':' in place of '#', state is the
// name of the code (12.6), and the payload and workspace_ref, which a job stores once,
// lie next to its steps.
// A command's idempotency record is found by its name alone, so another name would accept every
// known command a second time.
func TestRows_TheRecordIsNamedAfterHashKeyOrOrigin(t *testing.T) {
	t.Parallel()
	keyed, origin := command("87f4dbde"), command("87f4dbde")
	keyed.Job.IdempotencyKey, origin.Origin = "invoice-7", "inbox-1"
	for row, cmd := range map[string]ledger.Command{
		"hash:87f4dbde": command("87f4dbde"),
		"key:61bf036ed8c6a6aa27f3bdeb850ad16cfde57ac79ee6943356601ebb5cd2ea89": keyed,
		"of:inbox-1": origin,
	} {
		b := setup(t)
		id := b.Submit(cmd)
		stored, err := b.store.Get(t.Context(), tablestore.Key{Table: "jobidempotency", Partition: "tenant_a", Row: row})
		if err != nil || stored.Properties.Get("job_id").String() != id {
			t.Errorf("%s names job %q, want %s (%v)", row, stored.Properties.Get("job_id"), id, err)
		}
	}
}

func TestRows_AreThoseOfOptionB(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("87f4dbde")
	cmd.Job.ProtocolID, cmd.Job.Mode, cmd.Job.DocID = "doc_ingest_v1", statemachine.ModeBurst, "doc_1"
	cmd.Job.WorkspaceRef, cmd.Job.CorrelationID, cmd.Job.Traceparent = []byte(`{"uri":"s3://b/w"}`), "corr", "00-t"
	for i := range cmd.Steps {
		cmd.Steps[i].OutputRef = cmd.Job.OutputRef
		cmd.Steps[i].Routing = statemachine.Routing{
			ResolvedMode: statemachine.ModeBurst, RoutingKeyUsed: "tenant_adoc_1", DecisionSource: "request", DecisionReason: "so",
		}
	}
	id := b.Submit(cmd)
	first := b.Handoff.Last()
	b.succeed(first)
	second := b.Handoff.Last()
	b.Apply(id, statemachine.Result{
		StepID: second.StepID, Pair: ledgertest.Pair(second), Status: statemachine.ResultFailedFinal, ErrorCode: "bad_scan", ErrorMessage: "blank",
	})
	succeeded := b.Submit(command("done"))
	for range cmd.Steps {
		b.succeed(b.Handoff.Last())
	}
	fields := func(table, partition, row string) func(string) string {
		stored, err := b.store.Get(t.Context(), tablestore.Key{Table: table, Partition: partition, Row: row})
		if err != nil {
			t.Fatalf("%s, %s: %v", table, row, err)
		}
		return func(name string) string {
			value := stored.Properties.Get(name)
			switch value.Kind() {
			case tablestore.KindInt:
				return strconv.FormatInt(value.Int(), 10)
			case tablestore.KindTime:
				return "a time"
			}
			return value.String()
		}
	}
	for _, row := range []struct {
		name string
		get  func(string) string
		want string
	}{
		{"JOB", fields("luciusledger", id, "JOB"), `
			job_id=` + id + ` tenant_id=tenant_a protocol_id=doc_ingest_v1 request_type=doc.ingest doc_id=doc_1 mode=BURST
			tenant_bucket=` + ledger.TenantBucket("tenant_a", ledger.IDTime(id)) + ` state=FAILED_FINAL
			current_step_id=two current_step_index=1 attempts_total=2
			created_at=a_time updated_at=a_time completed_at=a_time error_code=bad_scan error_message=blank
			correlation_id=corr traceparent=00-t final_output= workspace_ref={"uri":"s3://b/w"}`},
		{"JOB that succeeded", fields("luciusledger", succeeded, "JOB"), `
			state=SUCCEEDED final_output={"uri":"s3://b/two"} error_code= error_message=`},
		{"STEP", fields("luciusledger", id, "STEP:0000:one"), `
			step_id=one step_index=0 step_type=ONE service=ones state=SUCCEEDED attempt_no=1 lease_id=` + first.LeaseID + `
			lane=0 routing_key_used=tenant_adoc_1 input_ref={"uri":"s3://b/in"} output_ref={"uri":"s3://b/out"}
			resolved_mode=BURST decision_source=request decision_reason=so result_ref={"uri":"s3://b/one"}
			created_at=a_time updated_at=a_time completed_at=a_time`},
		{"the STEP that failed", fields("luciusledger", id, "STEP:0001:two"), `
			state=FAILED_FINAL last_error_code=bad_scan last_error_message=blank input_ref={"uri":"s3://b/one"}`},
		{"COMMAND", fields("luciusledger", id, "COMMAND"), `payload={"x":_{"y":_1.50}}`},
		{"IDX", fields("jobidempotency", "tenant_a", "hash:87f4dbde"), `job_id=` + id + ` idempotency_hash=87f4dbde created_at=a_time`},
	} {
		for field := range strings.FieldsSeq(row.want) {
			name, want, _ := strings.Cut(field, "=")
			if got := strings.ReplaceAll(row.get(name), " ", "_"); got != want {
				t.Errorf("%s: %s is %q, want %q", row.name, name, got, want)
			}
		}
	}
}
