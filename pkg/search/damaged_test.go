package search_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A report counts a failed job whose rows cannot be decoded as the index lists it. It leaves out one
// that is listed without its end, and a live one.
func TestFailures_GoPastDamagedJobs(t *testing.T) {
	t.Parallel()
	var bad []string
	hook := func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
		if slices.ContainsFunc(bad, func(id string) bool { return r.Key().Table == jobTable && r.Key().Partition == tablestore.Escape(id) }) {
			return tablestore.ErrCorrupt
		}
		return do(ctx)
	}
	w := found(t, storetest.Hooked(ledgertest.Split(), hook))
	add := func(status statemachine.ResultStatus) string {
		cmd := ledgertest.Command("t", uuid.NewString(), ledgertest.Step("one", "OCR", "s"))
		cmd.Job.DocID = "d"
		id := w.Submit(cmd)
		w.End(w.Handoff.Last(), status, "broken")
		return id
	}
	failed, retried := add(statemachine.ResultFailedFinal), add(statemachine.ResultFailedRetry)
	add(statemachine.ResultFailedFinal)
	add(statemachine.ResultFailedRetry)
	bad = []string{failed, retried}
	for _, test := range []struct {
		filter search.Filter
		failed int
	}{{search.Filter{}, 2}, {search.Filter{TenantID: "t", DocID: "d"}, 1}} {
		report, err := w.Failures(t.Context(), test.filter, search.Include{Retrying: true})
		musttest.NoError(t, err)
		counts := map[bool]int{}
		for _, group := range report.Groups {
			counts[group.Retrying] += group.Count
		}
		if counts[false] != test.failed || counts[true] != 1 || report.From.IsZero() {
			t.Errorf("%+v: %d failed and %d retrying since %s", test.filter, counts[false], counts[true], report.From)
		}
	}
}
