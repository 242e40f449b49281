package sim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// verb is the kind of a call.
type verb string

const (
	verbGet     verb = "get"
	verbScan    verb = "scan"
	verbCommit  verb = "commit"
	verbPublish verb = "publish"
	verbRequest verb = "request" // a visitor sends a request to a replica
	verbReply   verb = "reply"   // the replica answers
	verbReceive verb = "receive" // a worker receives a message from the bus
	verbSend    verb = "send"    // a replica sends a webhook
	verbLook    verb = "look"    // a visitor learns of a job or an item
)

// errDead is returned by the calls of a process that has crashed, and by all calls once the
// simulation is over. The checker never sees it.
var errDead = errors.New("the process is dead")

// call is one call of a port that is parked at the gate.
type call struct {
	actor string
	verb  verb
	// detail describes the whole call: calls of an actor with the same verb and detail are
	// interchangeable.
	detail string
	proc   *process        // the caller; nil for a visitor
	ctx    context.Context //nolint:containedctx // It is the caller's: the driver checks whether it has ended.
	// exec executes the call. The driver runs it when all other goroutines are blocked.
	exec func() reply
	done chan reply

	arrived int       // the driver's step in which it first saw the call
	ready   time.Time // the call is not executed earlier
	expires time.Time // after this time, the call goes first
	held    *held     // the delayed reply of an executed call
	slow    bool      // the store takes long for it
}

// reply is the result of a call.
type reply struct {
	value any
	err   error
	// after is the position on the disk of the last write that the reply reveals, or 0. The
	// reply is given once that write is durable.
	after int
}

// held is a delayed reply to all calls that were equal.
type held struct {
	reply

	why Fault
}

// over reports whether the caller has given up.
func (c *call) over() bool { return c.ctx != nil && c.ctx.Err() != nil }

// equal reports whether two calls are indistinguishable. Such calls get the same reply at the
// same time, so their order does not matter.
func (c *call) equal(other *call) bool {
	return other == c || other.actor == c.actor && other.verb == c.verb && other.detail == c.detail &&
		other.arrived == c.arrived && other.held == c.held
}

// gate serializes all actors: each call of a port is parked here, and the driver decides
// which one is executed.
type gate struct {
	mu      sync.Mutex
	parked  []*call // sorted by actor, verb and detail; equal calls by arrival
	stopped bool
	bell    chan struct{} // signals the arrival of a call
	answers []chan reply  // channels of answered calls, for reuse
}

func newGate() *gate { return &gate{bell: make(chan struct{}, 1)} }

// park waits until the driver has executed the call.
func (g *gate) park(c *call) reply {
	g.mu.Lock()
	if g.stopped || c.proc != nil && c.proc.dead {
		g.mu.Unlock()
		return reply{err: errDead}
	}
	if last := len(g.answers) - 1; last >= 0 {
		c.done, g.answers = g.answers[last], g.answers[:last]
	} else {
		c.done = make(chan reply, 1)
	}
	c.arrived = -1
	g.parked = slices.Insert(g.parked, g.rank(c), c)
	g.mu.Unlock()
	select {
	case g.bell <- struct{}{}:
	default:
	}
	r := <-c.done
	g.mu.Lock()
	g.answers = append(g.answers, c.done)
	g.mu.Unlock()
	return r
}

// rank returns the index of a new call in parked: after the equal ones.
func (g *gate) rank(c *call) int {
	return sort.Search(len(g.parked), func(i int) bool {
		other := g.parked[i]
		return cmp.Or(cmp.Compare(c.actor, other.actor), cmp.Compare(c.verb, other.verb), cmp.Compare(c.detail, other.detail)) < 0
	})
}

// calls appends the parked calls to list, in an order that depends only on their content.
func (g *gate) calls(list []*call) []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append(list, g.parked...)
}

// hold delays the reply of the calls for which holds returns true.
func (g *gate) hold(h *held, ready time.Time, holds func(*call) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.parked {
		if holds(c) {
			c.held, c.ready, c.expires = h, ready, ready.Add(maxPark)
		}
	}
}

// leave removes the calls for which leaves returns true, and answers them.
func (g *gate) leave(r reply, leaves func(*call) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parked = slices.DeleteFunc(g.parked, func(c *call) bool {
		if !leaves(c) {
			return false
		}
		c.done <- r // The channel has room, because a call is answered once.
		return true
	})
}

// kill makes all current and further calls of a process fail.
func (g *gate) kill(p *process) {
	g.mu.Lock()
	p.dead = true
	g.mu.Unlock()
	p.cancel()
	g.leave(reply{err: errDead}, func(c *call) bool { return c.proc == p })
}

// alive reports whether the process has not crashed.
func (g *gate) alive(p *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !p.dead && !g.stopped
}

// stop makes all current and further calls fail.
func (g *gate) stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.leave(reply{err: errDead}, func(*call) bool { return true })
}

// actor is the caller of a port. The context carries it.
type actor struct {
	name string
	op   *operation // the report that is being handled, if there is one
	sent time.Time  // when it sent the write that is being applied
}

// operation is a worker's report, as the checker needs it.
type operation struct {
	kind      string // ack, heartbeat, result
	jobID     string
	stepID    string
	attemptNo int
	leaseID   string
	status    string
	lease     time.Duration // that an ACK asks for
	throttle  statemachine.Throttle
	stopped   bool // the worker ends the attempt because it stops
}

type actorKey struct{}

// as returns a context that carries the actor.
func as(ctx context.Context, name string, op *operation) context.Context {
	return context.WithValue(ctx, actorKey{}, actor{name: name, op: op})
}

// actorOf returns the context's actor.
func actorOf(ctx context.Context) actor {
	a, _ := ctx.Value(actorKey{}).(actor)
	return a
}

// unavailable returns the error of a store that did not execute a call.
func unavailable(cause string) error {
	return errors.Join(tablestore.ErrUnavailable, errors.New(cause))
}
