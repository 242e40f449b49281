package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/outages"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/retention"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/sweeper"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// replica is one server, which may die and come back.
type replica struct {
	w          *world
	name       string
	generation int
	now        *process // nil while it is down; the driver's
}

// process is one life of a replica.
type process struct {
	replica *replica
	name    string
	dead    bool            // under the gate's mutex
	ctx     context.Context //nolint:containedctx // Its end is the death of the process.
	cancel  context.CancelFunc
	rng     *rand.Rand

	mu    sync.Mutex
	parts *parts // nil until it has started
}

// parts is what a server is made of.
type parts struct {
	ledger  *ledger.Ledger
	queue   *workqueue.Queue
	checker *liveness.Checker
	gate    *pauses.Gate
	ended   jobs.Ended
	handler http.Handler
	loops   []loop
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
	r.now = p
	r.w.actors.Go(func() { p.main(r.w) })
}

// main is the life of the process.
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

// up returns the parts of a process that has started, else nil.
func (p *process) up() *parts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts
}

// open puts the server together, as the program does.
func (p *process) open(w *world) (*parts, error) {
	store := &port{w: w, p: p}
	inbox := outbox.NewInbox(w.scenario.inbox)
	made := &parts{}
	random := &lots{rng: w.source(p.name + "/ledger")}
	cfg := ledger.Config{
		Store: store, Shards: shards, Hold: hold, Jitter: w.scenario.jitter,
		Retention: w.scenario.retention, KeyTTL: w.scenario.retention,
		Entropy: random, Random: random.float, Ended: made.ended.Tell,
	}
	if !w.scenario.cold || p.replica != w.replicas[0] {
		cfg.Handoff = inbox
	}
	storage := workqueue.NewStorage(store, "")
	if w.scenario.pull {
		cfg.Follower = storage
	}
	if w.scenario.table {
		cfg.Projector = projections.New(store, projections.Tables{})
	}
	if w.scenario.halts {
		cfg.Held = func(tenantID, protocolID string, lane int) bool {
			return made.gate.Holds(pauses.Subject{TenantID: tenantID, ProtocolID: protocolID, Lane: lane})
		}
	}
	ctx := as(p.ctx, p.name+"/open", nil)
	l, err := ledger.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	made.ledger = l
	var publisher outbox.Publisher = &busPort{w: w, p: p}
	if w.scenario.pull {
		random := &lots{rng: w.source(p.name + "/queue")}
		if made.queue, err = workqueue.New(workqueue.Config{Storage: storage, Ledger: l, Random: random.float}); err != nil {
			return nil, err
		}
		publisher = made.queue
	}
	if err := made.addLoops(w, p, store, inbox, publisher); err != nil {
		return nil, err
	}
	if err := made.serve(ctx, w, store); err != nil {
		return nil, err
	}
	if w.scenario.halts {
		made.loops = append(made.loops, loop{"gate", made.gate.Run})
	}
	return made, nil
}

// admit asks the gate, which is there before any loop runs.
func (m *parts) admit(tenantID, protocolID string, lane int) bool {
	return m.gate.Admit(pauses.Subject{TenantID: tenantID, ProtocolID: protocolID, Lane: lane})
}

// addLoops makes what runs by itself.
func (m *parts) addLoops(w *world, p *process, store *port, inbox *outbox.Inbox, publisher outbox.Publisher) error {
	breakers, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		return err
	}
	relayLots, sweepLots := &lots{rng: w.source(p.name + "/relay")}, &lots{rng: w.source(p.name + "/sweeper")}
	relay, err := outbox.NewRelay(outbox.Config{
		Ledger: m.ledger, Publisher: publisher, Inbox: inbox, Breakers: breakers, Random: relayLots.float,
		Fatal:    func(e *seqledger.IllegalTransitionError) { w.defect("%s: illegal transition: %v", p.name, e) },
		Deadline: publishDeadline, Interval: relayInterval, Batch: 4, Workers: 2,
		// One after the other: rows of one job in one pass can not be told apart by
		// their first call, and who draws which id would be the scheduler's choice.
		Marks: 1, PassLimit: 16, Admit: m.admit,
	})
	if err != nil {
		return err
	}
	swept := sweeper.Config{Ledger: m.ledger, Interval: sweepInterval, Page: 8, Parallel: 1, Random: sweepLots.float}
	m.loops = []loop{{"relay", relay.Run}}
	if w.scenario.tells {
		if err := m.addOutages(store, breakers, &swept); err != nil {
			return err
		}
	}
	sweep, err := sweeper.New(swept)
	if err != nil {
		return err
	}
	m.loops = append(m.loops, loop{"sweeper", sweep.Run})
	return m.addKeepers(w)
}

// addOutages has replicas tell each other which topics are away, and the sweeper heed
// it.
func (m *parts) addOutages(store *port, breakers *breaker.Set, swept *sweeper.Config) error {
	board, err := outages.New(outages.Config{
		Store: store, Table: m.ledger.Tables().Schedule, Margin: publishDeadline + 2*relayInterval,
	})
	if err != nil {
		return err
	}
	swept.Outages = func(ctx context.Context) (sweeper.Outages, error) {
		ends, err := board.Ends(ctx)
		return sweeper.Outages{Topic: ends.Topic}, err
	}
	m.loops = append(m.loops, loop{"outages", func(ctx context.Context) error {
		return board.Watch(ctx, func(now time.Time) []outages.Part { return outages.Broken(breakers, now) }, slog.New(slog.DiscardHandler))
	}})
	return nil
}

// addKeepers makes the loops that look after what the others left.
func (m *parts) addKeepers(w *world) error {
	cfg := liveness.Config{Ledger: m.ledger, Interval: livenessInterval, Page: 8, Rest: livenessInterval}
	if m.queue != nil {
		cfg.Ensure = m.queue.Ensure
	}
	checker, err := liveness.New(cfg)
	if err != nil {
		return err
	}
	m.checker = checker
	m.loops = append(m.loops, loop{"liveness", func(ctx context.Context) error {
		for !w.isTidy() && ctx.Err() == nil {
			time.Sleep(livenessInterval)
		}
		return checker.Run(ctx)
	}})
	if w.scenario.retention > 0 {
		purger, err := retention.New(retention.Config{Ledger: m.ledger, Interval: sweepInterval})
		if err != nil {
			return err
		}
		m.loops = append(m.loops, loop{"retention", purger.Run})
	}
	return nil
}

// lots is a source of ids and lots that several goroutines share.
type lots struct {
	mu  sync.Mutex
	rng *rand.Rand
}

var _ io.Reader = (*lots)(nil)

// Read fills p; it never fails.
func (l *lots) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p {
		p[i] = byte(l.rng.Uint32())
	}
	return len(p), nil
}

func (l *lots) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Float64()
}
