package bench_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/internal/waittest"
)

// TestBulkComparesNormalWorkWithAndWithoutIt measures both on one server, which gets the bulk jobs
// in between.
func TestBulkComparesNormalWorkWithAndWithoutIt(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	var before, batches int // commands before the first batch, and batches
	server.spoil = func(_ http.ResponseWriter, r *http.Request) bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		switch {
		case r.URL.Path == "/v1/commands:batch":
			batches++
		case r.URL.Path == "/v1/commands" && batches == 0:
			before++
		}
		return false
	}
	options := short(t, server)
	options.Loads, options.Bulk, options.Finished = []string{bench.Bulk}, 250, 10
	options.Submitters, options.WarmUp = 16, time.Nanosecond
	options.Duration = waittest.Scale(time.Second) // long enough for a job on a slow machine
	report, err := bench.Measure(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 1 || server.starts != 1 || before == 0 || batches != 3 {
		t.Fatalf("%d rows on %d servers, %d commands before %d batches", len(report.Rows), server.starts, before, batches)
	}
	row := report.Rows[0]
	if row.Jobs == 0 || row.Shared == nil || row.Shared.Items != 250 || row.Shared.Share == 0 || row.Shared.Share == 1 ||
		row.Shared.OfAlone != row.Shared.Shared.P50/row.Shared.Alone.P50 {
		t.Fatalf("%+v, %+v", row, row.Shared)
	}
	if len(row.Goals) != 2 || row.Goals[0].Got != row.Shared.OfAlone || !row.Goals[0].AtMost || row.Goals[1].Got != row.Shared.Share {
		t.Errorf("goals: %+v", row.Goals)
	}
	bulk := 0
	for id, job := range server.jobs {
		if job.bulk {
			bulk++
		} else if state := server.state(id); state != api.JobStateSucceeded {
			t.Errorf("job %s was left %s", id, state)
		}
	}
	if bulk != 250 || slices.Contains(bench.Loads(), bench.Bulk) {
		t.Errorf("%d bulk jobs; the loads by default are %v", bulk, bench.Loads())
	}
}
