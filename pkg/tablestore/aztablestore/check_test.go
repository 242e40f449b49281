package aztablestore_test

import (
	"strings"
	"testing"
	"time"

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

func TestCheck_NamesTheForbiddenOperation(t *testing.T) {
	t.Parallel()
	forbidden := refuses(403, "AuthorizationPermissionMismatch")
	for name, answers := range map[string][]answer{
		"write a row": {forbidden},
		"read it":     {inside(done(one)), forbidden},
	} {
		options := once
		options.Connection, options.Transport = scriptedConnection, &script{answers: answers}
		options.Tables = []string{table}
		checks, err := aztablestore.Check(t.Context(), options)
		if err != nil || len(checks) != 1 || checks[0].Err == nil || !strings.HasPrefix(checks[0].Err.Error(), name) {
			t.Errorf("%s: %+v, %v", name, checks, err)
		}
	}
}

func TestCheck_OfAMissingAccount(t *testing.T) {
	t.Parallel()
	options := aztablestore.WithLimits(aztablestore.Options{
		Connection: "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=aGk=;TableEndpoint=http://127.0.0.1:1/a;",
		Tables:     []string{table},
	}, time.Second, aztablestore.CallTimeout, 1)
	if checks, err := aztablestore.Check(t.Context(), options); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%+v, %v", checks, err)
	}
	if _, err := aztablestore.Check(t.Context(), aztablestore.Options{}); err == nil {
		t.Error("no account was checked")
	}
}
