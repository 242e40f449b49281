package sim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// verb is what a call asks for.
type verb string

const (
	verbGet     verb = "get"
	verbScan    verb = "scan"
	verbCommit  verb = "commit"
	verbPublish verb = "publish"
	verbRequest verb = "request" // an actor outside calls a replica
	verbReply   verb = "reply"   // the replica's answer goes back
	verbReceive verb = "receive" // a worker takes a message off the bus
	verbLook    verb = "look"    // an actor outside learns of a job
)

// errDead answers the calls of a process that has died, and all calls once the
// simulation is over. Nobody is left to see it.
var errDead = errors.New("the process is dead")

// call is one call of a port that waits for the driver's leave.
type call struct {
	actor string
	verb  verb
	// detail says what is asked for, whole: two calls of an actor with the same
	// detail can not be told apart.
	detail string
	proc   *process        // whose it is; nil for an actor outside
	ctx    context.Context //nolint:containedctx // It is the caller's, and the driver asks whether its time is over.
	// exec carries the call out. The driver runs it, and nobody else at the time.
	exec func() reply
	done chan reply

	arrived int       // the driver's step in which it was first seen
	serial  int       // the order of arrival
	ready   time.Time // not before then
	expires time.Time // by then at the latest
	held    *reply    // carried out, and the reply is on its way
}

// reply is what a call returns.
type reply struct {
	value any
	err   error
}

// gate is where all actors wait: each call of a port parks here, and the driver
// decides which goes on.
type gate struct {
	mu      sync.Mutex
	parked  []*call
	serial  int
	stopped bool
	bell    chan struct{} // rung by each arrival
}

func newGate() *gate { return &gate{bell: make(chan struct{}, 1)} }

// park waits for the driver to carry the call out.
func (g *gate) park(c *call) reply {
	g.mu.Lock()
	if g.stopped || c.proc != nil && c.proc.dead {
		g.mu.Unlock()
		return reply{err: errDead}
	}
	c.done = make(chan reply, 1)
	c.arrived = -1
	c.serial = g.serial
	g.serial++
	g.parked = append(g.parked, c)
	g.mu.Unlock()
	select {
	case g.bell <- struct{}{}:
	default:
	}
	return <-c.done
}

// calls returns the parked calls in an order that depends on nothing but what
// they are.
func (g *gate) calls() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	slices.SortFunc(g.parked, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.actor, b.actor), cmp.Compare(a.verb, b.verb), cmp.Compare(a.detail, b.detail),
			cmp.Compare(a.serial, b.serial))
	})
	return slices.Clone(g.parked)
}

// leave takes calls out and answers them.
func (g *gate) leave(answer func(*call) reply, calls ...*call) {
	g.mu.Lock()
	g.parked = slices.DeleteFunc(g.parked, func(c *call) bool { return slices.Contains(calls, c) })
	g.mu.Unlock()
	for _, c := range calls {
		c.done <- answer(c)
	}
}

// kill makes all calls of a process fail from now on.
func (g *gate) kill(p *process) {
	g.mu.Lock()
	p.dead = true
	var gone []*call
	for _, c := range g.parked {
		if c.proc == p {
			gone = append(gone, c)
		}
	}
	g.mu.Unlock()
	p.cancel()
	g.leave(func(*call) reply { return reply{err: errDead} }, gone...)
}

// alive reports whether the process lives.
func (g *gate) alive(p *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !p.dead && !g.stopped
}

// stop ends the simulation for everybody who waits.
func (g *gate) stop() {
	g.mu.Lock()
	g.stopped = true
	gone := slices.Clone(g.parked)
	g.mu.Unlock()
	g.leave(func(*call) reply { return reply{err: errDead} }, gone...)
}

// actor is who makes a call, carried by its context.
type actor struct {
	name string
	op   *operation // what it is about, where the invariants need to know
}

// operation is a worker's report, as the invariants see it.
type operation struct {
	kind      string // ack, heartbeat, result
	jobID     string
	stepID    string
	attemptNo int
	leaseID   string
	status    string
}

type actorKey struct{}

// as returns a context whose calls are the actor's.
func as(ctx context.Context, name string, op *operation) context.Context {
	return context.WithValue(ctx, actorKey{}, actor{name, op})
}

// actorOf returns who makes the calls of the context.
func actorOf(ctx context.Context) actor {
	a, _ := ctx.Value(actorKey{}).(actor)
	return a
}

// unavailable is what a store answers that took nothing in.
func unavailable(cause string) error {
	return errors.Join(tablestore.ErrUnavailable, errors.New(cause))
}
