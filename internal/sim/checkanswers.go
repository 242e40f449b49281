package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// answeredAccept checks the answer to a command, for which the request began after that many commits.
func (c *checker) answeredAccept(began int, cmd *command, jobID string, err error) {
	first, known := c.keys[cmd.name()]
	if known {
		if j := c.job(first.jobID); j.purged || c.keyFree(j) {
			known = false
		}
	}
	switch {
	case errors.Is(err, ledger.ErrIdempotencyMismatch):
		if known && first.variant == cmd.variant {
			c.violate("S11", "command %s was refused by an idempotency mismatch with itself", cmd.name())
		}
	case err != nil:
		late, _ := errors.AsType[*apierror.Error](err)
		expired := c.w.dates(cmd.hash())["not_after"] != nil && late != nil && late.Code == apierror.NotAfterPassed
		busy := late != nil && late.Code == apierror.LineBusy
		if busy && known && first.variant == cmd.variant && c.answeredAt[first.jobID] < began {
			c.violate("S11", "command %s, which was accepted, was refused for its line", cmd.name())
		}
		if !unknown(err) && !errors.Is(err, ledger.ErrTenantLimit) && !expired && !(busy && c.w.scenario.ordered) {
			c.violate("answer", "command %s: %v", cmd.name(), err)
		}
	case !c.job(jobID).exists && !c.job(jobID).purged:
		c.violate("S1", "job %s was accepted and does not exist", jobID)
	case known && first.jobID != jobID:
		c.violate("S11", "command %s was answered with jobs %s and %s", cmd.name(), first.jobID, jobID)
	case known && first.variant != cmd.variant:
		c.violate("S11", "two commands under the key %s were both accepted", cmd.name())
	default:
		c.keys[cmd.name()] = answered{jobID, cmd.variant}
		c.checkOrder(cmd, jobID)
	}
}

// answeredControl checks the answer to an operator.
func (c *checker) answeredControl(jobID string, event statemachine.Event, err error) {
	if err != nil {
		c.checkRefusal(fmt.Sprintf("%T of job %s", event, jobID), err)
		return
	}
	j := c.job(jobID)
	if _, cancel := event.(statemachine.Cancel); cancel && !j.purged && !j.row.Terminal() && j.row.State != "CANCELLING" {
		c.violate("answer", "the cancel of job %s succeeded, and its state is %s", jobID, j.row.State)
	}
}

// answeredPause checks the answer to an operator who pauses or resumes dispatch.
func (c *checker) answeredPause(what, scope string, err error) {
	if err != nil {
		c.checkRefusal(what+" of "+scope, err)
	}
}

// checkRefusal checks that the error is one that a caller may get.
func (c *checker) checkRefusal(what string, err error) {
	var refused *apierror.Error
	var unfit *statemachine.NotRerunnableError
	switch {
	case unknown(err), errors.Is(err, ledger.ErrJobNotFound), errors.Is(err, ledger.ErrTenantLimit),
		errors.As(err, &unfit):
	case errors.As(err, &refused) && refused.Code.Status() < 500:
	default:
		c.violate("answer", "%s: %v", what, err)
	}
}

// name identifies a report. Its repeats have the same name.
func (o *operation) name() string {
	return fmt.Sprintf("%s %s/%s/%d/%s %s", o.kind, o.jobID, o.stepID, o.attemptNo, o.leaseID, o.status)
}

// doneBefore reports whether a report succeeded before another request began.
func (c *checker) doneBefore(name string, began int) bool {
	first, known := c.reports[name]
	return known && first.seq <= began
}

// markDone records that a report succeeded.
func (c *checker) markDone(name string) {
	if _, known := c.reports[name]; !known {
		c.reports[name] = done{c.seq, time.Now()}
	}
}

// answeredCallback checks the answer to a callback.
func (c *checker) answeredCallback(began int, op *operation, err error) {
	name := op.name()
	switch {
	case err == nil:
		c.markDone(name)
		c.checkDone(op)
	case c.doneBefore(name, began) && op.kind != "heartbeat" && !unknown(err) && !c.job(op.jobID).purged:
		c.violate("S12", "%s succeeded before, and now: %v", name, err)
	default:
		c.checkRefusal(name, err)
	}
}

// checkDone checks that the ledger holds a report that succeeded.
func (c *checker) checkDone(op *operation) {
	j := c.job(op.jobID)
	if j.purged || op.kind == "heartbeat" {
		return
	}
	for i := range j.steps {
		if j.steps[i].ID != op.stepID {
			continue
		}
		memory := j.steps[i].Remembers(op.attemptNo)
		if !memory.Acked || op.kind == "result" && memory.Result != op.status {
			c.violate("answer", "%s succeeded, and the step remembers %+v", op.name(), memory)
		}
	}
}

// answeredVerb checks the answer to a worker on the pull queue.
func (c *checker) answeredVerb(began int, op *operation, workID, requestID string, err error) {
	name := workID + " " + requestID
	refused, _ := errors.AsType[*apierror.Error](err)
	gone := refused != nil && refused.Code == apierror.WorkNotFound
	remembered := c.doneBefore(name, began) && time.Since(c.reports[name].at) < statemachine.MinMemory
	switch {
	case err == nil:
		c.markDone(name)
		if op.kind != "heartbeat" {
			c.checkDone(op)
		}
	case remembered && !unknown(err) && !gone && !(op.kind == "heartbeat" && c.over(op)):
		c.violate("S12", "%s of %s succeeded before, and now: %v", op.name(), name, err)
	default:
		c.checkRefusal(name, err)
	}
}

// over reports whether the attempt of a report has ended. The server may then refuse a
// repeated heartbeat like a new one, because the history has no heartbeats.
func (c *checker) over(op *operation) bool {
	j := c.job(op.jobID)
	for i := range j.steps {
		if s := &j.steps[i]; s.ID == op.stepID {
			return s.Attempt != op.attemptNo || !s.Live()
		}
	}
	return true
}

// answeredClaim checks the items that a worker got.
func (c *checker) answeredClaim(began int, owner, requestID string, lease time.Duration, items []item, err error) {
	if err != nil {
		c.checkRefusal("claim "+requestID, err)
	}
	for i := range items {
		t := items[i].task()
		j := c.job(t.jobID)
		if other, known := c.holders[t.leaseID]; known && other != owner {
			c.violate("queue", "%s and %s got the same lease, for attempt %d of %s", other, owner, t.attemptNo, items[i].WorkID)
		}
		c.holders[t.leaseID] = owner
		if !j.purged && !slices.ContainsFunc(j.moves[items[i].WorkID], func(e statemachine.ItemEvent) bool {
			return e.Type == statemachine.ItemEventClaimed && e.Actor == owner && e.RequestID == requestID
		}) {
			c.violate("queue", "%s got %s, which it never claimed by %s", owner, items[i].WorkID, requestID)
		}
		for index := range j.steps {
			step := &j.steps[index]
			if step.ID != t.stepID {
				continue
			}
			// The worker may have sent an ACK before a repeat of its claim was answered.
			want := cmp.Or(c.asked[t.leaseID], lease)
			if step.Attempt == t.attemptNo && step.Live() && step.ClaimLease != want {
				c.violate("lease", "%s claimed %s for %s, and the step has %s", owner, items[i].WorkID, want, step.ClaimLease)
			}
			when, superseded := j.superseded[attemptKey{index, t.attemptNo}]
			ended, over := j.ended[index]
			if superseded && when <= began || over && ended <= began {
				c.violate("queue", "%s got attempt %d of %s, which was superseded before its request",
					owner, t.attemptNo, items[i].WorkID)
			}
		}
	}
}
