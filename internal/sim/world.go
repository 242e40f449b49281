package sim

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// Result is what one simulation came to.
type Result struct {
	Seed uint64
	// Hash stands for all that happened: two runs of a seed have the same.
	Hash uint64
	// Calls is the number of port calls, and Faults how many of each kind struck.
	Calls  int
	Faults map[Fault]int
	// Virtual is the time that passed inside.
	Virtual time.Duration
	// Ended is the number of jobs by the state that they ended in.
	Ended map[string]int
	// Violations are the invariants that did not hold; none is what is hoped for.
	Violations []string
	// Trace is the end of what happened.
	Trace []string
}

// world is one simulation.
type world struct {
	seed     uint64
	rng      *rand.Rand // the driver's alone
	scenario scenario
	gate     *gate
	store    tablestore.Store
	bus      *bus
	check    *checker
	trace    *trace
	start    time.Time
	replicas []*replica
	stopping chan struct{}
	actors   sync.WaitGroup

	// What follows is the driver's.
	faulty    bool
	step      int
	faults    map[Fault]int
	agenda    []appointment
	late      []*call
	throttled time.Time            // until then the store takes nothing in
	cut       map[string]time.Time // until then a replica has no store
	tail      bool
	shortPage bool // the scan that is carried out is cut short

	mu      sync.Mutex
	defects []string // told by parts that found out by themselves
	kind    bool     // actors outside are kind from now on
	tidy    bool     // the reconciler runs from now on
}

// appointment is something that the driver does at a time.
type appointment struct {
	at time.Time
	do func()
}

// Run runs the simulation of a seed, in a bubble of its own. log is told of each
// step as it happens; nil tells nobody.
func Run(t *testing.T, seed uint64, log func(string)) Result {
	t.Helper()
	var result Result
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed)
		w.trace.log = log
		w.run()
		result = w.result()
	})
	return result
}

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 0x6c7563697573)) //nolint:gosec // A simulation is to be repeatable.
	w := &world{
		seed: seed, rng: rng, gate: newGate(), store: memstore.New(memstore.Options{Split: true}),
		trace: newTrace(), start: time.Now(), stopping: make(chan struct{}),
		faults: map[Fault]int{}, cut: map[string]time.Time{}, faulty: true,
	}
	w.scenario = newScenario(rng)
	// Not lots: they would make each seed another.
	w.scenario.table = seed%4 == 1
	w.scenario.halts = seed%8 == 3 || seed%8 == 5
	w.scenario.tells = w.scenario.halts && !w.scenario.pull
	w.scenario.mixed = seed%8 == 4 || seed%16 == 11
	w.check = newChecker(w)
	w.bus = newBus(w)
	return w
}

// source is a stream of lots of its own, for one actor: what another draws does
// not change it.
func (w *world) source(name string) *rand.Rand {
	var h uint64 = 14695981039346656037
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return rand.New(rand.NewPCG(w.seed, h)) //nolint:gosec // A simulation is to be repeatable.
}

// run goes through the phases: faults, then kindness, then silence.
func (w *world) run() {
	for i := range w.scenario.replicas {
		w.replicas = append(w.replicas, &replica{w: w, name: fmt.Sprintf("r%d", i+1)})
	}
	for _, r := range w.replicas {
		r.begin()
	}
	w.startActors()
	for _, phase := range []func(){w.faultPhase, w.tailPhase, w.idlePhase} {
		if phase(); w.broken() {
			break
		}
	}
	w.stop()
}

// stop ends all that runs, so that the bubble can be left.
func (w *world) stop() {
	close(w.stopping)
	for _, r := range w.replicas {
		if r.now != nil {
			w.gate.kill(r.now)
		}
	}
	w.gate.stop()
	w.actors.Wait()
}

// result sums the simulation up.
func (w *world) result() Result {
	r := Result{
		Seed: w.seed, Hash: w.trace.hash.Sum64(), Calls: w.trace.n, Faults: w.faults,
		Virtual: time.Since(w.start), Ended: w.check.ended(), Violations: w.violations(),
	}
	if len(r.Violations) > 0 {
		r.Trace = w.trace.tail()
	}
	return r
}

// violations are what the invariants and the parts themselves found.
func (w *world) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(w.check.violations, w.defects...)
}

func (w *world) broken() bool { return len(w.violations()) > 0 }

// defect is told by a part that found something out by itself.
func (w *world) defect(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.defects = append(w.defects, fmt.Sprintf(format, args...))
}

// isKind reports whether actors outside are to do their work well.
func (w *world) isKind() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kind
}

// isTidy reports whether the reconciler is to run.
func (w *world) isTidy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tidy || w.scenario.liveness
}

// sleep lets an actor rest; it reports false when the simulation is over.
func (w *world) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.stopping:
		return false
	}
}
