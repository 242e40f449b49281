//go:build !race

package background_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
)

// manyReruns is how many jobs TestBulk_RerunsManyJobs repeats.
const manyReruns = 10_000

// A search that ends at its bound is continued there, although nothing before it matched. One client
// reads 100,000 rows here, of which the race detector would learn nothing.
func TestCreate_ContinuesAfterTheRowsThatItExamined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(24 * time.Hour) // The fake clock begins with a month, and the first job is older.
		jobs := newSketch(0)
		old := jobs.fail("t", 3, "old")
		time.Sleep(time.Hour)
		jobs.fail("t", 100_000, "new")
		service := serve(t, jobs, ledgertest.Split())
		request := background.BulkRequest{Filter: search.Filter{ErrorCode: "old"}}
		first := create(t, service, "", request)
		if first.Matched != 0 || !first.Truncated {
			t.Fatalf("the first operation is %+v", first)
		}
		request.After = first.ID
		if next := create(t, service, "", request); next.Truncated || !slices.Equal(ids(get(t, service, next.ID)), old) {
			t.Errorf("the next one is %+v", next)
		}
		request.Filter.ErrorCode = "new"
		if _, err := service.Create(t.Context(), "", request); apierror.From(err).Errors[0].Pointer != "/after" {
			t.Errorf("after an operation with another filter: %v", err)
		}
	})
}
