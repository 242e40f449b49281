package statemachine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// decide makes the first change of a job: it dispatches the first open step, unless the job waits for
// its date or for its line.
func (e Accept) decide(c *change) {
	job := &c.agg.Job
	first := c.active()
	switch {
	case job.Rev != 0 || job.State != JobQueued:
		c.refuse(CodeIllegalTransition, "the job exists already")
		return
	case first == nil:
		c.refuse(CodeIllegalTransition, "every step has ended")
		return
	}
	job.CreatedAt, job.StageAt = c.env.Now, c.env.Now
	for i := range c.agg.Steps {
		c.agg.Steps[i].CreatedAt = c.env.Now
		c.touch(&c.agg.Steps[i])
	}
	cause := "command accepted"
	if job.RerunOf != "" {
		cause = "rerun of " + job.RerunOf
	}
	c.note(Transition{
		Object: ObjectJob, Type: EventJobAccepted, To: string(JobQueued), Cause: cause, Detail: truncate(e.Reason, maxMessage),
	})
	for i := range first.Index {
		step := &c.agg.Steps[i]
		step.CompletedAt = c.env.Now
		moved := Transition{Object: ObjectStep, ID: step.ID, Type: EventStepCarried, To: string(step.State), Cause: cause}
		if step.Outcome == StepResolved {
			moved.Type, moved.Detail = EventStepResolved, truncate("output_ref "+string(step.OutputRef), maxMessage)
		}
		c.note(moved)
	}
	job.CurrentStepIndex = first.Index // While the job waits, lists and filters read its service there.
	if job.Parked = job.NotBefore.After(c.env.Now); !job.Parked && !e.Behind {
		c.begin(first, cause)
	}
}

// dispatch makes a new attempt of the step with a new pair and a new outbox row, and
// makes it the job's current step. If the row may be published at once, and its bus is the
// pull queue, this change publishes it. On another bus the relay of this process publishes
// it, and as a safety net the row is due after the hold. A row that must wait is due now,
// for any relay.
func (c *change) dispatch(step *Step, cause string) {
	job := &c.agg.Job
	c.newPair(step)
	step.OutboxID = nameAttempt(job.ID, step.Index, step.AttemptNo)
	step.NextAttemptAt = time.Time{}
	step.InputRef = job.InputRef
	if step.Input == InputPrevious && step.Index > 0 {
		if output := c.agg.Steps[step.Index-1].Output(); len(output) > 0 {
			step.InputRef = output
		}
	}
	c.step(step, StepDispatching, cause, "")
	job.CurrentStepID = step.ID
	job.CurrentStepIndex = step.Index

	row := &Outbox{
		ID: step.OutboxID, StepID: step.ID, StepIndex: step.Index, AttemptNo: step.AttemptNo, LeaseID: step.LeaseID,
		State: OutboxPending, Bus: c.env.Bus, Routing: step.Routing, DueAt: c.env.Now,
		CreatedAt: c.env.Now, UpdatedAt: c.env.Now,
	}
	c.agg.Outbox, c.d.Added, c.d.Dispatch = row, row, row
	c.note(Transition{
		Object: ObjectOutbox, ID: row.ID, Type: EventOutboxPending, To: string(OutboxPending),
		AttemptNo: row.AttemptNo, Cause: cause,
	})
	switch {
	case job.lapsed(c.env.Now): // The sweeper ends the job. Nothing is published before that.
	case c.env.Prompt == nil || !c.env.Prompt(TargetOf(job, step)):
	case row.Bus == BusQueue:
		c.sent("published by this change")
	default:
		row.DueAt = deadline(c.env.Now, c.env.Hold)
		c.d.Hot = true
	}
}

// newPair gives the step the next attempt_no and the fresh lease id.
func (c *change) newPair(step *Step) {
	step.AttemptNo++
	c.agg.Job.AttemptsTotal++
	step.LeaseID = c.env.LeaseID
	step.Throttled = false
	step.LeaseExpiresAt = deadline(c.env.Now, c.env.Hold+step.Policy.AckTimeout)
	step.TimeoutAt = time.Time{}
	step.ClaimLease = 0
	step.WorkID, step.Owner = "", ""
	step.remember()
}

// pending returns the active row if it has that id (any, for an empty id) and is still
// PENDING; otherwise the change ends as a duplicate.
func (c *change) pending(outboxID string) *Outbox {
	row := c.agg.Outbox
	if row == nil || outboxID != "" && row.ID != outboxID || row.State != OutboxPending {
		c.duplicate("the outbox row is settled")
		return nil
	}
	return row
}

// decide holds a due row for the relay that publishes it. The row gets a new pair if its
// message must differ from the last one, which fences a worker that got the last message.
//
// Source: Orchestrator flow canvas, Retry Loop (update, publish, update).
func (e DispatchClaimed) decide(c *change) {
	row := c.pending(e.OutboxID)
	if row == nil {
		return
	}
	if c.agg.Job.lapsed(c.env.Now) {
		c.refuse(CodeNotAfterPassed, "the job has expired: a relay is to end it")
		return
	}
	if row.DueAt.After(c.env.Now) {
		c.refuse(CodeNotDue, "the row is not due before %s", row.DueAt.Format(time.RFC3339))
		return
	}
	switch {
	case row.Bus != c.env.Bus:
		row.Bus = c.env.Bus
		c.newFence(row, "moved to another bus")
	case row.Rejected:
		c.newFence(row, "retry after a rejected publish")
	}
	c.outboxSame(EventOutboxTaken, "taken up for publishing")
	row.DueAt = deadline(c.env.Now, c.env.Hold)
}

// newFence gives a PENDING row a new pair, and so a new message id.
func (c *change) newFence(row *Outbox, cause string) {
	step := &c.agg.Steps[row.StepIndex]
	c.newPair(step)
	c.step(step, StepDispatching, cause, "")
	row.AttemptNo = step.AttemptNo
	row.LeaseID = step.LeaseID
	row.Rejected = false
	c.d.Dispatch = row
}

// decide marks the row SENT.
func (e Published) decide(c *change) {
	row := c.pending(e.OutboxID)
	if row == nil {
		return
	}
	if row.AttemptNo != e.AttemptNo {
		c.duplicate("the outbox row has a newer attempt")
		return
	}
	c.sent("publish succeeded")
}

// sent moves a DISPATCHING step and its row to AWAITING_ACK and SENT. The ACK
// deadline starts now; in the pull queue it starts with the claim.
func (c *change) sent(cause string) {
	row := c.agg.Outbox
	step := &c.agg.Steps[row.StepIndex]
	c.outbox(OutboxSent, cause)
	c.step(step, StepAwaitingAck, cause, "")
	step.LeaseExpiresAt = deadline(c.env.Now, step.Policy.AckTimeout)
	if row.Bus == BusQueue {
		step.LeaseExpiresAt = time.Time{}
	}
}

// decide spends the dispatch budget.
func (e PublishRejected) decide(c *change) {
	row := c.pending(e.OutboxID)
	if row == nil {
		return
	}
	if row.AttemptNo != e.AttemptNo || row.Rejected {
		c.duplicate("the rejection is counted")
		return
	}
	reason := truncate(e.Reason, maxMessage)
	step := &c.agg.Steps[row.StepIndex]
	row.Failures++
	row.LastError = reason
	delay, again := step.spend(CauseDispatch)
	c.touch(step)
	if e.Permanent || !again {
		c.outbox(OutboxFailedFinal, "publish failed final")
		c.failStep(step, ErrorDispatchExhausted, reason, "publish failed final")
		return
	}
	step.LastErrorCode, step.LastErrorMessage = ErrorPublishRejected, reason
	c.outboxSame(EventOutboxRejected, reason)
	row.Rejected = true
	row.DueAt = deadline(c.env.Now, c.jitter(delay))
}

// Directive is what a platform service receives. Every field is always present, null if
// unset.
//
// Source: Option B spec, 11.1.
type Directive struct {
	Type           string          `json:"type"`
	JobID          string          `json:"jobId"`
	StepID         string          `json:"stepId"`
	TenantID       string          `json:"tenant_id"`
	ProtocolID     string          `json:"protocol_id"`
	StepType       string          `json:"step_type"`
	Service        string          `json:"service"`
	AttemptNo      int             `json:"attempt_no"`
	LeaseID        string          `json:"lease_id"`
	LeaseExpiresAt *string         `json:"lease_expires_at"`
	InputRef       json.RawMessage `json:"input_ref"`
	WorkspaceRef   json.RawMessage `json:"workspace_ref"`
	OutputRef      json.RawMessage `json:"output_ref"`
	Payload        json.RawMessage `json:"payload"`
	Mode           Mode            `json:"mode"`
	Lane           int             `json:"lane"`
	RoutingKeyUsed string          `json:"routing_key_used"`
	CorrelationID  *string         `json:"correlation_id"`
	Traceparent    *string         `json:"traceparent"`
}

// wireTime is the format of times in directives: UTC, with milliseconds.
const wireTime = "2006-01-02T15:04:05.000Z07:00"

// NewDirective is the directive of the pair that the row has just got, with the step's part
// of the command's payload. Its lease_expires_at is the earliest time at which the lease
// can end: the ACK deadline if the directive were published at once. The deadline itself
// starts with the publish, and is not known yet: the bytes of an attempt are created once,
// and all copies have the same bytes. In the pull queue the lease starts with the claim.
//
// traceparent is the place of the attempt in its trace, or the command's.
func NewDirective(job *Job, step *Step, row *Outbox, payload json.RawMessage, traceparent string) Directive {
	expires := ""
	if row.Bus != BusQueue {
		expires = deadline(row.UpdatedAt, step.Policy.AckTimeout).UTC().Format(wireTime)
	}
	return Directive{
		Type: "DIRECTIVE", JobID: job.ID, StepID: step.ID, TenantID: job.TenantID, ProtocolID: job.ProtocolID,
		StepType: step.Type, Service: step.Service, AttemptNo: row.AttemptNo, LeaseID: row.LeaseID,
		LeaseExpiresAt: orNull(expires),
		InputRef:       step.InputRef, WorkspaceRef: job.WorkspaceRef, OutputRef: step.OutputRef, Payload: payload,
		Mode: row.Routing.ResolvedMode, Lane: row.Routing.Lane, RoutingKeyUsed: row.Routing.RoutingKeyUsed,
		CorrelationID: orNull(job.CorrelationID), Traceparent: orNull(traceparent),
	}
}

// orNull returns nil for an empty string.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Bytes is the message body: the same for the same directive. It does not escape
// HTML, so references and payload stay as short as they were sent.
func (d *Directive) Bytes() ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(d); err != nil {
		return nil, fmt.Errorf("encode a directive: %w", err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}
