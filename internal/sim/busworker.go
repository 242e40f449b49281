package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// receiveWork is a worker on the bus, which reports by callbacks.
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
		if len(old) > 0 && v.chance(10) && !v.w.isKind() {
			v.haunt(v.oneOf(old))
		}
	}
}

// fork is the same visitor at another task.
func (v *visitor) fork() *visitor {
	v.jobs++
	return v.w.visitor(fmt.Sprintf("%s.%d", v.name, v.jobs))
}

// task is a directive as a worker has it.
type task struct {
	jobID, stepID, tenantID string
	attemptNo               int
	leaseID                 string
}

func taskOf(m *ledger.Message) *task {
	return &task{jobID: m.JobID, stepID: m.StepID, tenantID: m.TenantID, attemptNo: m.AttemptNo, leaseID: m.LeaseID}
}

// work does the task in one of the manners that workers have.
func (v *visitor) work(t *task) func() {
	return func() {
		kind := v.w.isKind()
		if !kind && v.chance(8) {
			return // It dies with the message in hand.
		}
		if kind || v.chance(80) { // Else the RESULT stands for the ACK.
			_ = v.report(t, "ack", "")
		}
		if !kind && v.chance(6) {
			return
		}
		for range v.rng.IntN(3) {
			if !v.pause(6 * time.Second) {
				return
			}
			_ = v.report(t, "heartbeat", "")
		}
		if !kind && v.chance(10) && !v.pause(leaseTime) { // Slow: beyond its lease, perhaps.
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

// outcome draws how the work ends.
func (v *visitor) outcome() string {
	lot := v.rng.IntN(100)
	switch {
	case v.w.isKind() || lot < 80:
		return string(statemachine.ResultSucceeded)
	case lot < 95:
		return string(statemachine.ResultFailedRetry)
	default:
		return string(statemachine.ResultFailedFinal)
	}
}

// oneOf is a task of before, often the last one.
func (v *visitor) oneOf(old []*task) *task {
	if v.chance(50) {
		return old[len(old)-1]
	}
	return old[v.rng.IntN(len(old))]
}

// haunt reports for a task of long ago, or under a lease that was never given.
func (v *visitor) haunt(old *task) {
	t := *old
	if v.chance(40) {
		t.leaseID = "forged"
	}
	_ = v.report(&t, []string{"ack", "heartbeat", "result"}[v.rng.IntN(3)], v.outcome())
}

// report brings a callback to a replica, until it is answered.
func (v *visitor) report(t *task, kind, status string) error {
	op := &operation{
		kind: kind, jobID: t.jobID, stepID: t.stepID, attemptNo: t.attemptNo, leaseID: t.leaseID, status: status,
	}
	if kind != "result" {
		op.status = ""
	}
	_, err := v.insist(4, func() (any, error) {
		return v.ask(fmt.Sprintf("%s %s/%s/%d %s", kind, t.jobID, t.stepID, t.attemptNo, op.status), op,
			func(r *request) (any, error) { return nil, r.report(t, op) },
			func(r *request, _ any, err error) { v.w.check.answeredCallback(r.began, op, err) })
	})
	return err
}

// report is the request that the report is.
func (r *request) report(t *task, op *operation) error {
	body := fields{
		"jobId": t.jobID, "stepId": t.stepID, "tenant_id": t.tenantID, "attempt_no": t.attemptNo, "lease_id": t.leaseID,
		"timestamp": "2000-01-01T00:00:00Z",
	}
	if op.kind == "result" {
		body["status"], body["result_ref"] = op.status, resultOf(t.leaseID)
		if op.status != string(statemachine.ResultSucceeded) {
			body["error"] = fields{"code": "code"}
		}
	}
	return r.post("/v1/callbacks/"+op.kind, body, nil)
}

// resultOf is what an attempt makes: no two make the same.
func resultOf(leaseID string) json.RawMessage {
	return json.RawMessage(`{"uri":"mem://` + leaseID + `"}`)
}
