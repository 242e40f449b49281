package sim

import (
	"fmt"
	"maps"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// command is a command that each client may submit more than once.
type command struct {
	tenant  string
	key     string
	variant int // 1 is another body under the same key
	steps   int
	by      string // the client that submits it
}

// hash identifies the body.
func (c *command) hash() string { return fmt.Sprintf("%s-%s-%d", c.tenant, c.key, c.variant) }

// name identifies the command: its tenant and key.
func (c *command) name() string { return c.tenant + "/" + c.key }

// startActors starts the clients, operators and workers.
func (w *world) startActors() {
	if w.scenario.bare {
		w.startExplorers()
		return
	}
	commands := w.commands()
	for i := range w.scenario.clients {
		v := w.visitor(fmt.Sprintf("client%d", i+1))
		w.actors.Go(func() { v.submitAll(commands) })
	}
	operator := w.visitor("operator")
	w.actors.Go(operator.operate)
	if w.scenario.ordered {
		foreman := w.visitor("foreman")
		w.actors.Go(foreman.releaseLines)
	}
	if w.scenario.scheduled {
		planner := w.visitor("planner")
		w.actors.Go(planner.plan)
	}
	if w.scenario.announced {
		courier := w.visitor("courier")
		w.actors.Go(courier.deliver)
	}
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

// commands draws the commands to submit.
func (w *world) commands() []*command {
	rng := w.source("commands")
	list := make([]*command, w.scenario.commands)
	for i := range list {
		list[i] = &command{
			tenant: fmt.Sprintf("t%d", 1+rng.IntN(2)), key: fmt.Sprintf("key-%d", i),
			steps: 1 + rng.IntN(3),
		}
	}
	return list
}

// submitAll runs a client.
func (v *visitor) submitAll(commands []*command) {
	for range v.w.scenario.submits {
		if !v.pause(8*time.Second) || v.w.isClosed() {
			return
		}
		c := *commands[v.rng.IntN(len(commands))]
		if c.by = v.name; v.chance(10) {
			c.variant = 1
		}
		if _, err := v.retry(v.w.scenario.tries, func() (any, error) { return v.submit(&c) }); err == nil && v.chance(20) {
			_, _ = v.submit(&c) // Repeat a command that was answered.
		}
		if v.w.scenario.described && v.chance(50) {
			v.list(commands[v.rng.IntN(len(commands))])
		}
	}
	for range 3 {
		if v.w.scenario.described && v.pause(8*time.Second) {
			v.list(commands[v.rng.IntN(len(commands))])
		}
	}
}

// submit sends one command.
func (v *visitor) submit(c *command) (any, error) {
	if v.w.scenario.ordered {
		v.look("ask", func() any {
			v.w.check.asks(c)
			return nil
		})
	}
	return v.ask("submit "+c.hash(), nil, func(r *request) (any, error) {
		var made struct {
			JobID string `json:"jobId"`
		}
		err := r.post("/v1/commands", v.w.body(c), &made)
		return made.JobID, err
	}, func(r *request, value any, err error) {
		jobID, _ := value.(string)
		v.w.check.answeredAccept(r.began, c, jobID, err)
	})
}

// body returns the command as a client sends it. It sets the correlation id, because a
// generated one would differ from run to run.
func (w *world) body(c *command) fields {
	body := fields{
		"tenant_id": c.tenant, "request_type": fmt.Sprintf("job.%d", c.steps), "schema_version": "1",
		"input_ref": fields{"uri": "mem://in"}, "output_ref": fields{"uri": "mem://out"},
		"payload": fields{"of": c.hash()}, "idempotency_key": c.key, "correlation_id": "c-" + c.hash(),
	}
	doc, tags := w.described(c.hash(), c.by)
	if doc != "" {
		body["doc_id"] = doc
	}
	if tags != nil {
		body["tags"] = tags
	}
	if urls := w.callbacks(c.hash()); urls != nil {
		body["callback_urls"] = urls
	}
	maps.Copy(body, w.dates(c.hash()))
	maps.Copy(body, w.order(c.hash()))
	maps.Copy(body, w.class(c.hash()))
	return body
}

// operate runs an operator, who controls jobs, items and dispatch, and requests retries and
// reruns.
func (v *visitor) operate() {
	endless := map[string]bool{} // scopes with a pause that does not end on its own
	for range v.w.scenario.controls {
		if !v.pause(8*time.Second) || v.w.isCalm() {
			break
		}
		if (v.w.scenario.pull || v.w.scenario.mixed) && v.chance(20) {
			v.operateItem()
			continue
		}
		if v.w.scenario.pauses && v.chance(30) {
			id, ends := v.pauseScope()
			endless[id] = endless[id] || !ends
			continue
		}
		draw := v.rng.IntN(1 << 20)
		if id, _ := v.look("job", func() any { return v.w.check.anyJob(draw) }).(string); id != "" {
			v.steer(id)
		}
	}
	v.release()
	if v.w.scenario.pauses {
		_ = v.w.sleep(time.Minute) // A pause without an answer may still land.
	}
	for _, id := range scopes {
		if endless[id] {
			v.resumeScope(id, 1000) // A replica may still be down.
		}
	}
}

// scopes are the scopes that operators pause.
var scopes = []string{"all", "tenant:t1", "protocol:p2", "lane:1", "service:svc1"}

// pauseScope pauses the dispatch of a scope, in half of all cases with an end, and often
// resumes it after a while.
func (v *visitor) pauseScope() (id string, ends bool) {
	id = scopes[v.rng.IntN(len(scopes))]
	body := map[string]fields{
		"all": {"all": true}, "tenant:t1": {"tenant_id": "t1"}, "protocol:p2": {"protocol_id": "p2"}, "lane:1": {"lane": 1},
		"service:svc1": {"service": "svc1"},
	}[id]
	body["reason"] = v.name
	if ends = v.chance(50); ends {
		body["for_seconds"], body["ramp_seconds"] = 20, 0 // No ramp, as in resumeScope.
	}
	_, _ = v.retry(3, func() (any, error) {
		return v.ask("pause "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/pauses", body, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredPause("pause", id, err) })
	})
	if (!ends || v.chance(20)) && v.chance(70) && v.pause(10*time.Second) {
		v.resumeScope(id, 3)
	}
	return id, ends
}

// resumeScope resumes the dispatch of a scope without a ramp: a ramp would admit the first
// jobs, whose order depends on the Go scheduler.
func (v *visitor) resumeScope(id string, tries int) {
	if !v.w.scenario.pauses {
		return
	}
	_, _ = v.retry(tries, func() (any, error) {
		return v.ask("resume "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/pauses/"+id+":resume", fields{"ramp_seconds": 0}, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredPause("resume", id, err) })
	})
}

// steer requests a random event of a job.
func (v *visitor) steer(id string) {
	if v.w.scenario.dated && v.chance(30) {
		v.reschedule(id)
		return
	}
	if v.w.scenario.classed && v.chance(40) {
		v.prioritize(id)
		return
	}
	v.requestEvent(id, []statemachine.Event{
		statemachine.Cancel{}, statemachine.Pause{}, statemachine.Pause{}, statemachine.Pause{}, statemachine.Resume{},
		statemachine.Resume{}, statemachine.Retry{}, statemachine.Retry{}, nil, nil,
	}[v.rng.IntN(10)])
}

// requestEvent requests an event of a job, or a rerun if event is nil. It sometimes repeats the
// request, and often resumes a job that it has paused.
func (v *visitor) requestEvent(id string, event statemachine.Event) {
	what := fmt.Sprintf("steer %T %s", event, id)
	rerun := v.rerun()
	ask := func() (any, error) {
		return v.ask(what, nil, func(r *request) (any, error) {
			switch event.(type) {
			case nil:
				return nil, r.post("/v1/jobs/"+id+":rerun", rerun, nil)
			case statemachine.Retry:
				return nil, r.post("/v1/admin/outbox/retry", fields{"jobId": id}, nil)
			default:
				return nil, r.post("/v1/jobs/"+id+":"+verbOf(event), fields{"reason": v.name}, nil)
			}
		}, func(_ *request, _ any, err error) { v.w.check.answeredControl(id, event, err) })
	}
	if _, err := v.retry(3, ask); err == nil && v.chance(20) {
		_, _ = ask()
	}
	if _, paused := event.(statemachine.Pause); paused && v.chance(60) && v.pause(3*time.Second) {
		v.requestEvent(id, statemachine.Resume{})
	}
}

// reschedule requests other dates for a job. Most jobs have begun, and refuse it.
func (v *visitor) reschedule(id string) {
	body := fields{"reason": v.name}
	switch {
	case v.chance(60): // Few dates, so that a job often gets one back.
		body["not_before"] = v.w.start.Add(time.Duration(1+v.rng.IntN(4)) * 30 * time.Second)
	case v.chance(50):
		body["delay_seconds"] = 0
	}
	if len(body) == 1 || v.chance(50) {
		body["not_after"] = time.Now().Add(time.Duration(1+v.rng.IntN(90)) * time.Second)
	}
	if v.chance(20) {
		delete(body, "not_after")
		body["never_expires"] = true
	}
	_, _ = v.retry(3, func() (any, error) {
		return v.ask("reschedule "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/jobs/"+id+":reschedule", body, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredControl(id, statemachine.Reschedule{}, err) })
	})
}

// dates returns the dates of a command, by its hash: a third of all commands has some.
func (w *world) dates(hash string) fields {
	rng := w.source("dates of " + hash)
	if !w.scenario.dated || rng.IntN(3) > 0 {
		return nil
	}
	dates := fields{}
	switch rng.IntN(4) {
	case 0:
	case 1:
		dates["delay_seconds"] = 1 + rng.IntN(60)
	default:
		dates["not_before"] = w.start.Add(time.Duration(1+rng.IntN(4)) * 30 * time.Second)
	}
	if len(dates) == 0 || rng.IntN(2) == 0 {
		dates["not_after"] = w.start.Add(time.Duration(30+rng.IntN(150)) * time.Second)
	}
	return dates
}

// prioritize requests another class for a job.
func (v *visitor) prioritize(id string) {
	body := fields{"reason": v.name, "priority": []string{"normal", "bulk"}[v.rng.IntN(2)]}
	_, _ = v.retry(3, func() (any, error) {
		return v.ask("prioritize "+id, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/jobs/"+id+":prioritize", body, nil)
		}, func(_ *request, _ any, err error) { v.w.check.answeredControl(id, statemachine.Prioritize{}, err) })
	})
}

// class returns the class of a command, by its hash.
func (w *world) class(hash string) fields {
	if !w.scenario.classed || w.source("class of "+hash).IntN(3) > 0 {
		return nil
	}
	return fields{"priority": "bulk"}
}

// order returns the order key of a command, by its hash: two of three commands have one.
func (w *world) order(hash string) fields {
	rng := w.source("order of " + hash)
	if !w.scenario.ordered || rng.IntN(3) == 0 {
		return nil
	}
	modes := []string{"fifo", "fifo", "fifo", "newest", "newest", "reject"}
	return fields{"order_key": fmt.Sprintf("key%d", rng.IntN(2)), "order_mode": modes[rng.IntN(len(modes))]}
}

// releaseLines releases the lines that a failure blocks, from the calm phase on.
func (v *visitor) releaseLines() {
	for v.w.sleep(10 * time.Second) {
		if !v.w.isCalm() && !v.chance(10) {
			continue
		}
		blockers, _ := v.look("blockers", func() any { return v.w.check.blockers() }).([][2]string)
		for _, one := range blockers {
			if !v.w.isCalm() && v.chance(50) {
				v.requestEvent(one[1], nil)
			}
			_, _ = v.ask("release "+one[1], nil, func(r *request) (any, error) {
				return nil, r.post("/v1/lines/"+one[0]+":release", fields{"jobId": one[1], "reason": v.name}, nil)
			}, func(_ *request, _ any, err error) {
				if err != nil {
					v.w.check.checkRefusal("release of "+one[1], err)
				}
			})
		}
	}
}

// rerun returns a random request for a rerun.
func (v *visitor) rerun() fields {
	body := fields{"from": []string{"failed", "start"}[v.rng.IntN(2)]}
	if v.chance(50) {
		return body
	}
	if v.chance(40) {
		body = fields{"from_step": fmt.Sprintf("s%d", v.rng.IntN(3))}
	}
	if v.chance(50) {
		body["payload_patch"] = fields{"fix": v.rng.IntN(2)}
	}
	if v.chance(30) {
		body["protocol"] = "current"
	}
	if v.chance(30) {
		body["resolve"] = []fields{{"step_id": "s0", "output_ref": fields{"uri": "mem://by-hand"}}}
	}
	body["newest"] = v.chance(30)
	return body
}

// verbOf returns the verb of an event in the path.
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

// release waits for the calm phase, and then resumes most paused jobs.
func (v *visitor) release() {
	for !v.w.isCalm() {
		if !v.pause(time.Second) {
			return
		}
	}
	ids, _ := v.look("paused", func() any { return v.w.check.paused() }).([]string)
	for _, id := range ids {
		if v.chance(30) {
			continue
		}
		_, _ = v.retry(9, func() (any, error) {
			return v.ask("resume "+id, nil, func(r *request) (any, error) {
				return nil, r.post("/v1/jobs/"+id+":resume", fields{}, nil)
			}, func(*request, any, error) {})
		})
	}
}
