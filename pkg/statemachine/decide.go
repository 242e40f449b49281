package statemachine

import (
	"fmt"
	"slices"
	"time"
)

// Env is what a decision takes from outside the aggregate.
type Env struct {
	// Now is the one time of the change. Required.
	Now time.Time
	// LeaseID is a fresh unguessable id, used if the decision makes a new pair.
	// Required.
	LeaseID string
	// Random is a fresh number in [0, 1), used for the jitter of a delay.
	Random float64
	// Jitter is the part of a delay that is randomised, 0 to 1.
	Jitter float64
	// Hold is how long a relay holds a row that it publishes: the publish
	// deadline and a margin.
	Hold time.Duration
	// Bus is what new rows are made for. Required.
	Bus Bus
	// Prompt says whether a new row of such a directive goes out at once: with the
	// pull queue by this very change, with Service Bus by the relay of this process.
	// Any other row waits in the dispatch schedule. Optional: without it all wait. It
	// is asked once, and only for a new row.
	Prompt func(tenantID, protocolID string, lane int) bool
}

// Decide says what the event does to the aggregate. It is a pure function of
// its arguments. The error is an [*IllegalEdgeError], a defect of this package
// or a corrupt aggregate: nothing must be written then.
func Decide(aggregate Aggregate, event Event, env Env) (Decision, error) {
	env.Now = env.Now.UTC().Truncate(time.Millisecond)
	m := &move{env: env, agg: aggregate}
	m.agg.Steps = slices.Clone(aggregate.Steps)
	if aggregate.Outbox != nil {
		row := *aggregate.Outbox
		m.agg.Outbox = &row
	}
	m.handle(event)
	if m.err != nil {
		return Decision{}, fmt.Errorf("%s: %w", event.Name(), m.err)
	}
	if m.d.Outcome != Applied {
		m.d.After = aggregate
		return m.d, nil
	}
	m.finish()
	return m.d, nil
}

// handle dispatches the event.
func (m *move) handle(event Event) {
	switch e := event.(type) {
	case Accept:
		m.accept(e)
	case DispatchClaimed:
		m.dispatchClaimed(e)
	case Published:
		m.published(e)
	case PublishRejected:
		m.publishRejected(e)
	case Claimed:
		m.claimed(e)
	case ClaimExtended:
		m.claimExtended(e)
	case Ack:
		m.ack(e)
	case Heartbeat:
		m.heartbeat(e)
	case Result:
		m.result(e)
	case DeadlinePassed:
		m.deadlinePassed(e)
	case Cancel:
		m.cancel(e)
	case Pause:
		m.pause(e)
	case Resume:
		m.resume(e)
	case Retry:
		m.retry(e)
	case Stall:
		m.stall(e)
	}
}

// IllegalEdgeError is returned when a walk would leave the transition tables.
type IllegalEdgeError struct {
	Object   Object
	ID       string
	From, To string
}

// Error names the edge.
func (e *IllegalEdgeError) Error() string {
	return fmt.Sprintf("illegal transition of %s %q from %s to %s", e.Object, e.ID, e.From, e.To)
}

// move is one decision in the making: a copy of the aggregate that is walked
// along listed edges, and what the walk leaves behind.
type move struct {
	env Env
	agg Aggregate
	d   Decision
	err error
	// added says that the aggregate's outbox row is new with this move.
	added bool
	// wake overrides the wake that follows from the aggregate.
	wake *Wake
}

// duplicate ends the move without a change.
func (m *move) duplicate(reason string) {
	m.d = Decision{Outcome: Duplicate, Reason: reason}
}

// refuse ends the move without a change.
func (m *move) refuse(code Code, format string, args ...any) {
	m.d = Decision{Outcome: Refused, Code: code, Reason: fmt.Sprintf(format, args...)}
}

// apply marks the move as one that changes something.
func (m *move) apply() { m.d.Outcome = Applied }

// note adds a history entry.
func (m *move) note(t Transition) { m.d.History = append(m.d.History, t) }

// job walks the job along one edge.
func (m *move) job(to JobState, cause string) {
	job := &m.agg.Job
	if !legal(JobEdges, job.State, to) {
		m.illegal(ObjectJob, job.ID, string(job.State), string(to))
		return
	}
	m.note(Transition{
		Object: ObjectJob, Type: eventType(ObjectJob, string(job.State), string(to)),
		From: string(job.State), To: string(to), Cause: cause,
	})
	job.State = to
	if to.Terminal() {
		job.CompletedAt = m.env.Now
		m.d.Ended = true
	}
}

// step walks a step along one edge.
func (m *move) step(i int, to StepState, cause, detail string) {
	step := &m.agg.Steps[i]
	if !legal(StepEdges, step.State, to) {
		m.illegal(ObjectStep, step.ID, string(step.State), string(to))
		return
	}
	m.note(Transition{
		Object: ObjectStep, ID: step.ID, Type: eventType(ObjectStep, string(step.State), string(to)),
		From: string(step.State), To: string(to), AttemptNo: step.AttemptNo, Cause: cause, Detail: detail,
	})
	step.State = to
	m.touch(i)
	if to.Terminal() {
		step.CompletedAt = m.env.Now
		step.LeaseExpiresAt = time.Time{}
		step.NextAttemptAt = time.Time{}
	}
}

// touch marks a step as changed.
func (m *move) touch(i int) {
	m.agg.Steps[i].UpdatedAt = m.env.Now
	if !slices.Contains(m.d.Steps, i) {
		m.d.Steps = append(m.d.Steps, i)
	}
}

// outbox walks the active outbox row along one edge.
func (m *move) outbox(to OutboxState, cause string) {
	row := m.agg.Outbox
	if !legal(OutboxEdges, row.State, to) {
		m.illegal(ObjectOutbox, row.ID, string(row.State), string(to))
		return
	}
	m.note(Transition{
		Object: ObjectOutbox, ID: row.ID, Type: eventType(ObjectOutbox, string(row.State), string(to)),
		From: string(row.State), To: string(to), AttemptNo: row.AttemptNo, Cause: cause,
	})
	row.State = to
	row.UpdatedAt = m.env.Now
	if to == OutboxSent {
		row.SentAt = m.env.Now
	}
	if !m.added {
		m.d.Replaced = row
	}
}

// illegal records the first edge that is not listed.
func (m *move) illegal(object Object, id, from, to string) {
	if m.err == nil {
		m.err = &IllegalEdgeError{Object: object, ID: id, From: from, To: to}
	}
}

// finish completes an applied decision.
func (m *move) finish() {
	slices.Sort(m.d.Steps)
	if !m.d.Light {
		m.agg.Job.Rev++
		m.agg.Job.UpdatedAt = m.env.Now
		m.d.Wake = m.next()
	}
	m.d.After = m.agg
}

// next is the wake that the aggregate asks for.
func (m *move) next() Wake {
	if m.wake != nil {
		return *m.wake
	}
	return NextWake(&m.agg)
}

// NextWake is the next time at which somebody must look at the job, by its
// rows alone: a job that is not terminal and has none is paused with nothing
// in hand, or waits in the pull queue for a worker.
func NextWake(agg *Aggregate) Wake {
	if agg.Job.State.Terminal() || agg.Job.State == JobPaused {
		return Wake{}
	}
	i, ok := agg.Active()
	if !ok {
		return Wake{}
	}
	step := &agg.Steps[i]
	switch step.State {
	case StepDispatching:
		return Wake{Kind: WakeDispatch, At: agg.Outbox.DueAt}
	case StepAwaitingAck, StepInProgress:
		return timer(attemptEnd(step))
	case StepFailedRetry:
		return timer(step.NextAttemptAt)
	case StepPending, StepSucceeded, StepFailedFinal, StepCancelled:
	}
	return Wake{}
}

// timer is a timer wake, none for the zero time.
func timer(at time.Time) Wake {
	if at.IsZero() {
		return Wake{}
	}
	return Wake{Kind: WakeTimer, At: at}
}

// attemptEnd is the earlier of the lease's end and the absolute timeout.
func attemptEnd(step *Step) time.Time {
	end := step.LeaseExpiresAt
	if !step.TimeoutAt.IsZero() && step.TimeoutAt.Before(end) {
		return step.TimeoutAt
	}
	return end
}
