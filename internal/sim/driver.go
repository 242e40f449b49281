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
	// maxPark is how long a call waits before it goes first.
	maxPark = 20 * time.Second
	// maxLate is the longest time until a timed-out write lands.
	maxLate = 45 * time.Second
	// maxDelay is the longest delay of a call or reply.
	maxDelay = 15 * time.Second
	// diskFaultRate is the probability of a disk fault in a step with unsynced writes. It
	// makes for a few faults in a phase with faults.
	diskFaultRate = 0.02
)

// until runs the driver until the end time, or until done returns true.
func (w *world) until(end time.Time, done func() bool) {
	for time.Now().Before(end) && !w.broken() && !done() {
		w.advance(end)
	}
}

// advance is one step of the driver: when all goroutines are blocked, it executes one
// of the parked calls, or lets time pass.
func (w *world) advance(end time.Time) {
	synctest.Wait()
	w.step++
	w.disk.sync(!w.faulty)
	w.runDue()
	w.calls = w.gate.calls(w.calls[:0])
	w.schedule(w.calls)
	w.calls = append(w.calls, w.late...)
	ready, next := w.eligible(w.calls)
	if len(ready) == 0 {
		w.rest(next, end)
		return
	}
	if w.faulty && (w.injectWorldFault() || w.injectDiskFault()) {
		return
	}
	w.execute(w.choose(ready))
	// Let time pass, so that no two calls happen at the same instant.
	time.Sleep(time.Duration(1 + w.rng.Int64N(int64(3*time.Millisecond))))
}

// schedule sets the times of new calls.
func (w *world) schedule(calls []*call) {
	now := time.Now()
	for _, c := range calls {
		if c.arrived >= 0 {
			continue
		}
		c.arrived, c.ready, c.expires = w.step, now, now.Add(maxPark)
		if w.slows(c) {
			w.slowDown(c)
			continue
		}
		if w.faulty && w.rng.Float64() < w.scenario.faults.delay {
			w.faults[Delay]++
			c.ready = now.Add(w.logUniform(time.Millisecond, maxDelay))
		}
	}
}

// logUniform draws a duration between two bounds: each further doubling is an eighth less
// likely.
func (w *world) logUniform(least, most time.Duration) time.Duration {
	d := least
	for d < most && w.rng.IntN(8) != 0 {
		d *= 2
	}
	return min(most, d+time.Duration(w.rng.Int64N(int64(d))))
}

// eligible returns the calls that may be executed, in the memory of calls, and the time at
// which the next one may be.
func (w *world) eligible(calls []*call) ([]*call, time.Time) {
	now := time.Now()
	found := calls[:0]
	next := w.disk.next()
	for _, c := range calls {
		if !c.ready.After(now) {
			if c.held != nil && w.disk.mayYetSync(c.held.after) && !c.over() {
				continue
			}
			found = append(found, c)
		} else if next.IsZero() || c.ready.Before(next) {
			next = c.ready
		}
	}
	return found, next
}

// choose returns the first call that has expired, otherwise a random one.
func (w *world) choose(calls []*call) *call {
	now := time.Now()
	for _, c := range calls {
		if now.After(c.expires) || c.over() {
			return c
		}
	}
	return calls[w.rng.IntN(len(calls))]
}

// rest lets time pass until the next call, or until something is due.
func (w *world) rest(next, end time.Time) {
	for _, a := range w.agenda {
		if next.IsZero() || a.at.Before(next) {
			next = a.at
		}
	}
	if next.IsZero() || end.Before(next) {
		next = end
	}
	w.alarm.Reset(time.Until(next))
	select {
	case <-w.gate.bell:
	case <-w.alarm.C:
	}
}

// runDue runs the tasks that are due.
func (w *world) runDue() {
	now := time.Now()
	due := func(a dueTask) bool { return !a.at.After(now) }
	for i := slices.IndexFunc(w.agenda, due); i >= 0; i = slices.IndexFunc(w.agenda, due) {
		a := w.agenda[i]
		w.agenda = slices.Delete(w.agenda, i, i+1)
		a.do()
	}
}

// after schedules a task.
func (w *world) after(d time.Duration, do func()) {
	w.agenda = append(w.agenda, dueTask{time.Now().Add(d), do})
}

// execute executes one call, with the fault that is drawn for it.
func (w *world) execute(c *call) {
	if i := slices.Index(w.late, c); i >= 0 {
		w.late = slices.Delete(w.late, i, i+1)
		w.check.landing = true
		w.note(c, LateWrite, c.exec())
		w.check.landing = false
		return
	}
	if c.held != nil {
		w.release(c)
		return
	}
	fault := w.faultOf(c)
	if fault != None {
		w.faults[fault]++
	}
	w.inject(c, fault)
}

// faultOf returns the fault of a call.
func (w *world) faultOf(c *call) Fault {
	store := c.verb == verbGet || c.verb == verbScan || c.verb == verbCommit
	now := time.Now()
	switch {
	case store && w.disk != nil && w.disk.failed:
		return DiskFailure
	case c.over() && c.slow:
		return Slow
	case c.over():
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

// inject answers or executes a call with a fault.
func (w *world) inject(c *call, fault Fault) {
	switch fault {
	case FailBefore, Throttle, DiskFailure:
		w.answer(c, fault, reply{err: w.refusal(c)})
	case Slow:
		if c.verb == verbCommit && w.rng.IntN(2) == 0 {
			c.exec() // The store has applied the write, too late for its caller.
			w.answer(c, fault, reply{err: lost(c)})
			return
		}
		fallthrough
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
		w.hold(c, fault, c.exec(), w.logUniform(time.Millisecond, maxDelay))
	case ShortPage:
		w.shortPage = true
		r := c.exec()
		w.shortPage = false
		w.answerDurable(c, fault, r)
	case Rejected:
		w.answer(c, fault, w.bus.reject(c))
	default:
		w.answerDurable(c, fault, c.exec())
	}
}

// answerDurable answers an executed call once the writes that the reply reveals are
// durable.
func (w *world) answerDurable(c *call, fault Fault, r reply) {
	if w.disk.durable(r.after) {
		w.answer(c, fault, r)
		return
	}
	w.faults[Unsynced]++
	w.hold(c, Unsynced, r, 0)
}

// hold delays the reply of an executed call by at least d.
func (w *world) hold(c *call, why Fault, r reply, d time.Duration) {
	w.note(c, why, r)
	w.gate.hold(&held{r, why}, time.Now().Add(d), c.equal)
}

// release answers a call with its delayed reply. If the caller gave up before the writes that
// the reply reveals were durable, or the disk has failed, a write gets an unknown outcome and
// a read an error.
func (w *world) release(c *call) {
	switch {
	case w.disk.durable(c.held.after):
		w.answer(c, c.held.why, c.held.reply)
	case c.verb == verbCommit && c.held.err == nil:
		w.answer(c, Expired, reply{err: lost(c)})
	default:
		w.answer(c, Expired, reply{err: w.refusal(c)})
	}
}

// postpone answers a write with an unknown outcome. The write lands later, or never.
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

// refusal returns the error of a call that had no effect.
func (w *world) refusal(c *call) error {
	if c.verb == verbPublish {
		return lost(c)
	}
	err := unavailable("refused")
	if c.over() {
		err = errors.Join(err, c.ctx.Err())
	}
	return err
}

// lost returns the error of a call whose reply was lost.
func lost(c *call) error {
	if c.verb == verbCommit {
		return fmt.Errorf("%w: reply lost", tablestore.ErrUnknown)
	}
	return errors.New("reply lost")
}

// answer adds the call to the trace, and returns the reply to the caller.
func (w *world) answer(c *call, fault Fault, r reply) {
	w.note(c, fault, r)
	w.gate.leave(r, c.equal)
}

// note adds the call to the trace.
func (w *world) note(c *call, fault Fault, r reply) {
	outcome := "ok"
	if r.err != nil {
		outcome = r.err.Error()
	}
	w.trace.add(line{time.Since(w.start), c.actor, string(c.verb), c.detail, fault, outcome})
}

// crash kills a process, which restarts later. The embedded store crashes with it: it loses
// the last unsynced writes, and no late write lands.
func (w *world) crash(p *process) {
	if w.disk != nil {
		w.disk.crash()
		w.late = nil
	}
	w.gate.kill(p)
	p.replica.now = nil
	w.after(w.logUniform(100*time.Millisecond, 30*time.Second), p.replica.begin)
}

// injectWorldFault injects a fault that strikes many calls, with the probability of the
// profile, and reports whether it did.
func (w *world) injectWorldFault() bool {
	draw := w.rng.Float64()
	for _, f := range worldFaults {
		if draw -= w.scenario.faults.rates[f]; draw >= 0 {
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

// injectDiskFault injects a fault into the host of the embedded store while writes are not
// synced, and reports whether it did: the host loses power, or its disk fails and the process
// continues for a while.
func (w *world) injectDiskFault() bool {
	r := w.replicas[0]
	if w.disk.next().IsZero() || r.now == nil || w.rng.Float64() >= diskFaultRate {
		return false
	}
	fault := PowerLoss
	if w.rng.IntN(3) == 0 {
		fault = DiskFailure
		w.disk.fail()
		w.late = nil
		w.after(w.logUniform(100*time.Millisecond, 30*time.Second), func() {
			if w.disk.failed {
				w.crash(r.now)
			}
		})
	} else {
		w.crash(r.now)
	}
	w.faults[fault]++
	w.trace.add(line{at: time.Since(w.start), actor: "world", what: r.name, fault: fault})
	return true
}

// pageLimit returns the most rows of the page that is being read, 0 for no limit.
func (w *world) pageLimit() int {
	if !w.shortPage {
		return 0
	}
	return 1 + w.rng.IntN(3)
}
