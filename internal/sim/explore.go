package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Explore runs one schedule of the explorer: a few actors use one line through ledgers alone, without the
// other parts of a server, so that a schedule is short and most of its calls are of the line's protocol.
// Nearly every call may be late, lost, repeated or the last of its process. The invariants are those of
// [Run]. log is called with each step; it may be nil.
func Explore(t *testing.T, seed uint64, log func(string)) Result {
	t.Helper()
	var result Result
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed | Ordered)
		w.scenario = newSchedule(w.source("schedule"), w.scenario.atomic, w.scenario.shared)
		w.trace.log = log
		w.begin()
		w.faultPhase()
		if !w.broken() {
			w.exploreCalm()
		}
		w.stop()
		result = w.result()
	})
	return result
}

// newSchedule draws a schedule.
func newSchedule(rng *rand.Rand, atomic, shared bool) scenario {
	s := scenario{
		bare: true, pull: true, ordered: true, dated: rng.IntN(2) == 0, atomic: atomic, shared: shared, replicas: 2,
		clients: 2 + rng.IntN(2), submits: 2 + rng.IntN(3), commands: 3 + rng.IntN(3), tries: 3, length: 40 * time.Second,
		faults: profile{rates: map[Fault]float64{}},
	}
	if atomic && !shared {
		s.replicas = 1
	}
	for _, f := range []Fault{FailBefore, FailAfter, LateWrite, CrashBefore, CrashAfter, SlowReply, ShortPage} {
		if rng.IntN(2) == 0 {
			s.faults.rates[f] = 0.03
		}
	}
	s.faults.rates[CrashBefore] /= 3
	s.faults.rates[CrashAfter] /= 3
	s.faults.delay = 0.1 * rng.Float64()
	return s
}

// exploreCalm ends the schedule without faults: no line may be left, and no entry.
func (w *world) exploreCalm() {
	w.faulty = false
	w.setCalm()
	for _, c := range w.late {
		c.ready = time.Now()
	}
	unended, left := w.afterCommits(w.unended), w.afterCommits(w.leftOver)
	done := func() bool { return len(w.pending()) == 0 && len(unended()) == 0 && len(left()) == 0 }
	w.until(time.Now().Add(endTime), eachSecond(done))
	w.requireNone("L2", w.pending())
	w.requireNone("L2", unended())
	w.requireNone("left over", left())
}

// addSweepers adds the loops of a process that has a ledger and nothing else.
func (m *parts) addSweepers(w *world, p *process) {
	for _, kind := range []ledger.Kind{ledger.Timer, ledger.Date, ledger.Dispatch} {
		sweeper := background.NewSweeper(background.SweeperConfig{
			Ledger: m.ledger, Kind: kind, Page: 8, Parallel: 1, Logger: w.log,
			Random: (&randomSource{rng: w.source(p.name + "/" + string(kind))}).float,
		})
		m.every(sweepInterval, sweeper.Loop())
	}
}

// startExplorers starts the actors of a schedule.
func (w *world) startExplorers() {
	for i := range w.scenario.clients {
		v := w.visitor(fmt.Sprintf("client%d", i+1))
		w.actors.Go(v.explore)
	}
	worker, foreman := w.visitor("worker"), w.visitor("foreman")
	w.actors.Go(func() {
		for worker.pause(time.Second) {
			worker.endOne()
		}
	})
	w.actors.Go(func() {
		for foreman.pause(10 * time.Second) {
			if w.isCalm() || foreman.chance(30) {
				foreman.repairOne()
			}
		}
	})
}

// explore submits commands of the line, some again, and steers its jobs.
func (v *visitor) explore() {
	for range v.w.scenario.submits {
		if !v.pause(3*time.Second) || v.w.isCalm() {
			return
		}
		c := &command{tenant: "t1", key: fmt.Sprint("key-", v.rng.IntN(v.w.scenario.commands)), steps: 1, by: v.name}
		_, _ = v.retry(v.w.scenario.tries, func() (any, error) { return v.accept(c) })
		if !v.pause(3*time.Second) || v.w.isCalm() {
			return
		}
		id, _ := v.look("job", func() any { return v.w.check.anyJob(v.rng.IntN(1 << 20)) }).(string)
		events := []statemachine.Event{
			statemachine.Pause{}, statemachine.Resume{}, statemachine.Cancel{}, statemachine.Reschedule{NotBefore: &time.Time{}}, nil,
		}
		if id != "" {
			v.change(id, events[v.rng.IntN(len(events))])
		}
	}
}

// accept submits one command of the line.
func (v *visitor) accept(c *command) (any, error) {
	v.look("ask", func() any {
		v.w.check.asks(c)
		return nil
	})
	return v.ask("accept "+c.hash(), nil, func(r *request) (any, error) {
		accepted, err := r.ledger.Accept(r.ctx, v.w.ordered(c))
		return accepted.Job.ID, ledger.Problem(err)
	}, func(r *request, value any, err error) {
		jobID, _ := value.(string)
		v.w.check.answeredAccept(r.began, c, jobID, err)
	})
}

// ordered is the command of the line, by its hash.
func (w *world) ordered(c *command) ledger.Command {
	rng := w.source("order of " + c.hash())
	modes := []statemachine.OrderMode{statemachine.OrderFIFO, statemachine.OrderFIFO, statemachine.OrderNewest, statemachine.OrderReject}
	order := statemachine.Order{Key: "line", Mode: modes[rng.IntN(len(modes))]}
	order.Blocks = order.Mode == statemachine.OrderFIFO && rng.IntN(4) > 0
	order.CancelsRunning = order.Mode == statemachine.OrderNewest && rng.IntN(2) == 0
	command := ledger.Command{
		Job: statemachine.Job{
			TenantID: c.tenant, IdempotencyKey: c.key, IdempotencyHash: c.hash(), CorrelationID: "c-" + c.hash(),
			RequestType: "job.1", Order: order,
		},
		Payload: []byte(`{}`),
		Steps: []statemachine.Step{{
			ID: "s0", Type: "t", Service: "svc0", Policy: statemachine.Policy{AckTimeout: ackTimeout, Lease: leaseTime, MaxAttempts: 1},
		}},
	}
	if w.scenario.dated && rng.IntN(3) == 0 {
		command.Job.NotBefore = w.start.Add(time.Duration(1+rng.IntN(4)) * 5 * time.Second)
	}
	return command
}

// change requests an event of a job, or a rerun if event is nil.
func (v *visitor) change(id string, event statemachine.Event) {
	_, _ = v.retry(v.w.scenario.tries, func() (any, error) {
		return v.ask(fmt.Sprintf("%T %s", event, id), nil, func(r *request) (any, error) {
			if event == nil {
				_, err := r.ledger.Rerun(r.ctx, ledger.Rerun{JobID: id, From: ledger.FromFailed})
				return nil, ledger.Problem(err)
			}
			_, err := r.ledger.Change(r.ctx, id, event)
			return nil, ledger.Problem(err)
		}, func(_ *request, _ any, err error) {
			if err != nil {
				v.w.check.checkRefusal(fmt.Sprintf("%T of job %s", event, id), err)
			}
		})
	})
}

// endOne reports a RESULT for a job that has begun.
func (v *visitor) endOne() {
	draw := v.rng.IntN(1 << 20)
	found, _ := v.look("running", func() any { return v.w.check.anyBegun(draw) }).(operation)
	if found.jobID == "" {
		return
	}
	status := statemachine.ResultSucceeded
	if v.chance(35) {
		status = statemachine.ResultFailedFinal
	}
	found.kind, found.status = "result", string(status)
	_, _ = v.ask("end "+found.jobID, &found, func(r *request) (any, error) {
		_, err := r.ledger.Change(r.ctx, found.jobID, statemachine.Result{
			StepID: found.stepID, Status: status, Pair: statemachine.Pair{AttemptNo: found.attemptNo, LeaseID: found.leaseID},
		})
		return nil, ledger.Problem(err)
	}, func(_ *request, _ any, err error) {
		if err != nil {
			v.w.check.checkRefusal("end of job "+found.jobID, err)
		}
	})
}

// anyBegun returns the attempt of a random job that has begun, or none.
func (c *checker) anyBegun(draw int) operation {
	var found []operation
	for _, j := range c.all() {
		for i := range j.steps {
			if s := &j.steps[i]; s.State == "AWAITING_ACK" || s.State == "IN_PROGRESS" {
				found = append(found, operation{jobID: j.id, stepID: s.ID, attemptNo: s.Attempt, leaseID: s.Lease})
			}
		}
	}
	if len(found) == 0 {
		return operation{}
	}
	return found[draw%len(found)]
}

// repairOne reruns or releases what blocks a line, and resumes what is paused.
func (v *visitor) repairOne() {
	paused, _ := v.look("paused", func() any { return v.w.check.paused() }).([]string) // None once the schedule is over.
	for _, id := range paused {
		v.change(id, statemachine.Resume{})
	}
	blockers, _ := v.look("blockers", func() any { return v.w.check.blockers() }).([][2]string)
	for _, one := range blockers {
		if v.chance(40) {
			v.change(one[1], nil)
			continue
		}
		_, _ = v.ask("release "+one[1], nil, func(r *request) (any, error) {
			return nil, ledger.Problem(r.ledger.Release(r.ctx, ledger.Release{
				LineID: one[0], JobID: one[1], Actor: ledger.ActorPlatform, RequestID: r.id,
			}))
		}, func(_ *request, _ any, err error) {
			if err != nil {
				v.w.check.checkRefusal("release of "+one[1], err)
			}
		})
	}
}

// openBare opens a ledger and its sweepers.
func (p *process) openBare(w *world, store tablestore.Store) (*parts, error) {
	random := &randomSource{rng: w.source(p.name + "/ledger")}
	l, err := ledger.Open(as(p.ctx, p.name+"/open", nil), ledger.Config{
		Store: store, Shared: w.scenario.shared, Shards: shards, Hold: hold, Entropy: random, Random: random.float,
	})
	if err != nil {
		return nil, err
	}
	made := &parts{ledger: l}
	made.addSweepers(w, p)
	return made, nil
}
