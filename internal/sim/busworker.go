package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// receiveWork runs a worker that receives directives from the bus and reports by callbacks.
func (v *visitor) receiveWork() {
	var old []*task
	for v.pause(3 * time.Second) {
		r := v.w.gate.park(&call{
			actor: v.name, verb: verbReceive, exec: func() reply { return reply{value: v.w.bus.deliver()} },
		})
		message, _ := r.value.(*ledger.Message)
		if message != nil {
			t := taskOf(message)
			v.w.actors.Go(v.fork().work(t))
			old = append(old, t)
		}
		if len(old) > 0 && v.chance(10) && !v.w.isCalm() {
			v.reportStale(v.oneOf(old))
		}
	}
}

// fork returns a visitor with a name and random numbers of its own, for one task.
func (v *visitor) fork() *visitor {
	v.jobs++
	return v.w.visitor(fmt.Sprintf("%s.%d", v.name, v.jobs))
}

// task is a directive as a worker sees it.
type task struct {
	jobID, stepID, tenantID string
	attemptNo               int
	leaseID                 string
}

func taskOf(m *ledger.Message) *task {
	return &task{jobID: m.JobID, stepID: m.StepID, tenantID: m.TenantID, attemptNo: m.AttemptNo, leaseID: m.LeaseID}
}

// work executes the task. Before the calm phase it may crash, repeat reports or be slow.
func (v *visitor) work(t *task) func() {
	return func() {
		calm := v.w.isCalm()
		if !calm && v.chance(8) {
			return // The worker crashes while it holds the message.
		}
		if calm || v.chance(80) { // Without an ACK, the RESULT implies it.
			_ = v.report(t, "ack", "")
		}
		if !calm && v.chance(6) {
			return
		}
		for range v.rng.IntN(3) {
			if !v.pause(6 * time.Second) {
				return
			}
			_ = v.report(t, "heartbeat", "")
		}
		if !calm && v.chance(10) && !v.pause(leaseTime) { // slow, perhaps beyond the lease
			return
		}
		status := v.outcome()
		err := v.report(t, "result", status)
		if err == nil && v.chance(25) {
			_ = v.report(t, "result", status)
			_ = v.report(t, "ack", "")
		}
	}
}

// outcome draws the result of the work.
func (v *visitor) outcome() string {
	draw := v.rng.IntN(100)
	switch {
	case v.w.isCalm() || draw < 80:
		return string(statemachine.ResultSucceeded)
	case draw < 95:
		return string(statemachine.ResultFailedRetry)
	default:
		return string(statemachine.ResultFailedFinal)
	}
}

// throttleTime is how long a service that throttles an attempt takes no work.
const throttleTime = 7 * time.Second

// throttle draws whether the service throttled an attempt of that status, and for whom.
func (v *visitor) throttle(status string) statemachine.Throttle {
	switch {
	case status != string(statemachine.ResultFailedRetry) || !v.chance(40):
		return ""
	case v.chance(50):
		return statemachine.ThrottleTenant
	default:
		return statemachine.ThrottleService
	}
}

// stopTime is how long the next attempt of a worker that stops waits.
const stopTime = time.Second

// stops draws whether a worker that reports that status does so because it stops.
func (v *visitor) stops(op *operation) bool {
	return op.status == string(statemachine.ResultFailedRetry) && op.throttle == "" && v.chance(30)
}

// failure adds to a report of a failure why the attempt failed.
func (o *operation) failure(body fields) {
	body["error"] = fields{"code": "code"}
	switch {
	case o.throttle != "":
		body["scope"], body["retry_after_seconds"] = o.throttle, throttleTime.Seconds()
	case o.stopped:
		body["error"] = fields{"code": statemachine.ErrorWorkerStopped}
		body["retry_after_seconds"] = stopTime.Seconds()
	}
}

// oneOf returns an earlier task, in half of all cases the last one.
func (v *visitor) oneOf(old []*task) *task {
	if v.chance(50) {
		return old[len(old)-1]
	}
	return old[v.rng.IntN(len(old))]
}

// reportStale reports on an earlier task, sometimes with a forged lease.
func (v *visitor) reportStale(old *task) {
	t := *old
	if v.chance(40) {
		t.leaseID = "forged"
	}
	_ = v.report(&t, []string{"ack", "heartbeat", "result"}[v.rng.IntN(3)], v.outcome())
}

// report sends a callback, and repeats it a few times until a replica answers.
func (v *visitor) report(t *task, kind, status string) error {
	op := &operation{
		kind: kind, jobID: t.jobID, stepID: t.stepID, attemptNo: t.attemptNo, leaseID: t.leaseID, status: status,
	}
	if kind != "result" {
		op.status = ""
	}
	op.throttle = v.throttle(op.status)
	op.stopped = v.stops(op)
	if kind == "ack" && v.chance(20) {
		op.lease = 20 * time.Second
	}
	_, err := v.retry(4, func() (any, error) {
		return v.ask(fmt.Sprintf("%s %s/%s/%d %s", kind, t.jobID, t.stepID, t.attemptNo, op.status), op,
			func(r *request) (any, error) { return nil, r.report(t, op) },
			func(r *request, _ any, err error) { v.w.check.answeredCallback(r.began, op, err) })
	})
	return err
}

// report sends the callback of the operation.
func (r *request) report(t *task, op *operation) error {
	body := fields{
		"jobId": t.jobID, "stepId": t.stepID, "tenant_id": t.tenantID, "attempt_no": t.attemptNo, "lease_id": t.leaseID,
		"timestamp": "2000-01-01T00:00:00Z",
	}
	if op.lease > 0 {
		body["lease_seconds"] = op.lease.Seconds()
	}
	if op.kind == "result" {
		body["status"], body["result_ref"] = op.status, resultOf(t.leaseID)
		if op.status != string(statemachine.ResultSucceeded) {
			op.failure(body)
		}
	}
	return r.post("/v1/callbacks/"+op.kind, body, nil)
}

// resultOf returns the result of an attempt, which differs from that of any other.
func resultOf(leaseID string) json.RawMessage {
	return json.RawMessage(`{"uri":"mem://` + leaseID + `"}`)
}
