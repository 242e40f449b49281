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

// TestBulkComparesNormalWorkWithAndWithoutIt measures two servers in turn, first the one that got the
// bulk jobs. The fake's servers share their queues, so the other takes those that are left.
func TestBulkComparesNormalWorkWithAndWithoutIt(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	var before, batches int // commands before the last batch, and batches
	server.spoil = func(_ http.ResponseWriter, r *http.Request) bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		switch {
		case r.URL.Path == "/v1/commands:batch":
			batches++
		case r.URL.Path == "/v1/commands" && batches < 3:
			before++
		}
		return false
	}
	options := short(t, server)
	options.Loads, options.Bulk, options.Finished, options.Rounds = []string{bench.Bulk}, 250, 10, 2
	options.Submitters, options.WarmUp = 16, time.Nanosecond
	options.Duration = waittest.Scale(time.Second) // long enough for a job on a slow machine
	report, err := bench.Measure(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 1 || server.starts != 2 || server.running != 0 || before != 0 || batches != 3 {
		t.Fatalf("%d rows on %d servers, %d commands before the last of %d batches", len(report.Rows), server.starts, before, batches)
	}
	row := report.Rows[0]
	shared := row.Shared
	if row.Jobs == 0 || shared == nil || shared.Items != 250 || shared.Share == 0 || shared.Share == 1 ||
		shared.AlonePerSecond == 0 || shared.SharedPerSecond == 0 || shared.OfAlone != shared.Shared.P50/shared.Alone.P50 {
		t.Fatalf("%+v, %+v", row, shared)
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
