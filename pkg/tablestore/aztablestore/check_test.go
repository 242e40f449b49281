//go:build integration

package aztablestore_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

func TestCheck_ReportsTablesAndLeavesNoRow(t *testing.T) {
	t.Parallel()
	names := tables(t)
	store := open(t, aztablestore.Options{Connection: connection(t), Tables: names[:1]})
	checks, err := aztablestore.Check(t.Context(), aztablestore.Options{Connection: connection(t), Tables: names[:]})
	want := []aztablestore.TableCheck{{Name: names[0]}, {Name: names[1], Missing: true}}
	if diff := cmp.Diff(want, checks); err != nil || diff != "" {
		t.Errorf("check: %v (-want +got)\n%s", err, diff)
	}
	rows, err := store.Walk(t.Context(), tablestore.Walk{Table: names[0]})
	if err != nil || len(rows) != 0 {
		t.Errorf("%d rows are left, %v", len(rows), err)
	}
}
