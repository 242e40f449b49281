//go:build !race

package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/sim"
)

// TestSim_SlowStore checks that work goes on while the calls of a store take half to twice
// their deadline for ten minutes, and that all jobs end soon after. Without the pacer, half of
// the calls time out; in the ten minutes, 5 to 40 jobs end, and 3 to 9 commands are accepted. It
// has the accesses of [TestSim], so it does not run under the race detector.
func TestSim_SlowStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		seed     uint64
		pull     bool
		accepted int // at least
		ended    int // at least
	}{
		"bus":                     {2, false, 100, 100},
		"bus and tables":          {5, false, 20, 20}, // A change is some ten calls.
		"pull":                    {2, true, 100, 5},  // A claim is some ten calls, one after the other.
		"pull and tables":         {5, true, 40, 3},
		"bus on an atomic store":  {14, false, 100, 100},
		"pull on an atomic store": {14, true, 100, 15},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := sim.RunSlow(t, test.seed, test.pull, nil)
			judge(t, &r.Result)
			summary := fmt.Sprintf("before %d, accepted %v, ended %v, backlog %d, recovered %s", r.Before, r.Accepted, r.Ended, r.Backlog, r.Recovered)
			t.Log(summary)
			if sum(r.Accepted) < test.accepted || sum(r.Ended) < test.ended || r.Recovered > 5*time.Minute {
				t.Errorf("work stood still: %s", summary)
			}
		})
	}
}

func sum(list []int) (total int) {
	for _, n := range list {
		total += n
	}
	return total
}
