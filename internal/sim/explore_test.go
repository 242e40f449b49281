package sim_test

import (
	"flag"
	"runtime"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/sim"
)

var (
	schedules     = flag.Int("sim.schedules", defaultSchedules, "how many schedules of a line to explore")
	firstSchedule = flag.Uint64("sim.schedule", 0, "the first schedule; with one schedule, its steps are logged")
)

// TestExplore explores schedules of one line, the same in every run.
func TestExplore(t *testing.T) {
	t.Parallel()
	for shard := range runtime.GOMAXPROCS(0) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for i := shard; i < *schedules && !t.Failed(); i += runtime.GOMAXPROCS(0) {
				seed := *firstSchedule + uint64(i)
				var log func(string)
				if *schedules == 1 {
					log = func(line string) { t.Log(line) }
				}
				if result := sim.Explore(t, seed, log); len(result.Violations) > 0 {
					t.Errorf("schedule %d:\n%s\n\nrun it again with\n\tgo test ./internal/sim -run Explore -v -sim.schedules=1 -sim.schedule=%d",
						seed, strings.Join(result.Violations, "\n"), seed)
				}
			}
		})
	}
}
