package bench_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/internal/waittest"
)

// TestRetentionShowsWhetherTheStoreGrows measures a server that purges more jobs than end, as
// one with a backlog does, and one that purges nothing and grows with each completion. Whether the
// growth is beyond its goal depends on the machine: TestRetentionHasThreeGoals has figures.
func TestRetentionShowsWhetherTheStoreGrows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		purges  int
		growing bool
	}{"keeps up": {20, false}, "falls behind": {0, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, nil)
			server.purges, server.growing = test.purges, test.growing
			server.spoil = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/v1/work:complete" {
					server.mu.Lock()
					defer server.mu.Unlock()
					server.grow()
				}
				return false
			}
			options := short(t, server)
			options.Loads, options.Finished = []string{bench.One, bench.Retention}, 10
			options.RetentionDuration = waittest.Scale(time.Second) // long enough for a job on a slow machine
			report, err := bench.Measure(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Rows) != 3 || report.Rows[1].Load != bench.Retention || report.Rows[1].Kept == nil {
				t.Fatalf("rows: %+v", report.Rows)
			}
			row := report.Rows[1]
			if row.Jobs == 0 || row.PerSecond != float64(row.Jobs)/options.RetentionDuration.Seconds() || row.Kept.Bytes == 0 ||
				row.OfOne == 0 && report.Rows[0].Jobs > 0 { // On a slow machine no job may end in the short window.
				t.Errorf("%+v, %+v", row, row.Kept)
			}
			if goal := row.Goals[0]; goal.Met == test.growing {
				t.Errorf("%s: %v, met: %t", goal.What, goal.Got, goal.Met)
			}
			if goal := row.Goals[1]; !test.growing && !goal.Met || goal.Got < 1 {
				t.Errorf("%s: %v, met: %t", goal.What, goal.Got, goal.Met)
			}
		})
	}
}

// TestRetentionIsMeasuredByName keeps jobs for 20 seconds on a server of that load alone.
func TestRetentionIsMeasuredByName(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	options := short(t, server)
	options.Loads, options.RetentionDuration, options.Finished = []string{bench.Retention}, 100*time.Millisecond, 10
	report, err := bench.Measure(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 1 || server.starts != 1 || server.retention != 20*time.Second {
		t.Errorf("%d rows on %d servers, which kept jobs for %s", len(report.Rows), server.starts, server.retention)
	}
	if slices.Contains(bench.Loads(), bench.Retention) {
		t.Error("it is measured by default")
	}
}
