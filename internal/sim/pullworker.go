package sim

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// pullWork runs a worker on the pull queue.
func (v *visitor) pullWork() {
	var old []*task
	for n := 1; v.pause(4 * time.Second); n++ {
		if len(old) > 0 && v.chance(15) && !v.w.isCalm() {
			v.reportStale(v.oneOf(old))
		}
		for _, got := range v.claim(n) {
			v.w.actors.Go(v.fork().execute(v.name, got))
			old = append(old, got.task())
		}
	}
}

// item is a work item as a worker sees it.
type item struct {
	WorkID    string                  `json:"work_id"`
	Status    statemachine.ItemStatus `json:"status"`
	Rev       int64                   `json:"rev"`
	Directive struct {
		JobID     string `json:"jobId"`
		StepID    string `json:"stepId"`
		TenantID  string `json:"tenant_id"`
		AttemptNo int    `json:"attempt_no"`
		LeaseID   string `json:"lease_id"`
	} `json:"directive"`
}

// claim claims work, and repeats the claim if the answer was lost.
func (v *visitor) claim(n int) []item {
	id := fmt.Sprintf("claim-%d", n)
	body := fields{
		"owner": v.name, "request_id": id, "max": 1 + v.rng.IntN(2),
		"wait_seconds": 3 * v.rng.Float64(), "start": v.chance(20),
	}
	var lease time.Duration
	if v.chance(20) {
		lease = 20 * time.Second
		body["lease_seconds"] = lease.Seconds()
	}
	value, _ := v.retry(3, func() (any, error) {
		return v.ask("claim "+id, nil, func(r *request) (any, error) {
			var got struct {
				Items []item `json:"items"`
			}
			err := r.post("/v1/work:claim", body, &got)
			return got.Items, err
		}, func(r *request, value any, err error) {
			items, _ := value.([]item)
			v.w.check.answeredClaim(r.began, v.name, id, lease, items, err)
		})
	})
	items, _ := value.([]item)
	return items
}

// execute executes one item by the verbs of the pull queue, or by callbacks.
func (v *visitor) execute(owner string, got item) func() {
	return func() {
		t := got.task()
		if v.chance(15) { // A worker may claim an item here and report it by callbacks.
			v.work(t)()
			return
		}
		h := &itemWorker{visitor: v, owner: owner, task: t, workID: got.WorkID, rev: got.Rev}
		h.run(got.Status)
	}
}

// task returns the task of the item.
func (i *item) task() *task {
	d := &i.Directive
	return &task{jobID: d.JobID, stepID: d.StepID, tenantID: d.TenantID, attemptNo: d.AttemptNo, leaseID: d.LeaseID}
}

// itemWorker is a worker that holds an item.
type itemWorker struct {
	*visitor
	owner  string
	task   *task
	workID string
	rev    int64
	verbs  int
}

// run calls the verbs in order. Before the calm phase it may crash or be slow.
func (h *itemWorker) run(status statemachine.ItemStatus) {
	calm := h.w.isCalm()
	if !calm && h.chance(8) {
		return // The worker crashes while it holds the item.
	}
	if !calm && h.chance(20) && (!h.pause(4*time.Second) || !h.do("heartbeat", "")) {
		return
	}
	if status != statemachine.StatusRunning && !h.do("ack", "") {
		return
	}
	if !calm && h.chance(6) {
		return
	}
	for range h.rng.IntN(3) {
		if !h.pause(6*time.Second) || !h.do("heartbeat", "") {
			return
		}
	}
	if !calm && h.chance(10) && !h.pause(leaseTime) { // slow, perhaps beyond the lease
		return
	}
	h.do("result", h.outcome())
}

// do calls a verb until it is answered, and reports whether it succeeded. It sometimes
// repeats a call that succeeded.
func (h *itemWorker) do(kind, status string) bool {
	h.verbs++
	t := h.task
	op := &operation{
		kind: kind, jobID: t.jobID, stepID: t.stepID, attemptNo: t.attemptNo, leaseID: t.leaseID, status: status,
		throttle: h.throttle(status),
	}
	op.stopped = h.stops(op)
	id := fmt.Sprintf("%s-%s-%d-%d", t.leaseID[:8], kind, h.verbs, h.rng.IntN(1000))
	rev := h.rev
	ask := func() (any, error) {
		return h.ask(fmt.Sprintf("%s %s %s", kind, h.workID, id), op,
			func(r *request) (any, error) { return r.verb(h, op, id, rev) },
			func(r *request, _ any, err error) { h.w.check.answeredVerb(r.began, op, h.workID, id, err) })
	}
	value, err := h.retry(4, ask)
	got, ok := value.(item)
	if err != nil || !ok || got.Directive.AttemptNo != h.task.attemptNo {
		return false // With another attempt number, the item was handed out again.
	}
	if h.chance(20) {
		_, _ = ask()
	}
	h.rev = got.Rev
	return true
}

// verb sends the request of the operation.
func (r *request) verb(h *itemWorker, op *operation, id string, rev int64) (any, error) {
	body := fields{"owner": h.owner, "expected_rev": rev, "request_id": id}
	verb := op.kind
	switch {
	case op.kind == "ack":
		verb = "start"
	case op.status == "SUCCEEDED":
		verb, body["result_ref"] = "complete", resultOf(h.task.leaseID)
	case op.kind == "result":
		verb, body["retryable"] = "fail", op.status == "FAILED_RETRY"
		op.failure(body)
	}
	var got item
	err := r.post("/v1/work/"+h.workID+":"+verb, body, &got)
	return got, err
}

// operateItem stalls a random item, or requeues it if it is stalled.
func (v *visitor) operateItem() {
	draw := v.rng.IntN(1 << 20)
	found, _ := v.look("item", func() any { return v.w.check.anyItem(draw) }).(statemachine.Item)
	if found.WorkID == "" {
		return
	}
	verb := "stall"
	if found.Status == statemachine.StatusStalled {
		verb = "requeue"
	}
	body := fields{"expected_rev": found.Rev, "request_id": fmt.Sprint("shove-", v.n), "reason": "shoved"}
	_, _ = v.retry(3, func() (any, error) {
		return v.ask("shove "+string(found.Status)+" "+found.WorkID, nil, func(r *request) (any, error) {
			return nil, r.post("/v1/admin/work/"+found.WorkID+":"+verb, body, nil)
		}, func(_ *request, _ any, err error) {
			if err != nil {
				v.w.check.checkRefusal("shove "+found.WorkID, err)
			}
		})
	})
}
