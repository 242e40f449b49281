package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Names that are prefixes of others, and hold the characters that keys escape, share no list.
func TestIndex_ListsJobsByDocumentAndTag(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		b := &bundle{Ledger: ledgertest.Open(t, ledger.Config{Store: store})}
		const doc, tags = "a:b", statemachine.Tags("env=prod\nkey=x:y=z")
		accept := func(tenant, doc string, tags statemachine.Tags) string {
			cmd := command(fmt.Sprint(tenant, doc, tags))
			cmd.Job.TenantID, cmd.Job.DocID, cmd.Job.Tags = tenant, doc, tags
			return b.Submit(cmd)
		}
		first, second := accept("tenant_a", doc, tags), accept("tenant_a", doc, "env=prod")
		longer, foreign := accept("tenant_a", "a:b:c", "env=prod:\nkey=x"), accept("tenant_a:a", "b", tags)
		accept("tenant_a", "", "")
		for _, test := range []struct {
			query ledger.IndexQuery
			want  []string
		}{
			{ledger.IndexQuery{TenantID: "tenant_a", DocID: doc}, []string{second, first}},
			{ledger.IndexQuery{TenantID: "tenant_a", DocID: "a:b:c"}, []string{longer}},
			{ledger.IndexQuery{TenantID: "tenant_a:a", DocID: "b"}, []string{foreign}},
			{ledger.IndexQuery{TenantID: "tenant_a", DocID: "a"}, nil},
			{ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: "env=prod"}, []string{second, first}},
			{ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: "env=prod:"}, []string{longer}},
			{ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: "key=x:y=z"}, []string{first}},
			{ledger.IndexQuery{TenantID: "tenant_a:a", Month: time.Now(), Tag: "key=x:y=z"}, []string{foreign}},
			{ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: "env=pro"}, nil},
			{ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now().AddDate(0, -1, 0), Tag: "env=prod"}, nil},
		} {
			if diff := cmp.Diff(test.want, b.listed(t, test.query)); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", test.query, diff)
			}
		}
		entries, _, err := b.Index(t.Context(), ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: "key=x:y=z", Limit: 1})
		if want := (ledger.IndexRow{JobID: first, DocID: doc, Tags: tags}); err != nil || len(entries) != 1 || entries[0].IndexRow != want {
			t.Errorf("the row says %+v, want %+v: %v", entries, want, err)
		}
	})
}

// An accept that takes over the job id of another takes over what names its lists, too: both write
// the rows of one job, and the purge finds only those that the job names.
func TestAccept_ARolledForwardJobIsListedAsByTheFirstRequest(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{0, 2} {
		b := setup(t)
		b.store.limit.Store(limit)
		first, other := described(), described()
		first.Job.CorrelationID = "first"
		late := b.loseAccept(t, first)
		other.Job.DocID, other.Job.Tags, other.Job.CorrelationID = "another doc", "env=test\nnewer=yes", "second"
		accepted := reopen(t, b.store).MustAccept(other)
		job := &accepted.Job
		if accepted.Replayed || job.Tags != first.Job.Tags || job.DocID != first.Job.DocID || job.CorrelationID != "first" || late() == nil {
			t.Errorf("limit %d: accepted %+v", limit, accepted)
		}
		for _, query := range []ledger.IndexQuery{{DocID: "another doc"}, {CorrelationID: "second"}} {
			query.TenantID = "tenant_a"
			if got := b.listed(t, query); len(got) > 0 {
				t.Errorf("limit %d: %+v lists %v", limit, query, got)
			}
		}
		for tag, want := range map[string][]string{"env=prod": {accepted.Job.ID}, "customer=42": {accepted.Job.ID}, "env=test": nil, "newer=yes": nil} {
			if got := b.listed(t, ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: tag}); !slices.Equal(got, want) {
				t.Errorf("limit %d: with the tag %s are %v, want %v", limit, tag, got, want)
			}
		}
		if again := b.MustAccept(other); !again.Replayed || again.Job.Tags != first.Job.Tags {
			t.Errorf("limit %d: the repeat is answered %+v", limit, again)
		}
	}
}

// The tags of a record whose job id is used up are not those of the next job.
func TestAccept_ANewJobIDHasTheTagsOfItsOwnRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.loseAccept(t, described())
	id := b.entries()[0].JobID
	if _, err := b.store.Commit(t.Context(), tablestore.Batch{{
		Verb: tablestore.Insert, Key: tablestore.Key{Table: "luciusledger", Partition: id, Row: "JOB"},
		Properties: tablestore.Properties{{Name: "tombstone", Value: tablestore.Bool(true)}},
	}}); err != nil {
		t.Fatal(err)
	}
	other := described()
	other.Job.Tags = "env=test"
	if accepted := b.MustAccept(other); accepted.Job.ID == id || accepted.Job.Tags != "env=test" {
		t.Errorf("accepted %+v", accepted)
	}
}

func TestRerun_CopiesTagsButThoseOfTheSystem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := described()
	cmd.Job.Tags = "customer=42\nlucius.batch=7\nluciusx=1"
	old := b.Submit(cmd)
	b.failFinal(t)
	rerun := b.rerun(t, old, ledger.FromFailed)
	if rerun.Tags != "customer=42\nluciusx=1" || rerun.DocID != cmd.Job.DocID {
		t.Errorf("the rerun has the document %q and the tags %q", rerun.DocID, rerun.Tags)
	}
	for tag, want := range map[string][]string{
		"customer=42": {rerun.ID, old}, "luciusx=1": {rerun.ID, old}, "lucius.batch=7": {old},
	} {
		if got := b.listed(t, ledger.IndexQuery{TenantID: "tenant_a", Month: time.Now(), Tag: tag}); !slices.Equal(got, want) {
			t.Errorf("with the tag %s are %v, want %v", tag, got, want)
		}
	}
	if got := b.listed(t, ledger.IndexQuery{TenantID: "tenant_a", DocID: cmd.Job.DocID}); !slices.Equal(got, []string{rerun.ID, old}) {
		t.Errorf("of the document are %v", got)
	}
}
