package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestOperator_List(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids []string
	for range 7 {
		ids = append(ids, b.accept(t))
	}
	sent, cancelled := ids[0], ids[1]
	row := b.job(t, sent).Outbox
	if _, err := b.ledger.Change(t.Context(), sent, statemachine.Published{OutboxID: row.ID, AttemptNo: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ledger.Change(t.Context(), cancelled, statemachine.Cancel{}); err != nil {
		t.Fatal(err)
	}
	failed := b.accept(t)
	row = b.job(t, failed).Outbox
	if _, err := b.ledger.Change(t.Context(), failed, statemachine.PublishRejected{
		OutboxID: row.ID, AttemptNo: 1, Permanent: true, Reason: "too large",
	}); err != nil {
		t.Fatal(err)
	}
	ended := []string{failed, cancelled}
	pending := ids[2:]
	operator := outbox.NewOperator(b.ledger)
	one, two := 1, 2
	for name, test := range map[string]struct {
		filter outbox.ListFilter
		want   []string
	}{
		"all":               {outbox.ListFilter{}, slices.Concat(ids[:1], pending, ended)},
		"pending":           {outbox.ListFilter{State: statemachine.OutboxPending}, pending},
		"failed for good":   {outbox.ListFilter{State: statemachine.OutboxFailedFinal}, ended},
		"sent":              {outbox.ListFilter{State: statemachine.OutboxSent}, ids[:1]},
		"of a lane":         {outbox.ListFilter{Lane: &one, TenantID: "t"}, slices.Concat(ids[:1], pending, ended)},
		"of another lane":   {outbox.ListFilter{Lane: &two}, nil},
		"of another tenant": {outbox.ListFilter{TenantID: "u"}, nil},
	} {
		for _, limit := range []int{1, 3, 100} {
			var got []string
			after := ""
			for {
				rows, next, err := operator.List(t.Context(), test.filter, limit, after)
				if err != nil || len(rows) > limit {
					t.Fatalf("%s: %d rows, limit %d, %v", name, len(rows), limit, err)
				}
				for _, row := range rows {
					got = append(got, row.JobID)
				}
				if after = next; after == "" {
					break
				}
			}
			want := slices.Sorted(slices.Values(test.want))
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s, %d a page: %v, want %v", name, limit, got, want)
			}
		}
	}
	for _, token := range []string{
		"x", "/", "-1/", "1", "99/", "ended/", "ended//0/", "ended/t/x/", "ended/t/-1/", "ended/t/0", "ended/t/0/job", "ended/t/0//",
	} {
		var told *problem.Error
		if _, _, err := operator.List(t.Context(), outbox.ListFilter{}, 1, token); !errors.As(err, &told) || told.Code != problem.InvalidEnvelope {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// A page token of one tenant's list opens no other's.
func TestOperator_ListKeepsToTheTenantOfItsToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, _, err := outbox.NewOperator(b.ledger).List(t.Context(), outbox.ListFilter{TenantID: "t"}, 1, "ended/u/0/")
	if told, ok := errors.AsType[*problem.Error](err); !ok || told.Code != problem.InvalidEnvelope {
		t.Errorf("answered %v", err)
	}
}

// Other tenants' rows neither make a tenant's pages empty nor show in its page tokens.
func TestOperator_ListOfATenantTellsNothingOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want, got []string
	for i := range 4200 { // In each shard more than are read for one page.
		if i%1000 == 500 {
			want = append(want, b.acceptOf(t, "u"))
		}
		b.accept(t)
	}
	operator, pages := outbox.NewOperator(b.ledger), 0
	for after := ""; ; {
		rows, next, err := operator.List(t.Context(), outbox.ListFilter{TenantID: "u"}, 1, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			got = append(got, row.JobID)
		}
		pages++
		if after = next; after == "" {
			break
		}
		_, from, _ := strings.Cut(after, "/")
		if from != "" && !strings.HasPrefix(from, "live:u:") && !strings.HasPrefix(after, "ended/u/") {
			t.Errorf("a page ends at %q", after)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(want))) || pages > len(want)+1 {
		t.Errorf("%v on %d pages, want %v", got, pages, want)
	}
}
