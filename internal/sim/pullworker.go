package sim

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// pullWork is a worker on the pull queue.
func (v *visitor) pullWork() {
	var old []*task
	for n := 1; v.pause(4 * time.Second); n++ {
		if len(old) > 0 && v.chance(15) && !v.w.isKind() {
			v.haunt(v.oneOf(old))
		}
		views := v.claim(n)
		for _, view := range views {
			v.w.actors.Go(v.fork().workOff(v.name, view))
			old = append(old, taskOfItem(&view.Item))
		}
	}
}

// claim asks for work, and again where the answer was lost.
func (v *visitor) claim(n int) []workqueue.View {
	claim := workqueue.ClaimRequest{
		Owner: v.name, RequestID: fmt.Sprintf("claim-%d", n), Max: 1 + v.rng.IntN(2),
		Wait: time.Duration(v.rng.Int64N(int64(3 * time.Second))), Start: v.chance(20),
	}
	if v.chance(20) {
		claim.Lease = 20 * time.Second
	}
	value, _ := v.insist(3, func() (any, error) {
		return v.ask("claim "+claim.RequestID, nil,
			func(r *request) (any, error) { return r.queue.Claim(r.ctx, claim) },
			func(r *request, value any, err error) {
				views, _ := value.([]workqueue.View)
				v.w.check.answeredClaim(r.began, v.name, claim.RequestID, views, err)
			})
	})
	views, _ := value.([]workqueue.View)
	return views
}

// workOff does the work of one item in one of the manners that workers have.
func (v *visitor) workOff(owner string, view workqueue.View) func() {
	return func() {
		item := view.Item
		t := taskOfItem(&item)
		if v.chance(15) { // Claimed here, reported by callbacks.
			v.work(t)()
			return
		}
		h := &hand{visitor: v, owner: owner, task: t, workID: item.WorkID, rev: item.Rev}
		h.run(item.Status)
	}
}

func taskOfItem(item *lifecycle.Item) *task {
	return &task{
		jobID: item.JobID, stepID: item.StepID, tenantID: item.TenantID, attemptNo: item.AttemptNo, leaseID: item.LeaseID,
	}
}

// hand is a worker with an item in its hand.
type hand struct {
	*visitor
	owner  string
	task   *task
	workID string
	rev    int64
	verbs  int
}

// run goes through the verbs.
func (h *hand) run(status lifecycle.Status) {
	kind := h.w.isKind()
	if !kind && h.chance(8) {
		return // It dies with the item in hand.
	}
	if !kind && h.chance(20) && (!h.pause(4*time.Second) || !h.do("heartbeat", "")) {
		return
	}
	if status != lifecycle.StatusRunning && !h.do("ack", "") {
		return
	}
	if !kind && h.chance(6) {
		return
	}
	for range h.rng.IntN(3) {
		if !h.pause(6*time.Second) || !h.do("heartbeat", "") {
			return
		}
	}
	if !kind && h.chance(10) && !h.pause(leaseTime) { // Slow: beyond its lease, perhaps.
		return
	}
	h.do("result", h.outcome())
}

// do carries a verb out, until it is answered, and reports whether it came
// through. A repeat of what came through is tried at times.
func (h *hand) do(kind, status string) bool {
	h.verbs++
	t := h.task
	op := &operation{
		kind: kind, jobID: t.jobID, stepID: t.stepID, attemptNo: t.attemptNo, leaseID: t.leaseID, status: status,
	}
	id := fmt.Sprintf("%s-%s-%d-%d", t.leaseID[:8], kind, h.verbs, h.rng.IntN(1000))
	verb := lifecycle.Request{Actor: h.owner, ExpectedRev: h.rev, ID: id}
	ask := func() (any, error) {
		return h.ask(fmt.Sprintf("%s %s %s", kind, h.workID, id), op,
			func(r *request) (any, error) { return r.verb(h, op, verb) },
			func(r *request, _ any, err error) { h.w.check.answeredVerb(r.began, op, h.workID, id, err) })
	}
	value, err := h.insist(4, ask)
	view, ok := value.(workqueue.View)
	if err != nil || !ok || view.Item.AttemptNo != h.task.attemptNo {
		return false // In the last case the item went on to another attempt, which is another's.
	}
	if h.chance(20) {
		_, _ = ask()
	}
	h.rev = view.Item.Rev
	return true
}

// verb is the replica's part.
func (r *request) verb(h *hand, op *operation, verb lifecycle.Request) (any, error) {
	switch {
	case op.kind == "ack":
		return r.queue.Start(r.ctx, h.workID, verb)
	case op.kind == "heartbeat":
		return r.queue.Heartbeat(r.ctx, h.workID, verb)
	case op.status == "SUCCEEDED":
		return r.queue.Complete(r.ctx, h.workID, verb, nil, resultOf(h.task.leaseID))
	}
	return r.queue.Fail(r.ctx, h.workID, verb, workqueue.Failure{Retryable: op.status == "FAILED_RETRY", Code: "code"})
}

// shove is an operator who takes an item from its worker, or offers one again.
func (v *visitor) shove() {
	lot := v.rng.IntN(1 << 20)
	r := v.w.gate.park(&call{
		actor: v.name, verb: verbLook, detail: "item", exec: func() reply { return reply{value: v.w.check.anyItem(lot)} },
	})
	item, _ := r.value.(audit.ItemRow)
	if item.WorkID == "" {
		return
	}
	verb := lifecycle.Request{Actor: v.name, ExpectedRev: item.Rev, ID: fmt.Sprint("shove-", v.n)}
	_, _ = v.insist(3, func() (any, error) {
		return v.ask("shove "+item.Status+" "+item.WorkID, nil, func(r *request) (any, error) {
			if item.Status == "stalled" {
				return r.queue.Requeue(r.ctx, item.WorkID, verb)
			}
			return r.queue.Stall(r.ctx, item.WorkID, verb)
		}, func(_ *request, _ any, err error) {
			if err != nil {
				v.w.check.checkRefusal("shove "+item.WorkID, err)
			}
		})
	})
}
