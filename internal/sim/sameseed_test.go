//go:build !race

package sim_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/lucius-project/lucius/internal/sim"
)

// TestSameSeedSameTrace checks that a seed always has the same trace, on one processor and on
// two. The race detector shuffles the goroutines that one step makes runnable, such as those that
// plan the items of one claim, and so the order in which they draw ids: with it, the trace of a
// seed may differ.
func TestSameSeedSameTrace(t *testing.T) { //nolint:paralleltest // It sets the number of processors.
	count := uint64(50)
	if testing.Short() {
		count = 10
	}
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	hashes := map[uint64]uint64{}
	for _, processors := range slices.Compact([]int{1, 2, max(2, before)}) {
		runtime.GOMAXPROCS(processors)
		for n := uint64(1); n <= count; n++ {
			seed := n
			if n%5 == 0 {
				seed |= sim.Scheduled
			}
			if n%4 == 0 {
				seed |= sim.Announced
			}
			hash := sim.Run(t, seed, nil).Hash
			if first, known := hashes[seed]; known && first != hash {
				t.Errorf("seed %d has a different trace on %d processors", seed, processors)
			}
			hashes[seed] = hash
		}
	}
}
