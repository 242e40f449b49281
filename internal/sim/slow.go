package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// storeDeadline is the deadline of a call of the slow store at first. It has the same
// proportion to the other times as in the program.
const storeDeadline = publishDeadline

// slowTime is how long the store is slow.
const slowTime = 10 * time.Minute

// SlowResult is the result of a simulation with a slow store.
type SlowResult struct {
	Result

	// Before is the number of jobs that had not ended when the store became slow.
	Before int
	// Accepted and Ended are the numbers of jobs that were accepted and that ended in each
	// minute of slowness.
	Accepted, Ended []int
	// Backlog is the number of jobs that had not ended when the store became fast again, and
	// Recovered the time until they had.
	Backlog   int
	Recovered time.Duration
}

// RunSlow runs the simulation of several replicas under a steady load, without other faults
// than a store that is slow for ten minutes: its calls take half of their deadline up to twice
// as long, so that half of them time out until the server waits longer. A write that times out
// has been applied, or is later, or never. pull says that workers poll, else directives go
// over a bus.
func RunSlow(t *testing.T, seed uint64, pull bool, log func(string)) SlowResult {
	t.Helper()
	var result SlowResult
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed)
		w.trace.log = log
		s := &w.scenario
		s.limits = false // A process that cannot read the limits in time hands out nothing.
		s.pull, s.mixed, s.pauses, s.sharesOutages, s.cold, s.reconcile, s.retention = pull, false, false, false, false, true, 0
		s.described, s.dated, s.parallel, s.faults, s.controls, s.limit, s.handoff = false, false, true, profile{}, 0, 0, 64
		s.clients, s.commands, s.submits, s.tries, s.workers = 12, 1000, 1000, 1000, 8
		result = w.runSlow()
		result.Result = w.result()
	})
	return result
}

// runSlow runs the phases, and counts the jobs of each minute of slowness.
func (w *world) runSlow() (r SlowResult) {
	w.setCalm() // No visitor crashes.
	w.begin()
	never := func() bool { return false }
	w.until(time.Now().Add(time.Minute), never)
	live := w.afterCommits(w.unended)
	jobs := len(w.check.all())
	ended := jobs - len(live())
	r.Before = len(live())
	w.slow.Store(true)
	for range slowTime / time.Minute {
		w.until(time.Now().Add(time.Minute), never)
		now := len(w.check.all())
		r.Accepted, jobs = append(r.Accepted, now-jobs), now
		now -= len(live())
		r.Ended, ended = append(r.Ended, now-ended), now
	}
	w.slow.Store(false)
	w.faulty, r.Backlog = false, len(live())
	w.close()
	fast := time.Now()
	w.until(fast.Add(endTime), func() bool { return len(live()) == 0 })
	r.Recovered = time.Since(fast)
	w.calmPhase()
	w.stop()
	return r
}

// slows reports whether the store takes long for the call.
func (w *world) slows(c *call) bool {
	return w.slow.Load() && (c.verb == verbGet || c.verb == verbScan || c.verb == verbCommit)
}

// slowDown lets the call wait for the store, but not longer than its caller does.
func (w *world) slowDown(c *call) {
	took, now := storeDeadline, time.Now()
	if w.rng.IntN(2) == 0 { // Half of all calls exceed the deadline.
		took += time.Duration(w.rng.Int64N(int64(storeDeadline)))
	} else {
		took -= time.Duration(w.rng.Int64N(int64(storeDeadline / 2)))
	}
	c.slow, c.ready = true, now.Add(took)
	if end, bounded := c.ctx.Deadline(); bounded && end.Before(c.ready) {
		c.ready = end
	}
	c.expires = c.ready
	w.faults[Slow]++
}

// bounded gives a call of the slow store its deadline, as the drivers do.
func (s *port) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if !s.w.slow.Load() {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, tablestore.Patience(ctx, storeDeadline))
}
