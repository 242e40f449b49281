package sim

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// Result is the result of one simulation.
type Result struct {
	Seed uint64
	// Hash is the hash of the trace, which is the same in each run of a seed.
	Hash uint64
	// Calls is the number of port calls, and Faults the number of faults of each kind.
	Calls  int
	Faults map[Fault]int
	// Virtual is the virtual time that passed.
	Virtual time.Duration
	// Ended is the number of jobs by their last state.
	Ended map[string]int
	// Waits is how often a job was found to wait for each reason.
	Waits map[string]int
	// Lists is how many lists of jobs by document or tags, read to their end, had so many jobs.
	Lists map[int]int
	// Webhooks is the number of attempts to send webhooks, by their results.
	Webhooks map[webhook.Outcome]int
	// Violations are the violated invariants. A correct program has none.
	Violations []string
	// Trace is the end of the trace, if there are violations.
	Trace []string
}

// world is one simulation.
type world struct {
	seed     uint64
	rng      *rand.Rand // used only by the driver
	scenario scenario
	gate     *gate
	store    tablestore.Store
	disk     *disk // nil if each write is durable at once
	bus      *bus
	receiver *receiver
	check    *checker
	trace    *trace
	start    time.Time
	replicas []*replica
	stopping chan struct{}
	served   chan func() // passes requests to goroutines that have finished one
	actors   sync.WaitGroup

	// Only the driver uses these fields.
	faulty    bool
	step      int
	alarm     *time.Timer // ends a rest
	faults    map[Fault]int
	agenda    []dueTask
	late      []*call              // timed-out writes that have not landed
	calls     []*call              // the calls of the step, to reuse its memory
	throttled time.Time            // until when the store refuses all calls
	cut       map[string]time.Time // replica → until when it cannot reach the store
	counted   int                  // how often the counts were read
	shortPage bool                 // the current scan returns a short page

	slow atomic.Bool  // the store is slow
	log  *slog.Logger // the log of all parts, which checks its records

	mu        sync.Mutex
	defects   []string // found by the parts themselves
	calm      bool     // visitors no longer crash or misbehave
	reconcile bool     // the reconciler runs from now on
	closed    bool     // clients submit no more commands
}

// dueTask is a task of the driver for a time.
type dueTask struct {
	at time.Time
	do func()
}

// Run runs the simulation of a seed in a bubble of its own. log, which may be nil, is called
// with each step.
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

// Ordered is the bit of the seeds whose commands have order keys. The seeds that were recorded before
// there were lines do not have it.
const Ordered = 1 << 62

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 0x6c7563697573)) //nolint:gosec // A simulation must be repeatable.
	w := &world{
		seed: seed, rng: rng, gate: newGate(),
		trace: newTrace(), start: time.Now(), stopping: make(chan struct{}), served: make(chan func()),
		faults: map[Fault]int{}, cut: map[string]time.Time{}, faulty: true, alarm: time.NewTimer(0),
	}
	w.log = slog.New(&logCheck{report: w.defect})
	w.scenario = newScenario(rng)
	// The seed determines these directly: further draws would change all recorded seeds.
	w.scenario.table = seed%4 == 1
	w.scenario.spread = seed%16/4 == 2 // in both layouts, with and without pauses
	w.scenario.pauses = seed%8 == 3 || seed%8 == 5
	w.scenario.sharesOutages = w.scenario.pauses && !w.scenario.pull
	w.scenario.mixed = seed%8 == 4 || seed%16 == 11
	w.scenario.limits = (w.scenario.pull || w.scenario.mixed) && slices.Contains([]uint64{2, 9, 10, 14}, seed%16)
	if w.scenario.limits && slices.Contains([]uint64{14, 18, 25, 26}, seed%32) {
		w.scenario.running = 1 + int(seed/32%2)
	}
	w.scenario.dated = seed%4 == 2 || seed%32 == 5 // The latter in the layout "table", with pauses.
	w.scenario.scheduled = seed&Scheduled != 0
	if w.scenario.ordered = seed&Ordered != 0; w.scenario.ordered { // So many that jobs often wait.
		w.scenario.commands, w.scenario.submits = w.scenario.commands+8, w.scenario.submits+6
	}
	w.scenario.announced = seed&Announced != 0
	w.scenario.classed = seed%8 == 4 || seed%32 == 9
	w.scenario.described = seed%16 >= 8 && seed%16 != 13   // No recorded seed is among these.
	options := memstore.Options{Split: true, Shared: true} // The checker shares the rows, too.
	if slices.Contains([]uint64{3, 10, 14}, seed%16) {     // These scenarios are with and without pauses.
		options.Split, w.scenario.atomic = false, true
		w.scenario.shared = seed%32 >= 14 && seed%32 < 26 // as PostgreSQL is
	}
	if w.scenario.atomic && !w.scenario.shared {
		w.scenario.replicas = 1
		w.disk = newDisk(w, []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second}[seed/32%4])
		options.Tail = &w.disk.tail
	}
	w.store = memstore.New(options)
	w.check = newChecker(w)
	w.bus = newBus(w)
	w.receiver = newReceiver(w)
	return w
}

// source returns the random numbers of one actor, which do not depend on what other actors
// draw.
func (w *world) source(name string) *rand.Rand {
	var h uint64 = 14695981039346656037
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return rand.New(rand.NewPCG(w.seed, h)) //nolint:gosec // A simulation must be repeatable.
}

// run runs the phases: with faults, calm, idle.
func (w *world) run() {
	w.begin()
	for _, phase := range []func(){w.faultPhase, w.calmPhase, w.idlePhase} {
		if phase(); w.broken() {
			break
		}
	}
	w.stop()
}

// begin starts the replicas and the visitors.
func (w *world) begin() {
	for i := range w.scenario.replicas {
		w.replicas = append(w.replicas, &replica{w: w, name: fmt.Sprintf("r%d", i+1)})
	}
	for _, r := range w.replicas {
		r.begin()
	}
	w.startActors()
}

// stop ends all goroutines, so that the bubble can end.
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

// result returns the result of the simulation.
func (w *world) result() Result {
	r := Result{
		Seed: w.seed, Hash: w.trace.hash.Sum64(), Calls: w.trace.n, Faults: w.faults,
		Virtual: time.Since(w.start), Ended: w.check.ended(), Waits: w.check.waits, Lists: w.check.lists,
		Webhooks: w.check.webhooks.results, Violations: w.violations(),
	}
	if len(r.Violations) > 0 {
		r.Trace = w.trace.tail()
	}
	return r
}

// violations returns the violations that the checker and the parts themselves have found.
func (w *world) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(w.check.violations, w.defects...)
}

func (w *world) broken() bool { return len(w.violations()) > 0 }

// defect records a violation that a part has found by itself.
func (w *world) defect(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.defects = append(w.defects, fmt.Sprintf(format, args...))
}

// setCalm makes visitors behave from now on.
func (w *world) setCalm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = true
}

// isCalm reports whether visitors must not crash or misbehave.
func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// close makes clients submit no more commands, and isClosed reports it.
func (w *world) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

func (w *world) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// reconciles reports whether the reconciler runs.
func (w *world) reconciles() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reconcile || w.scenario.reconcile
}

// sleep blocks an actor. It reports false when the simulation is over.
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
