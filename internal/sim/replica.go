package sim

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// replica is one server, which may crash and restart.
type replica struct {
	w          *world
	name       string
	generation int
	now        *process // nil while the replica is down; only the driver uses it
}

// process is one run of a replica.
type process struct {
	replica *replica
	name    string
	dead    bool            // guarded by the gate's mutex
	ctx     context.Context //nolint:containedctx // It ends when the process crashes.
	cancel  context.CancelFunc
	rng     *rand.Rand
	pull    bool // publishes to the pull queue, otherwise to the bus

	mu    sync.Mutex
	parts *parts // nil until it has started
}

// parts are the parts of a server.
type parts struct {
	ledger     *ledger.Ledger
	queue      *workqueue.Queue
	callbacks  *callbacks.Service
	reconciler *background.Reconciler
	admission  *admission.Service
	gate       *admission.Gate
	limited    bool            // the scenario has a limit
	pauses     bool            // operators pause dispatch
	outages    *outbox.Outages // nil if replicas do not share them
	ended      search.Ended
	counts     *search.Counts
	schedules  *schedules.Service   // nil unless the scenario has schedules
	webhooks   *background.Webhooks // nil unless the scenario has webhooks
	handler    http.Handler
	loops      []loop
}

// loop is one of the loops of a server.
type loop struct {
	name string
	run  func(context.Context) error
}

// begin starts the replica.
func (r *replica) begin() {
	r.generation++
	p := &process{replica: r, name: fmt.Sprintf("%s.%d", r.name, r.generation)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.rng = r.w.source(p.name)
	p.pull = r.w.scenario.pull
	if r.w.scenario.mixed {
		p.pull = p.rng.IntN(2) == 0
	}
	r.now = p
	r.w.actors.Go(func() { p.main(r.w) })
}

// main runs the process.
func (p *process) main(w *world) {
	started, err := p.open(w)
	for err != nil {
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(time.Second + time.Duration(p.rng.Int64N(int64(time.Second)))):
		}
		started, err = p.open(w)
	}
	p.mu.Lock()
	p.parts = started
	p.mu.Unlock()
	for _, l := range started.loops {
		delay := time.Duration(p.rng.Int64N(int64(3 * time.Second)))
		w.actors.Go(func() {
			select {
			case <-time.After(delay):
			case <-p.ctx.Done():
			}
			if err := l.run(as(p.ctx, p.name+"/"+l.name, nil)); err != nil && w.gate.alive(p) {
				w.defect("%s/%s ended: %v", p.name, l.name, err)
			}
		})
	}
}

// up returns the parts of a process that has started, otherwise nil. p is nil if its replica
// is down.
func (p *process) up() *parts {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts
}

// open builds the server, as the program does.
func (p *process) open(w *world) (*parts, error) {
	port := &port{w: w, p: p}
	var store tablestore.Store = port
	if whole, ok := w.store.(tablestore.AtomicStore); ok {
		store = atomicPort{port, whole}
	}
	if w.scenario.parallel {
		store = pacer.New(store, pacer.Config{Deadline: storeDeadline})
	}
	if w.scenario.bare {
		return p.openBare(w, store)
	}
	handoff := outbox.NewHandoff(w.scenario.handoff)
	made := &parts{}
	random := &randomSource{rng: w.source(p.name + "/ledger")}
	cfg := ledger.Config{
		Store: store, Shared: w.scenario.shared, Shards: shards, Hold: hold, Jitter: w.scenario.jitter,
		Retention: w.scenario.retention, KeyTTL: w.scenario.retention,
		Entropy: random, Random: random.float, SpreadIDs: w.scenario.spread,
		Ended: func(job *statemachine.Job) {
			w.check.told(job)
			made.ended.Tell(job)
			made.offer(job)
		},
		Limit: func(string) int { return w.scenario.limit },
		Observe: func(_ context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			w.check.told(&after.Job)
			made.counts.Observe(before, after, history)
		},
	}
	cfg.Freed = func(slots []statemachine.RunSlot) {
		if made.limited {
			made.gate.Freed(slots)
		}
	}
	if !w.scenario.cold || p.replica != w.replicas[0] {
		cfg.Handoff = handoff
	}
	mirror := workqueue.NewMirror(mirrorLimit)
	cfg.Bus, cfg.Ready, cfg.Taker = statemachine.BusServiceBus, mirror.Ready, mirror.Taker
	if p.pull {
		cfg.Bus = statemachine.BusQueue
	}
	if w.scenario.table {
		cfg.Projector = projections.New(store, projections.Tables{}, random.float)
	}
	if made.pauses = w.scenario.pauses; made.pauses {
		cfg.Held = func(target statemachine.Target) bool { return made.gate.HoldsNew(target) }
	}
	ctx := as(p.ctx, p.name+"/open", nil)
	l, err := ledger.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	made.ledger = l
	if err := made.openQueue(ctx, w, p, store, mirror); err != nil {
		return nil, err
	}
	if err := made.count(ctx, p, store); err != nil {
		return nil, err
	}
	var publisher outbox.Publisher = &busPort{w: w, p: p}
	if p.pull {
		publisher = made.queue
	}
	if err := made.addLoops(w, p, store, handoff, publisher); err != nil {
		return nil, err
	}
	if err := made.serve(w, p, store); err != nil {
		return nil, err
	}
	if w.scenario.pauses || w.scenario.limits { // Without its loops the gate is asked nothing.
		made.every(time.Second, background.Loop{Name: "gate", Pass: made.gate.Refresh})
	}
	if w.scenario.limits {
		made.every(time.Second, background.Loop{Name: "run slots", Pass: made.gate.RefreshRuns})
		made.loops = append(made.loops, loop{"tokens", made.gate.Run})
	}
	if w.scenario.announced {
		made.openWebhooks(w, p)
	}
	return made, nil
}

// openQueue opens the gate, and the queue whose claims ask it.
func (m *parts) openQueue(ctx context.Context, w *world, p *process, store tablestore.Store, mirror *workqueue.Mirror) error {
	asked, err := m.openGate(ctx, w, store)
	if err != nil {
		return err
	}
	random := &randomSource{rng: w.source(p.name + "/queue")}
	m.queue = workqueue.New(workqueue.Config{
		Ledger: m.ledger, Store: store, Mirror: mirror, Random: random.float, Held: m.held, HeldTenant: m.heldTenant,
		Limits: asked, Closer: m.closeScope, Logger: w.log,
	})
	return nil
}

// openGate opens the pauses and limits, and returns the gate that claims ask: nil unless there are limits.
func (m *parts) openGate(ctx context.Context, w *world, store tablestore.Store) (asked *admission.Gate, err error) {
	steady := func() float64 { return 0.5 } // Several closures may be written at once, in any order.
	m.admission = admission.New(store, m.ledger.Tables().Queue, steady)
	if w.scenario.limits {
		if _, err := m.admission.SetLimit(ctx, w.limit()); err != nil {
			return nil, err
		}
	}
	m.gate, err = admission.NewGate(ctx, admission.Config{
		Service: m.admission, Runs: m.ledger, Skew: limitSkew, Random: steady, Logger: w.log,
	})
	if err == nil && w.scenario.limits {
		asked, m.limited = m.gate, true
	}
	return asked, err
}

// countsInterval is longer than in the program, because each pass is several calls.
const countsInterval = time.Minute

// count opens the counts.
func (m *parts) count(ctx context.Context, p *process, store tablestore.Store) error {
	m.counts = search.NewCounts(search.CountsConfig{Store: store, Table: tableQueue, Replica: p.name, Queue: m.queue})
	return m.counts.Open(ctx)
}

// every adds a loop that runs a pass in each interval.
func (m *parts) every(interval time.Duration, l background.Loop) {
	l.Interval = interval
	m.loops = append(m.loops, loop{l.Name, l.Run})
}

// closeScope closes what a throttled RESULT says, in scenarios with a limit.
func (m *parts) closeScope(_ context.Context, c statemachine.Closure) {
	if m.limited {
		m.gate.Close(c)
	}
}

// admit asks the gate, which is set before any loop starts.
func (m *parts) admit(target statemachine.Target) bool {
	return !m.pauses || m.gate.Admit(target)
}

// held and heldTenant ask the gate about work that was published before a pause.
func (m *parts) held(target statemachine.Target) bool {
	return m.pauses && m.gate.HoldsQueued(target)
}

func (m *parts) heldTenant(tenantID string) bool { return m.pauses && m.gate.HoldsTenant(tenantID) }

// limitSkew is allowed between clocks. All have one clock here: a model of the arithmetic has
// others (pkg/admission).
const limitSkew = 250 * time.Millisecond

// mirrorLimit is small, so that mirrors sometimes overflow.
const mirrorLimit = 4

// addLoops adds the background loops.
func (m *parts) addLoops(w *world, p *process, store tablestore.Store, handoff *outbox.Handoff, publisher outbox.Publisher) error {
	breakers := breaker.NewSet(breaker.Config{})
	relayRandom, sweepRandom := &randomSource{rng: w.source(p.name + "/relay")}, &randomSource{rng: w.source(p.name + "/sweeper")}
	workers := 2
	if w.scenario.mixed {
		// If rows wait before the relay starts, the Go scheduler would decide how two workers
		// share them.
		workers = 1
	}
	settings := outbox.Config{
		Ledger: m.ledger, Publisher: publisher, Handoff: handoff, Breakers: breakers, Random: relayRandom.float,
		Fatal:    func(e *seqledger.IllegalTransitionError) { w.defect("%s: illegal transition: %v", p.name, e) },
		Deadline: publishDeadline, Batch: 4, Workers: workers, Logger: w.log,
		// Rows are marked one at a time: the first calls for rows of one job in one pass are
		// equal, so the Go scheduler would decide which of them draws which id.
		Marks: 1, PassLimit: 16, Admit: m.admit, Held: m.held,
	}
	sweeping := background.SweeperConfig{Ledger: m.ledger, Page: 8, Parallel: 1, Random: sweepRandom.float, Logger: w.log}
	if w.scenario.parallel {
		settings.Batch, settings.Workers, settings.Marks, settings.PassLimit = 0, 0, 0, 0
		sweeping.Page, sweeping.Parallel = 0, 0
	}
	relay, err := outbox.NewRelay(settings)
	if err != nil {
		return err
	}
	m.loops = []loop{{"relay", relay.Run}}
	m.every(relayInterval, background.Loop{Name: "relay passes", Pass: func(ctx context.Context) error {
		_, err := relay.RunOnce(ctx)
		return err
	}})
	if w.scenario.sharesOutages {
		m.addOutages(store, breakers, &sweeping)
	}
	sweeper := background.NewSweeper(sweeping)
	m.every(sweepInterval, sweeper.Loop())
	if w.scenario.dated {
		sweeping.Kind, sweeping.Random = ledger.Date, (&randomSource{rng: w.source(p.name + "/dates")}).float
		dates := background.NewSweeper(sweeping)
		m.every(sweepInterval, dates.Loop())
	}
	m.addCleanup(w)
	return nil
}

// addOutages makes replicas share outages of topics, and lets the sweeper read them.
func (m *parts) addOutages(store tablestore.Store, breakers *breaker.Set, sweeping *background.SweeperConfig) {
	m.outages = outbox.NewOutages(store, m.ledger.Tables().Schedule, publishDeadline+2*relayInterval, nil)
	sweeping.Outages = func(ctx context.Context) (background.Outages, error) {
		ends, err := m.outages.Ends(ctx)
		return background.Outages{Topic: ends.Topic}, err
	}
	m.every(time.Second, background.Loop{Name: "outages", Pass: func(ctx context.Context) error {
		return m.outages.Note(ctx, outbox.OpenCircuits(breakers, time.Now())...)
	}})
}

// addCleanup adds the reconciler and the retention.
func (m *parts) addCleanup(w *world) {
	reconciler := background.NewReconciler(background.ReconcilerConfig{
		Ledger: m.ledger, Page: 8, Rest: reconcileInterval, Counts: m.counts, Logger: w.log,
	})
	m.reconciler = reconciler
	for _, walk := range []background.Loop{reconciler.Loop(), reconciler.CountLoop()} {
		pass := walk.Pass
		walk.Pass = func(ctx context.Context) error {
			if !w.reconciles() {
				return nil
			}
			return pass(ctx)
		}
		m.every(reconcileInterval, walk)
	}
	if w.scenario.retention > 0 {
		retention := background.NewRetention(background.RetentionConfig{
			Ledger: m.ledger, Random: func() float64 { return 0 }, Logger: w.log,
		})
		m.every(sweepInterval, retention.Loop())
	}
}

// randomSource is a source of ids and random numbers that several goroutines share.
type randomSource struct {
	mu  sync.Mutex
	rng *rand.Rand
}

var _ io.Reader = (*randomSource)(nil)

// Read fills p with random bytes. It never fails.
func (l *randomSource) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p {
		p[i] = byte(l.rng.Uint32())
	}
	return len(p), nil
}

func (l *randomSource) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Float64()
}
