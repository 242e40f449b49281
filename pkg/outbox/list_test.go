package outbox_test

import (
	"errors"
	"slices"
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
	operator := outbox.NewOperator(b.ledger)
	one, two := 1, 2
	for name, test := range map[string]struct {
		filter outbox.ListFilter
		want   []string
	}{
		"all of live jobs":  {outbox.ListFilter{}, slices.Concat(ids[:1], ids[2:])},
		"pending":           {outbox.ListFilter{State: statemachine.OutboxPending}, ids[2:]},
		"sent":              {outbox.ListFilter{State: statemachine.OutboxSent}, ids[:1]},
		"of a lane":         {outbox.ListFilter{Lane: &one, TenantID: "t"}, slices.Concat(ids[:1], ids[2:])},
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
	for _, token := range []string{"x", "/", "-1/", "1"} {
		var told *problem.Error
		if _, _, err := operator.List(t.Context(), outbox.ListFilter{}, 1, token); !errors.As(err, &told) || told.Code != problem.InvalidEnvelope {
			t.Errorf("token %q: %v", token, err)
		}
	}
}
