package ledger_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rewrite changes a stored row without the ledger.
func (b *bundle) rewrite(t *testing.T, id, row string, change func(tablestore.Properties) tablestore.Properties) {
	t.Helper()
	key := tablestore.Key{Table: "luciusledger", Partition: id, Row: row}
	stored, err := b.store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	op := tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: stored.ETag, Properties: change(stored.Properties)}
	if _, err := b.store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
		t.Fatal(err)
	}
}

func TestRows_ANewerVersionsColumnsAreCarriedAlong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.mustAccept(t, command("h")).Job.ID
	message := b.inbox.last()
	for _, row := range []string{"JOB", "STEP:0000:one", "OUTBOX:0000:000001"} {
		b.rewrite(t, id, row, func(p tablestore.Properties) tablestore.Properties {
			return append(p, tablestore.Property{Name: "from_the_future", Value: tablestore.String("kept")})
		})
	}
	b.mustChange(t, id, statemachine.Ack{StepID: message.StepID, Pair: pair(message)})
	for _, row := range []string{"JOB", "STEP:0000:one", "OUTBOX:0000:000001"} {
		stored, err := b.store.Get(t.Context(), tablestore.Key{Table: "luciusledger", Partition: id, Row: row})
		if err != nil {
			t.Fatal(err)
		}
		if got := stored.Properties.Get("from_the_future").String(); got != "kept" {
			t.Errorf("%s lost the column of a newer version", row)
		}
	}
}

func TestRows_AVersionTooNewIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.mustAccept(t, command("h")).Job.ID
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

func TestRows_WhatIsAcceptedIsWhatIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("h")
	cmd.Job.CallbackURLs = []string{"https://a.example/x", "https://b.example/y"}
	cmd.Job.DocID, cmd.Job.CorrelationID, cmd.Job.Mode = "doc", "corr", statemachine.ModeBurst
	cmd.Steps[0].Routing = statemachine.Routing{ResolvedMode: statemachine.ModeBurst, Lane: 5, Topic: "t5", RoutingKeyUsed: "k"}
	cmd.Steps[0].Policy.MaxAttempts = 7
	id := b.mustAccept(t, cmd).Job.ID
	agg, err := b.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
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
