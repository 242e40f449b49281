package sim

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// command is a command that clients may submit, each of them more than once.
type command struct {
	tenant  string
	key     string // empty: the hash stands for it
	variant int    // another body under the same key
	steps   int
	limit   int
	// patience is the unit of the delays before a retry.
	patience time.Duration
}

// hash stands for the body.
func (c *command) hash() string { return fmt.Sprintf("%s-%s-%d", c.tenant, c.key, c.variant) }

// name tells which commands are one.
func (c *command) name() string { return c.tenant + "/" + c.key }

// startActors starts all who are outside.
func (w *world) startActors() {
	commands := w.commands()
	for i := range w.scenario.clients {
		v := w.visitor(fmt.Sprintf("client%d", i+1))
		w.actors.Go(func() { v.submitAll(commands) })
	}
	operator := w.visitor("operator")
	w.actors.Go(operator.operate)
	for i := range w.scenario.workers {
		v := w.visitor(fmt.Sprintf("worker%d", i+1))
		if w.scenario.pull {
			w.actors.Go(v.pullWork)
		} else {
			w.actors.Go(v.receiveWork)
		}
	}
}

// commands draws what is to be submitted.
func (w *world) commands() []*command {
	rng := w.source("commands")
	list := make([]*command, w.scenario.commands)
	for i := range list {
		list[i] = &command{
			tenant: fmt.Sprintf("t%d", 1+rng.IntN(2)), key: fmt.Sprintf("key-%d", i),
			steps: 1 + rng.IntN(3), limit: w.scenario.limit, patience: w.scenario.patience,
		}
	}
	return list
}

// submitAll is a client.
func (v *visitor) submitAll(commands []*command) {
	for range v.w.scenario.submits {
		if !v.pause(8 * time.Second) {
			return
		}
		c := *commands[v.rng.IntN(len(commands))]
		if v.chance(10) {
			c.variant = 1
		}
		if _, err := v.insist(6, func() (any, error) { return v.submit(&c) }); err == nil && v.chance(20) {
			_, _ = v.submit(&c) // A client that asks again has its answer already.
		}
	}
}

// submit sends one command.
func (v *visitor) submit(c *command) (any, error) {
	return v.ask("submit "+c.hash(), nil, func(r *request) (any, error) {
		return r.ledger.Accept(r.ctx, ledger.Command{
			Job: statemachine.Job{
				TenantID: c.tenant, ProtocolID: "p", RequestType: "job", IdempotencyKey: c.key, IdempotencyHash: c.hash(),
			},
			Steps: c.stepRows(), Payload: []byte(`{"of":"` + c.hash() + `"}`), Limit: c.limit,
			Actor: v.name, RequestID: r.id,
		})
	}, func(_ *request, value any, err error) {
		accepted, _ := value.(ledger.Accepted)
		v.w.check.answeredAccept(c, &accepted, err)
	})
}

// stepRows are the command's steps as its protocol has them.
func (c *command) stepRows() []statemachine.Step {
	delays := []time.Duration{2 * c.patience, 4 * c.patience, 7 * c.patience}
	steps := make([]statemachine.Step, c.steps)
	for i := range steps {
		steps[i] = statemachine.Step{
			ID: fmt.Sprintf("s%d", i), Type: "t", Service: fmt.Sprintf("svc%d", i%2),
			Input: statemachine.InputPrevious, Routing: statemachine.Routing{Topic: fmt.Sprintf("topic%d", i%2), Lane: i % 2},
			Policy: statemachine.Policy{
				AckTimeout: ackTimeout, Lease: leaseTime,
				Dispatch: delays[:2], Ack: delays, Execution: delays,
			},
		}
	}
	return steps
}

// operate is an operator: it steers jobs, and asks for retries and reruns.
func (v *visitor) operate() {
	for range v.w.scenario.controls {
		if !v.pause(8*time.Second) || v.w.isKind() {
			break
		}
		if v.w.scenario.pull && v.chance(20) {
			v.shove()
			continue
		}
		lot := v.rng.IntN(1 << 20)
		r := v.w.gate.park(&call{
			actor: v.name, verb: verbLook, detail: "job", exec: func() reply { return reply{value: v.w.check.anyJob(lot)} },
		})
		if id, _ := r.value.(string); id != "" {
			v.steer(id)
		}
	}
	v.release()
}

// steer does one thing to a job, twice at times.
func (v *visitor) steer(id string) {
	v.bring(id, []statemachine.Event{
		statemachine.Cancel{}, statemachine.Pause{}, statemachine.Pause{}, statemachine.Pause{}, statemachine.Resume{},
		statemachine.Resume{}, statemachine.Retry{}, statemachine.Retry{}, nil, nil,
	}[v.rng.IntN(10)])
}

// bring brings an event to a job; nil asks for a rerun.
func (v *visitor) bring(id string, event statemachine.Event) {
	what := fmt.Sprintf("steer %T %s", event, id)
	from := []ledger.RerunFrom{ledger.FromFailed, ledger.FromStart}[v.rng.IntN(2)]
	ask := func() (any, error) {
		return v.ask(what, nil, func(r *request) (any, error) {
			if event == nil {
				return r.ledger.Rerun(r.ctx, ledger.Rerun{JobID: id, From: from, Limit: v.w.scenario.limit, Actor: v.name})
			}
			if _, retry := event.(statemachine.Retry); retry {
				return r.operator.Retry(r.ctx, outbox.Filter{JobID: id})
			}
			return r.ledger.Change(r.ctx, id, event, ledger.By(v.name, r.id))
		}, func(_ *request, value any, err error) { v.w.check.answeredControl(id, event, value, err) })
	}
	if _, err := v.insist(3, ask); err == nil && v.chance(20) {
		_, _ = ask()
	}
	if _, paused := event.(statemachine.Pause); paused && v.chance(60) && v.pause(3*time.Second) {
		v.bring(id, statemachine.Resume{})
	}
}

// release lets paused jobs go on once all are kind, but for some that stay
// paused by choice.
func (v *visitor) release() {
	for !v.w.isKind() {
		if !v.pause(time.Second) {
			return
		}
	}
	r := v.w.gate.park(&call{
		actor: v.name, verb: verbLook, detail: "paused", exec: func() reply { return reply{value: v.w.check.paused()} },
	})
	ids, _ := r.value.([]string)
	for _, id := range ids {
		if v.chance(30) {
			continue
		}
		_, _ = v.insist(9, func() (any, error) {
			return v.ask("resume "+id, nil, func(r *request) (any, error) {
				return r.ledger.Change(r.ctx, id, statemachine.Resume{}, ledger.By(v.name, r.id))
			}, func(*request, any, error) {})
		})
	}
}
