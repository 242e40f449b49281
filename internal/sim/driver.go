package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxPark bounds how long a call waits for its turn.
	maxPark = 20 * time.Second
	// maxLate bounds how late a timed-out write lands.
	maxLate = 45 * time.Second
	// heldBack is how long a call is held up at most.
	heldBack = 15 * time.Second
)

// until drives the world until the time comes or done says so.
func (w *world) until(end time.Time, done func() bool) {
	for time.Now().Before(end) && !w.broken() && !done() {
		w.advance(end)
	}
}

// advance is one step of the driver: what waits is looked at when all others
// have come to rest, and one call goes on, or time does.
func (w *world) advance(end time.Time) {
	synctest.Wait()
	w.step++
	w.keepAppointments()
	calls := w.gate.calls()
	w.welcome(calls)
	eligible, next := w.eligible(calls)
	if len(eligible) == 0 {
		w.rest(next, end)
		return
	}
	if w.faulty && w.upset() {
		return
	}
	w.carryOut(w.choose(eligible))
	// Time goes on with each call, so that no two are at the same instant.
	time.Sleep(time.Duration(1 + w.rng.Int64N(int64(3*time.Millisecond))))
}

// welcome gives calls that are new their time.
func (w *world) welcome(calls []*call) {
	now := time.Now()
	for _, c := range calls {
		if c.arrived >= 0 {
			continue
		}
		c.arrived, c.ready, c.expires = w.step, now, now.Add(maxPark)
		if w.faulty && w.rng.Float64() < w.scenario.faults.delay {
			w.faults[Delay]++
			c.ready = now.Add(w.logUniform(time.Millisecond, heldBack))
		}
	}
}

// logUniform draws a duration of any order of magnitude between two.
func (w *world) logUniform(least, most time.Duration) time.Duration {
	d := least
	for d < most && w.rng.IntN(8) != 0 {
		d *= 2
	}
	return min(most, d+time.Duration(w.rng.Int64N(int64(d))))
}

// eligible are the calls that may go on, late writes among them, and the time
// at which the next one may.
func (w *world) eligible(calls []*call) ([]*call, time.Time) {
	now := time.Now()
	var found []*call
	var next time.Time
	for _, c := range append(slices.Clone(calls), w.late...) {
		if !c.ready.After(now) {
			found = append(found, c)
		} else if next.IsZero() || c.ready.Before(next) {
			next = c.ready
		}
	}
	return found, next
}

// choose draws the call that goes on; one that waited long enough goes first.
func (w *world) choose(calls []*call) *call {
	now := time.Now()
	for _, c := range calls {
		if now.After(c.expires) || c.ctx != nil && c.ctx.Err() != nil {
			return c
		}
	}
	return calls[w.rng.IntN(len(calls))]
}

// rest lets time pass until somebody calls, or something is due.
func (w *world) rest(next, end time.Time) {
	for _, a := range w.agenda {
		if next.IsZero() || a.at.Before(next) {
			next = a.at
		}
	}
	if next.IsZero() || end.Before(next) {
		next = end
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-w.gate.bell:
	case <-timer.C:
	}
}

// keepAppointments does what is due.
func (w *world) keepAppointments() {
	now := time.Now()
	due := func(a appointment) bool { return !a.at.After(now) }
	for i := slices.IndexFunc(w.agenda, due); i >= 0; i = slices.IndexFunc(w.agenda, due) {
		a := w.agenda[i]
		w.agenda = slices.Delete(w.agenda, i, i+1)
		a.do()
	}
}

// later makes an appointment.
func (w *world) later(d time.Duration, do func()) {
	w.agenda = append(w.agenda, appointment{time.Now().Add(d), do})
}

// carryOut lets one call go on, with the fault that the lot says.
func (w *world) carryOut(c *call) {
	if i := slices.Index(w.late, c); i >= 0 {
		w.late = slices.Delete(w.late, i, i+1)
		w.note(c, LateWrite, c.exec())
		return
	}
	if c.held != nil {
		w.answer(c, SlowReply, *c.held)
		return
	}
	fault := w.faultOf(c)
	if fault != None {
		w.faults[fault]++
	}
	w.inflict(c, fault)
}

// faultOf says what goes wrong with a call.
func (w *world) faultOf(c *call) Fault {
	store := c.verb == verbGet || c.verb == verbScan || c.verb == verbCommit
	now := time.Now()
	switch {
	case c.ctx != nil && c.ctx.Err() != nil:
		return Expired
	case store && now.Before(w.throttled):
		return Throttle
	case store && c.proc != nil && now.Before(w.cut[c.proc.replica.name]):
		return Partition
	case !w.faulty:
		return None
	}
	return w.scenario.faults.draw(w.rng, c.verb)
}

// inflict carries the call out as the fault wants it.
func (w *world) inflict(c *call, fault Fault) {
	switch fault {
	case FailBefore, Throttle:
		w.answer(c, fault, reply{err: w.refusal(c)})
	case Partition, Expired:
		if c.verb == verbCommit && w.rng.IntN(2) == 0 {
			w.postpone(c, fault)
			return
		}
		w.answer(c, fault, reply{err: w.refusal(c)})
	case FailAfter:
		r := c.exec()
		if r.err == nil {
			r.err = lost(c)
		}
		w.answer(c, fault, r)
	case LateWrite:
		w.postpone(c, fault)
	case CrashBefore:
		w.note(c, fault, reply{})
		w.crash(c.proc)
	case CrashAfter:
		w.note(c, fault, c.exec())
		w.crash(c.proc)
	case SlowReply:
		r := c.exec()
		w.note(c, fault, r)
		c.held = &r
		c.ready = time.Now().Add(w.logUniform(time.Millisecond, heldBack))
		c.expires = c.ready.Add(maxPark)
	case ShortPage:
		w.shortPage = true
		r := c.exec()
		w.shortPage = false
		w.answer(c, fault, r)
	case Rejected:
		w.answer(c, fault, w.bus.reject(c))
	default:
		w.answer(c, fault, c.exec())
	}
}

// postpone answers a write as unknown; it lands later, or never.
func (w *world) postpone(c *call, fault Fault) {
	if w.rng.IntN(8) != 0 {
		late := *c
		late.ctx = nil
		late.ready = time.Now().Add(w.logUniform(time.Millisecond, maxLate))
		late.expires = late.ready
		w.late = append(w.late, &late)
	}
	w.answer(c, fault, reply{err: lost(c)})
}

// refusal is the error of a call that came to nothing.
func (w *world) refusal(c *call) error {
	if c.verb == verbPublish {
		return lost(c)
	}
	err := unavailable("refused")
	if c.ctx != nil && c.ctx.Err() != nil {
		err = errors.Join(err, c.ctx.Err())
	}
	return err
}

// lost is the error of a call whose reply was lost.
func lost(c *call) error {
	if c.verb == verbCommit {
		return fmt.Errorf("%w: reply lost", tablestore.ErrUnknown)
	}
	return errors.New("reply lost")
}

// answer lets the callers go on. Calls that can not be told apart, and came at
// the same time, get the same answer at the same time: so it does not matter
// whose is whose.
func (w *world) answer(c *call, fault Fault, r reply) {
	w.note(c, fault, r)
	twins := []*call{c}
	for _, other := range w.gate.calls() {
		if other != c && other.actor == c.actor && other.verb == c.verb && other.detail == c.detail &&
			other.arrived == c.arrived && other.held == nil {
			twins = append(twins, other)
		}
	}
	w.gate.leave(func(*call) reply { return r }, twins...)
}

// note takes the call into the trace.
func (w *world) note(c *call, fault Fault, r reply) {
	outcome := "ok"
	if r.err != nil {
		outcome = r.err.Error()
	}
	w.trace.add(line{time.Since(w.start), c.actor, string(c.verb), c.detail, fault, outcome})
}

// crash kills a process, which comes back later.
func (w *world) crash(p *process) {
	w.gate.kill(p)
	p.replica.now = nil
	w.later(w.logUniform(100*time.Millisecond, 30*time.Second), p.replica.begin)
}

// upset draws whether something befalls the world, and reports whether it did.
func (w *world) upset() bool {
	lot := w.rng.Float64()
	for _, f := range worldFaults {
		if lot -= w.scenario.faults.rates[f]; lot >= 0 {
			continue
		}
		w.faults[f]++
		d := w.logUniform(100*time.Millisecond, time.Minute)
		target := ""
		switch f {
		case Throttle:
			w.throttled = time.Now().Add(d)
		case Partition:
			target = w.replicas[w.rng.IntN(len(w.replicas))].name
			w.cut[target] = time.Now().Add(d)
		case BusOutage:
			target = w.bus.fail(d)
		case ClockJump:
			d *= time.Duration(1 + w.rng.IntN(6))
			time.Sleep(d)
		default:
		}
		w.trace.add(line{at: time.Since(w.start), actor: "world", what: target, detail: d.String(), fault: f})
		return true
	}
	return false
}

// pageLimit is the most rows of the page that is being read, 0 for no limit.
func (w *world) pageLimit() int {
	if !w.shortPage {
		return 0
	}
	return 1 + w.rng.IntN(3)
}
