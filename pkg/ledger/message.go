package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Message is a directive with what a publisher needs to route it.
type Message struct {
	statemachine.Target
	OutboxID  string
	JobID     string
	StepID    string
	StepIndex int
	StepType  string
	AttemptNo int
	LeaseID   string
	Topic     string
	// AckTimeout is how long after its publish a worker has to acknowledge it.
	AckTimeout    time.Duration
	CorrelationID string
	Traceparent   string
	// Directive is the message body: composed once per attempt, and published verbatim
	// each time.
	Directive []byte
}

// Fields returns the log fields that identify the message's job.
func (m *Message) Fields() statemachine.LogFields {
	return statemachine.LogFields{
		JobID: m.JobID, TenantID: m.TenantID, StepID: m.StepID, AttemptNo: m.AttemptNo,
		LeaseDigest: statemachine.LeaseDigest(m.LeaseID), CorrelationID: m.CorrelationID, Traceparent: m.Traceparent,
	}
}

// MessageID is the id by which the bus and the workers drop duplicates: the
// same for each publish of one attempt, another for each attempt.
func (m *Message) MessageID() string { return m.OutboxID + "/" + strconv.Itoa(m.AttemptNo) }

// newMessage returns the message of a row, without its directive.
func (l *Ledger) newMessage(agg *statemachine.Aggregate, row *statemachine.Outbox) *Message {
	step := &agg.Steps[row.StepIndex]
	traceparent := agg.Job.Traceparent
	if l.cfg.Sample != nil {
		if trace, ok := statemachine.ParseTrace(traceparent); ok {
			traceparent = trace.OfAttempt(agg.Job.ID, row.StepIndex, row.AttemptNo).String()
		}
	}
	return &Message{
		Target: statemachine.TargetOf(&agg.Job, step), OutboxID: row.ID, JobID: agg.Job.ID,
		StepID: step.ID, StepIndex: row.StepIndex,
		StepType: step.Type, AttemptNo: row.AttemptNo, LeaseID: row.LeaseID,
		Topic: row.Routing.Topic, AckTimeout: step.Policy.AckTimeout,
		CorrelationID: agg.Job.CorrelationID, Traceparent: traceparent,
	}
}

// Message returns the message of the job's active outbox row, with its stored
// directive.
func (l *Ledger) Message(ctx context.Context, agg *statemachine.Aggregate) (*Message, error) {
	if agg.Outbox == nil {
		return nil, fmt.Errorf("job %s has no outbox row", agg.Job.ID)
	}
	message := l.newMessage(agg, agg.Outbox)
	directive, err := l.Directive(ctx, agg.Job.ID, message.StepIndex, message.AttemptNo)
	if err != nil {
		return nil, err // A message without its directive must never be sent.
	}
	message.Directive = directive
	return message, nil
}

// message composes the message of a new pair, with its directive.
func (p *planner) message(payload []byte) (*Message, error) {
	row := p.d.Dispatch
	step := &p.d.After.Steps[row.StepIndex]
	message := p.l.newMessage(&p.d.After, row)
	directive := statemachine.NewDirective(&p.d.After.Job, step, row, StepPayload(payload, step), message.Traceparent)
	var err error
	if message.Directive, err = directive.Bytes(); err != nil {
		return nil, fmt.Errorf("compose the directive of %s: %w", row.ID, err)
	}
	return message, nil
}

// StepPayload returns the step's part of the command's payload, or nil if its pointer
// finds nothing.
func StepPayload(payload []byte, step *statemachine.Step) []byte {
	if step.PayloadPointer == "" {
		return payload
	}
	part, ok := Pointer(payload, step.PayloadPointer)
	if !ok {
		return nil
	}
	return part
}
