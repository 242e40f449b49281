package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// errLost is returned if a visitor does not learn the outcome of its request.
var errLost = errors.New("no answer")

// visitor is an actor outside the replicas: a client, an operator or a worker.
type visitor struct {
	w    *world
	name string
	rng  *rand.Rand
	n    int // requests so far
	jobs int // tasks started
}

func (w *world) visitor(name string) *visitor {
	return &visitor{w: w, name: name, rng: w.source(name)}
}

// request is a request that has reached a replica.
type request struct {
	*parts
	id    string
	proc  *process
	ctx   context.Context //nolint:containedctx // A request lasts as long as its context.
	began int             // the number of commits before the request
}

// answer is the answer of a replica.
type answer struct {
	value any
	err   error
}

// ask sends a request to a random replica and waits for the answer. handle runs in the
// replica. The driver calls known when the replica answers, even if the visitor has given up.
func (v *visitor) ask(what string, op *operation, handle func(*request) (any, error), known func(*request, any, error)) (any, error) {
	v.n++
	name := fmt.Sprintf("%s#%d", v.name, v.n)
	start, patience := v.rng.IntN(8), 5*time.Second+time.Duration(v.rng.Int64N(int64(20*time.Second)))
	if v.w.scenario.parallel {
		patience += 30 * time.Second
	}
	r := v.w.gate.park(&call{actor: name, verb: verbRequest, detail: what, exec: func() reply { return v.w.admit(start) }})
	req, ok := r.value.(*request)
	if r.err != nil || !ok {
		return nil, errLost
	}
	ctx, cancel := context.WithTimeout(as(req.proc.ctx, name, op), patience+10*time.Second)
	req.ctx, req.id = ctx, name
	answers := make(chan answer, 1)
	v.w.serve(func() {
		defer cancel()
		value, err := handle(req)
		back := &call{actor: name, verb: verbReply, detail: what + " " + errorText(err), proc: req.proc, exec: func() reply {
			known(req, value, err)
			return reply{}
		}}
		if v.w.gate.park(back).err != nil {
			err = errLost
		}
		answers <- answer{value, err}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
		return nil, errLost
	}
}

// look asks the checker. The answer is nil once the simulation is over.
func (v *visitor) look(what string, exec func() any) any {
	return v.w.gate.park(&call{actor: v.name, verb: verbLook, detail: what, exec: func() reply { return reply{value: exec()} }}).value
}

// serve runs f in a goroutine. It prefers one that has finished a request, because its stack
// has already grown.
func (w *world) serve(f func()) {
	select {
	case w.served <- f:
		return
	default:
	}
	w.actors.Go(func() {
		for {
			f()
			select {
			case f = <-w.served:
			case <-w.stopping:
				return
			}
		}
	})
}

// errorText returns the text of an error for the trace.
func errorText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// admit finds a replica that accepts requests. The driver runs it.
func (w *world) admit(start int) reply {
	for i := range w.replicas {
		p := w.replicas[(start+i)%len(w.replicas)].now
		if p == nil {
			continue
		}
		if up := p.up(); up != nil {
			return reply{value: &request{parts: up, proc: p, began: w.check.seq}}
		}
	}
	return reply{err: errLost}
}

// unknown reports whether an error leaves the outcome of the request open.
func unknown(err error) bool {
	if known, ok := errors.AsType[*apierror.Error](err); ok {
		return known.Code == apierror.StoreUnavailable
	}
	return errors.Is(err, errLost) || errors.Is(err, tablestore.ErrUnknown) || errors.Is(err, tablestore.ErrUnavailable)
}

// retry repeats a request until it is answered, or has been sent tries times.
func (v *visitor) retry(tries int, ask func() (any, error)) (any, error) {
	for {
		value, err := ask()
		if tries--; err == nil || !unknown(err) || tries == 0 {
			return value, err
		}
		if !v.pause(2 * time.Second) {
			return nil, errLost
		}
	}
}

// pause sleeps for a random time, on average about. It reports false when the simulation is
// over.
func (v *visitor) pause(about time.Duration) bool {
	return v.w.sleep(time.Duration(v.rng.Int64N(int64(2 * about))))
}

// chance returns true with a probability in percent.
func (v *visitor) chance(percent int) bool { return v.rng.IntN(100) < percent }
