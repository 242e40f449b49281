package sim

import (
	"fmt"
	"time"

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
	n := 0
	work := func(manner func(*visitor)) {
		n++
		v := w.visitor(fmt.Sprintf("worker%d", n))
		w.actors.Go(func() { manner(v) })
	}
	for range w.scenario.workers {
		if w.scenario.pull || w.scenario.mixed {
			work((*visitor).pullWork)
		}
		if !w.scenario.pull || w.scenario.mixed {
			work((*visitor).receiveWork)
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
		var made struct {
			JobID string `json:"jobId"`
		}
		err := r.post("/v1/commands", c.body(), &made)
		return made.JobID, err
	}, func(_ *request, value any, err error) {
		jobID, _ := value.(string)
		v.w.check.answeredAccept(c, jobID, err)
	})
}

// body is the command as a client writes it. Its correlation id is its own, as one
// that is made would be another in each run.
func (c *command) body() fields {
	return fields{
		"tenant_id": c.tenant, "request_type": fmt.Sprintf("job.%d", c.steps), "schema_version": "1",
		"input_ref": fields{"uri": "mem://in"}, "output_ref": fields{"uri": "mem://out"},
		"payload": fields{"of": c.hash()}, "idempotency_key": c.key, "correlation_id": "c-" + c.hash(),
	}
}

// operate is an operator: it steers jobs, and asks for retries and reruns.
func (v *visitor) operate() {
	for range v.w.scenario.controls {
		if !v.pause(8*time.Second) || v.w.isKind() {
			break
		}
		if (v.w.scenario.pull || v.w.scenario.mixed) && v.chance(20) {
			v.shove()
			continue
		}
		if v.w.scenario.halts && v.chance(30) {
			v.halt()
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
	if v.w.scenario.halts {
		_ = v.w.sleep(time.Minute) // A pause that nobody got an answer to may still be on its way.
	}
	for _, id := range scopes {
		v.unhalt(id, 1000) // However long it takes until a replica is up again.
	}
}

// scopes are the pauses that an operator makes.
var scopes = []string{"all", "tenant:t1", "protocol:p2", "lane:1"}

// halt pauses dispatch by scope, and mostly lets it go on after a while.
func (v *visitor) halt() {
	id := scopes[v.rng.IntN(len(scopes))]
	body := map[string]fields{
		"all": {"all": true}, "tenant:t1": {"tenant_id": "t1"}, "protocol:p2": {"protocol_id": "p2"}, "lane:1": {"lane": 1},
	}[id]
	body["reason"] = v.name
	_, _ = v.insist(3, func() (any, error) {
		return v.ask("pause "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/pauses", body, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredHalt("pause", id, err) })
	})
	if v.chance(70) && v.pause(10*time.Second) {
		v.unhalt(id, 3)
	}
}

// unhalt lets the dispatch of a scope go on at once: a ramp would let through what
// comes first, and that is the scheduler's choice.
func (v *visitor) unhalt(id string, tries int) {
	if !v.w.scenario.halts {
		return
	}
	_, _ = v.insist(tries, func() (any, error) {
		return v.ask("resume "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/pauses/"+id+":resume", fields{"ramp_seconds": 0}, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredHalt("resume", id, err) })
	})
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
	from := []string{"failed", "start"}[v.rng.IntN(2)]
	ask := func() (any, error) {
		return v.ask(what, nil, func(r *request) (any, error) {
			switch event.(type) {
			case nil:
				return nil, r.post("/v1/jobs/"+id+":rerun", fields{"from": from}, nil)
			case statemachine.Retry:
				return nil, r.post("/v1/admin/outbox/retry", fields{"jobId": id}, nil)
			default:
				return nil, r.post("/v1/jobs/"+id+":"+verbOf(event), fields{"reason": v.name}, nil)
			}
		}, func(_ *request, _ any, err error) { v.w.check.answeredControl(id, event, err) })
	}
	if _, err := v.insist(3, ask); err == nil && v.chance(20) {
		_, _ = ask()
	}
	if _, paused := event.(statemachine.Pause); paused && v.chance(60) && v.pause(3*time.Second) {
		v.bring(id, statemachine.Resume{})
	}
}

// verbOf is a control as the path has it.
func verbOf(event statemachine.Event) string {
	switch event.(type) {
	case statemachine.Cancel:
		return "cancel"
	case statemachine.Pause:
		return "pause"
	default:
		return "resume"
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
				return nil, r.post("/v1/jobs/"+id+":resume", fields{}, nil)
			}, func(*request, any, error) {})
		})
	}
}
