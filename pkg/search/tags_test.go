package search_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// described accepts a job of a document with tags.
func described(l *ledgertest.Ledger, tenant, doc string, tags statemachine.Tags, service string) string {
	cmd := ledgertest.Command(tenant, fmt.Sprint(time.Now().UnixNano(), doc, tags), ledgertest.Step("one", "X", service))
	cmd.Job.DocID, cmd.Job.Tags, cmd.Job.CorrelationID = doc, tags, "of "+doc
	return l.Submit(cmd)
}

// archive accepts a job every 15 days for half a year, for two tenants in turn, cancels every
// fourth and pauses every fourth. It returns the ids, oldest first.
func archive(t *testing.T, store tablestore.Store) (*search.Service, []string) {
	t.Helper()
	l := ledgertest.Open(t, ledger.Config{Store: store, Shared: true})
	var ids []string
	for i := range 12 {
		env := map[bool]string{true: "test", false: "prod"}[i < 6]
		tags := statemachine.NewTags(map[string]string{"env": env, "part": fmt.Sprint(i % 3)})
		id := described(l, fmt.Sprint("t", i%2), fmt.Sprint("d", i/2%2), tags, fmt.Sprint("s", i%3))
		switch i % 4 {
		case 2:
			l.Apply(id, statemachine.Pause{})
		case 3:
			l.Apply(id, statemachine.Cancel{})
		}
		ids = append(ids, id)
		time.Sleep(15 * 24 * time.Hour)
	}
	return search.New(l.Ledger, &search.Ended{}, search.Surroundings{}), ids
}

func TestList_ByDocumentAndTags(t *testing.T) {
	t.Parallel()
	const cancelled, paused, live = statemachine.JobCancelled, statemachine.JobPaused, statemachine.JobDispatching
	all := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Hour) // The first job is accepted an hour later.
	tests := map[string]struct {
		filter search.Filter
		want   func(i int) bool
	}{
		"of a document":           {search.Filter{TenantID: "t0", DocID: "d0"}, func(i int) bool { return i%4 == 0 }},
		"of it for another":       {search.Filter{TenantID: "t1", DocID: "d0"}, func(i int) bool { return i%4 == 1 }},
		"of it, another tenant":   {search.Filter{TenantID: "t9", DocID: "d0"}, nil},
		"of an unknown document":  {search.Filter{TenantID: "t0", DocID: "d"}, nil},
		"of it, cancelled":        {search.Filter{TenantID: "t1", DocID: "d1", State: cancelled}, func(i int) bool { return i%4 == 3 }},
		"of it, paused":           {search.Filter{TenantID: "t0", DocID: "d1", State: paused}, func(i int) bool { return i%4 == 2 }},
		"of it, in no such state": {search.Filter{TenantID: "t0", DocID: "d1", State: live}, nil},
		"of it, since a time":     {search.Filter{TenantID: "t0", DocID: "d0", CreatedAfter: all.AddDate(0, 0, 100)}, func(i int) bool { return i == 8 }},
		"of it, with a service":   {search.Filter{TenantID: "t0", DocID: "d0", Service: "s1"}, func(i int) bool { return i == 4 }},
		"of it, correlated":       {search.Filter{TenantID: "t0", DocID: "d0", CorrelationID: "of d1"}, nil},
		"with a tag":              {search.Filter{TenantID: "t1", Tags: "env=prod", CreatedAfter: all}, func(i int) bool { return i >= 6 && i%2 == 1 }},
		"with it of these months": {search.Filter{TenantID: "t1", Tags: "part=1"}, func(i int) bool { return i == 7 }},
		"with it before a time":   {search.Filter{TenantID: "t1", Tags: "part=1", CreatedAfter: all, CreatedBefore: all.AddDate(0, 1, 0)}, func(i int) bool { return i == 1 }},
		"with a part of a value":  {search.Filter{TenantID: "t1", Tags: "env=pro", CreatedAfter: all}, nil},
		"with an unknown key":     {search.Filter{TenantID: "t1", Tags: "en=prod", CreatedAfter: all}, nil},
		"with it, another tenant": {search.Filter{TenantID: "t9", Tags: "env=prod", CreatedAfter: all}, nil},
		"with two tags":           {search.Filter{TenantID: "t0", Tags: "env=test\npart=1", CreatedAfter: all}, func(i int) bool { return i == 4 }},
		"with one of two":         {search.Filter{TenantID: "t0", Tags: "env=test\npart=9", CreatedAfter: all}, nil},
		"with it, cancelled":      {search.Filter{TenantID: "t1", Tags: "env=test", State: cancelled, CreatedAfter: all}, func(i int) bool { return i == 3 }},
		"with it, live":           {search.Filter{TenantID: "t1", Tags: "env=test", State: live, CreatedAfter: all}, func(i int) bool { return i == 1 || i == 5 }},
		"with it and a service":   {search.Filter{TenantID: "t1", Tags: "env=prod", Service: "s0", CreatedAfter: all}, func(i int) bool { return i == 9 }},
		"with it, correlated":     {search.Filter{TenantID: "t1", Tags: "env=prod", CorrelationID: "of d0", CreatedAfter: all}, func(i int) bool { return i == 9 }},
		"with a tag and document": {search.Filter{TenantID: "t1", DocID: "d1", Tags: "part=1"}, func(i int) bool { return i == 7 }},
	}
	for how, store := range map[string]tablestore.Store{"atomic": ledgertest.Atomic(), "split": ledgertest.Split()} {
		synctest.Test(t, func(t *testing.T) {
			s, ids := archive(t, store)
			for name, test := range tests {
				var want []string
				for i, id := range slices.Backward(ids) {
					if test.want != nil && test.want(i) {
						want = append(want, id)
					}
				}
				for _, limit := range []int{1, 2, 100} {
					if diff := cmp.Diff(want, pages(t, s, test.filter, limit)); diff != "" {
						t.Errorf("jobs %s, store %s, %d a page (-want +got):\n%s", name, how, limit, diff)
					}
				}
			}
		})
	}
}

// The rows are written before the commit, so a list shows only what the jobs say.
func TestList_ByDocumentAndTagsTrustsNoRow(t *testing.T) {
	t.Parallel()
	store := ledgertest.Split()
	faulty, faults := storetest.Faulty(store)
	l := ledgertest.Open(t, ledger.Config{Store: faulty})
	faults.Plan(lost)
	cmd := ledgertest.Command("t", "lost")
	cmd.Job.DocID, cmd.Job.Tags = "d", "env=prod"
	if _, err := l.Accept(t.Context(), cmd); err == nil {
		t.Fatal("the accept was not lost")
	}
	faults.Clear()
	other := described(l, "t", "other", "env=test", "s")
	want := described(l, "t", "d", "env=prod", "s")
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	for _, query := range []ledger.IndexQuery{{TenantID: "t", DocID: "d"}, {TenantID: "t", Tag: "env=prod"}} {
		query.Month, query.Limit = time.Now(), 10
		entries, _, err := l.Index(t.Context(), query)
		if err != nil || len(entries) != 2 {
			t.Fatalf("%d rows, want those of the job and of the lost accept: %v", len(entries), err)
		}
		key := indexRowOf(t, store, want, query.DocID != "")
		row := l.Row(key)
		key.Row = key.Row[:len(key.Row)-len(ledger.ListOrder(want))] + ledger.ListOrder(other)
		for i := range row.Properties {
			if row.Properties[i].Name == "job_id" {
				row.Properties[i].Value = tablestore.String(other)
			}
		}
		l.Put(key, row.Properties) // A row of another job that has neither.
		filter := search.Filter{TenantID: "t", DocID: query.DocID}
		if query.Tag != "" {
			filter.Tags = "env=prod"
		}
		if diff := cmp.Diff([]string{want}, pages(t, s, filter, 10)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", filter, diff)
		}
	}
}

// indexRowOf returns the key of the row that lists a job by its document, or by its tag.
func indexRowOf(t *testing.T, store tablestore.Store, jobID string, byDocument bool) tablestore.Key {
	t.Helper()
	rows, err := store.(tablestore.Walker).Walk(t.Context(), tablestore.Walk{Table: "luciusjobindex"})
	musttest.NoError(t, err)
	list := map[bool]string{true: "doc:", false: "tags:"}[byDocument]
	i := slices.IndexFunc(rows, func(row tablestore.Row) bool {
		return strings.HasPrefix(row.Key.Partition, list) && row.Properties.Get("job_id").String() == jobID
	})
	return rows[i].Key
}

// Without a tenant the lists of all tenants would have to be read.
func TestFilter_ByDocumentOrTagsNeedsATenant(t *testing.T) {
	t.Parallel()
	w := found(t, ledgertest.Split())
	s := search.New(w.Ledger.Ledger, &search.Ended{}, search.Surroundings{})
	for _, f := range []search.Filter{{DocID: "d"}, {Tags: "env=prod"}, {DocID: "d", State: statemachine.JobFailedFinal}} {
		const message = "is required to find jobs by document or tag"
		if field, fault := f.Fault(); field != "tenant_id" || fault != message {
			t.Errorf("%+v: %q %q", f, field, fault)
		}
		want := &apierror.Error{Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Message: "parameter tenant_id " + message}}}
		_, _, listed := s.List(t.Context(), f, 10, "")
		_, grouped := s.Failures(t.Context(), f, search.Include{})
		for _, err := range []error{listed, grouped} {
			if diff := cmp.Diff(want, apierror.From(err)); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", f, diff)
			}
		}
		f.TenantID = "t"
		if field, fault := f.Fault(); field != "" {
			t.Errorf("%+v: %q %q", f, field, fault)
		}
	}
}

func TestFailures_ByDocumentAndTags(t *testing.T) {
	t.Parallel()
	for _, store := range []tablestore.Store{ledgertest.Atomic(), ledgertest.Split()} {
		w := found(t, store)
		end := func(tenant, doc string, tags statemachine.Tags, status statemachine.ResultStatus) string {
			id := described(w.Ledger, tenant, doc, tags, "s")
			w.End(w.Handoff.Last(), status, "broken")
			return id
		}
		const failed, retried = statemachine.ResultFailedFinal, statemachine.ResultFailedRetry
		first, second := end("t", "d", "env=prod\npart=1", failed), end("t", "d", "env=test\npart=1", failed)
		third, again := end("t", "e", "env=prod", failed), end("t", "d", "env=prod", retried)
		end("u", "d", "env=prod\npart=1", failed)
		for name, test := range map[string]struct {
			filter   search.Filter
			failed   []string
			retrying []string
		}{
			"of a document":           {search.Filter{TenantID: "t", DocID: "d"}, []string{first, second}, []string{again}},
			"with a tag":              {search.Filter{TenantID: "t", Tags: "env=prod"}, []string{first, third}, []string{again}},
			"with two tags":           {search.Filter{TenantID: "t", Tags: "env=prod\npart=1"}, []string{first}, nil},
			"of a document with tags": {search.Filter{TenantID: "t", DocID: "e", Tags: "env=prod"}, []string{third}, nil},
			"with an unknown tag":     {search.Filter{TenantID: "t", Tags: "env=none"}, nil, nil},
		} {
			report, err := w.Failures(t.Context(), test.filter, search.Include{Retrying: true})
			musttest.NoError(t, err)
			got := map[bool][]string{}
			for _, g := range report.Groups {
				got[g.Retrying] = slices.Sorted(slices.Values(g.SampleJobIDs))
			}
			slices.Sort(test.failed)
			if !slices.Equal(got[false], test.failed) || !slices.Equal(got[true], test.retrying) {
				t.Errorf("%s: failed %v, want %v; retried %v, want %v", name, got[false], test.failed, got[true], test.retrying)
			}
		}
	}
}
