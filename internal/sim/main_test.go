package sim_test

import (
	"flag"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

var (
	oneSeed    = flag.Uint64("sim.seed", 0, "run this seed alone; 0 runs many")
	seedCount  = flag.Int("sim.seeds", defaultSeeds, "how many fresh seeds to run")
	firstSeed  = flag.Uint64("sim.from", 1, "the first fresh seed")
	stopEarly  = flag.Bool("sim.stop", false, "stop at the first seed that fails")
	traceParts = flag.String("sim.trace", "", "with -sim.seed, print each step that mentions this; . prints all")
)

func TestMain(m *testing.M) {
	// A simulation is small and takes milliseconds: with the default, the collector would run
	// several times for each.
	debug.SetGCPercent(1600)
	goleak.VerifyTestMain(m)
}
