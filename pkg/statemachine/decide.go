package statemachine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// Env holds the inputs of a decision from outside the aggregate.
type Env struct {
	// Now is the time of the change. Required.
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
	// Bus is the bus that new rows are created for. Required.
	Bus Bus
	// Prompt reports whether a new row of such a directive goes out at once: with the
	// pull queue by this very change, with Service Bus by the relay of this process.
	// Any other row waits in the dispatch schedule. Optional: without it all wait. It
	// is called once, and only for a new row.
	Prompt func(target Target) bool
}

// Outcome is the result of an event.
type Outcome uint8

// The outcomes.
const (
	// Applied: the decision holds what changes.
	Applied Outcome = iota + 1
	// Duplicate: it was applied before, or its effect already holds. Nothing changes.
	Duplicate
	// Refused: it must not be applied; Code and Reason say why. Nothing changes.
	Refused
)

// String returns the outcome's wire name.
func (o Outcome) String() string {
	names := [...]string{"unknown", Applied: "applied", Duplicate: "duplicate", Refused: "refused"}
	if int(o) >= len(names) {
		return names[0]
	}
	return names[o]
}

// Code is the machine-readable reason of a refusal.
type Code string

// The codes.
const (
	CodeStaleAttempt        Code = "stale_attempt"
	CodeContradictoryResult Code = "contradictory_result"
	CodeIllegalTransition   Code = "illegal_transition"
	CodeStepNotFound        Code = "step_not_found"
	CodeNotDue              Code = "not_due"
	CodeNotAfterPassed      Code = "not_after_passed"
)

// The error codes that the state machine itself sets on jobs and steps.
const (
	ErrorAckTimeout        = "ack_timeout"
	ErrorPublishRejected   = "publish_rejected" // while another publish follows
	ErrorDispatchExhausted = "dispatch_exhausted"
	ErrorLeaseExpired      = "lease_expired"
	ErrorStepTimeout       = "step_timeout"
	ErrorCancelled         = "cancelled"
	ErrorExpired           = "expired"    // not started by its not_after
	ErrorSuperseded        = "superseded" // cancelled for a newer job of its line
)

// ErrorWorkerStopped is the error code with which a worker reports that it ends an attempt because
// it stops. Such an attempt spends no budget, see [FreeAttempts], unless the step allows no retry.
const ErrorWorkerStopped = "worker_stopped"

// Object names what a [Transition] is of.
type Object string

// The objects.
const (
	ObjectJob    Object = "job"
	ObjectStep   Object = "step"
	ObjectOutbox Object = "outbox"
)

// Transition is one entry of a change's history. From and To are equal if something
// happened without a change of state.
type Transition struct {
	Object    Object `json:"object"`
	ID        string `json:"object_id,omitempty"` // the step's id, or the outbox row's; empty for the job
	Type      string `json:"type"`                // canonical event type, such as "step.succeeded"
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	AttemptNo int    `json:"attempt_no,omitempty"`
	Owner     string `json:"owner,omitempty"` // the worker that held the attempt that ended, in the pull queue
	Cause     string `json:"cause,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

// WakeKind is the kind of schedule entry that a job needs.
type WakeKind uint8

// The kinds. A dispatch entry asks a relay to publish, a timer the sweeper to check the
// job's deadlines, and a date the sweeper to check those of a job that has not begun.
const (
	WakeNone WakeKind = iota
	WakeTimer
	WakeDispatch
	WakeDate
)

// Wake is the next time at which a relay or the sweeper must look at the job.
type Wake struct {
	Kind WakeKind
	At   time.Time
}

// Decision is the result of [Decide].
type Decision struct {
	Outcome Outcome
	Code    Code   // set when Refused
	Reason  string // a sentence for people, set when Refused or Duplicate

	// After is the aggregate with the change applied; unchanged unless Applied.
	After Aggregate
	// Light says that only Step rows change, under their ETag: no rev, no
	// journal. A heartbeat is light.
	Light bool
	// Steps are the indexes of the changed steps.
	Steps []int
	// Replaced is the changed outbox row, Added the new one; either may be nil.
	Replaced *Outbox
	Added    *Outbox
	// Dispatch is the row whose directive is to be made and stored with this
	// change, because its pair is new; else nil.
	Dispatch *Outbox
	// Hot says that this process's own relay publishes the row.
	Hot bool
	// History holds the entries for the journal row of this change, and Report what the
	// callback that caused it says about its sending.
	History []Transition
	Report  Report
	// Wake is what the job needs next, unless Light.
	Wake Wake
	// Ended says that this change made the job terminal.
	Ended bool
}

// Decide says what the event does to the aggregate. It is a pure function of
// its arguments. The error is an [*IllegalEdgeError], a defect of this package
// or a corrupt aggregate: nothing must be written then.
func Decide(aggregate Aggregate, event Event, env Env) (Decision, error) {
	env.Now = env.Now.UTC().Truncate(time.Millisecond)
	c := &change{env: env, agg: aggregate, d: Decision{Outcome: Applied}}
	c.agg.Steps = slices.Clone(aggregate.Steps)
	if aggregate.Outbox != nil {
		row := *aggregate.Outbox
		c.agg.Outbox = &row
	}
	event.decide(c)
	if c.err != nil {
		return Decision{}, fmt.Errorf("%s: %w", event.Name(), c.err)
	}
	if c.d.Outcome != Applied {
		c.d.After = aggregate
		return c.d, nil
	}
	slices.Sort(c.d.Steps)
	if !c.d.Light {
		c.agg.Job.Rev++
		c.agg.Job.UpdatedAt = env.Now
		if c.agg.stage() != aggregate.stage() {
			c.agg.Job.StageAt = env.Now
		}
		c.d.Wake = NextWake(&c.agg)
		if c.d.Hot { // The timer is the safety net of the hot path.
			c.d.Wake.Kind = WakeTimer
		}
	}
	c.d.After = c.agg
	return c.d, nil
}

// IllegalEdgeError is returned when a change would leave the transition tables.
type IllegalEdgeError struct {
	Object   Object
	ID       string
	From, To string
}

// Error names the edge.
func (e *IllegalEdgeError) Error() string {
	return fmt.Sprintf("illegal transition of %s %q from %s to %s", e.Object, e.ID, e.From, e.To)
}

// change builds a decision: a copy of the aggregate that moves along listed edges, and the
// decision so far. Its outcome is Applied unless an event ends it otherwise.
type change struct {
	env Env
	agg Aggregate
	d   Decision
	err error // the first edge that is not listed
}

// duplicate ends the change because it was applied before.
func (c *change) duplicate(reason string) {
	c.d = Decision{Outcome: Duplicate, Reason: reason}
}

// refuse ends the change because it must not be applied.
func (c *change) refuse(code Code, format string, args ...any) {
	c.d = Decision{Outcome: Refused, Code: code, Reason: fmt.Sprintf(format, args...)}
}

func (c *change) note(t Transition) { c.d.History = append(c.d.History, t) }

// noteStep adds a history entry for an event that leaves the step's state unchanged.
func (c *change) noteStep(step *Step, eventType, cause string) {
	c.note(Transition{
		Object: ObjectStep, ID: step.ID, Type: eventType, From: string(step.State), To: string(step.State),
		AttemptNo: step.AttemptNo, Cause: cause,
	})
}

// follow moves a state along one edge and adds the transition to the history. It
// reports whether the edge is listed.
func follow[S ~string](c *change, edges []Edge[S], state *S, to S, t Transition) bool {
	t.From, t.To = string(*state), string(to)
	t.Type = eventType(t.Object, t.From, t.To)
	if !slices.ContainsFunc(edges, func(e Edge[S]) bool { return e.From == *state && e.To == to }) {
		if c.err == nil {
			c.err = &IllegalEdgeError{Object: t.Object, ID: cmp.Or(t.ID, c.agg.Job.ID), From: t.From, To: t.To}
		}
		return false
	}
	c.note(t)
	*state = to
	return true
}

// job moves the job along one edge.
func (c *change) job(to JobState, cause string) {
	job := &c.agg.Job
	if !follow(c, JobEdges, &job.State, to, Transition{Object: ObjectJob, Cause: cause}) {
		return
	}
	job.Parked = to == JobQueued && job.NotBefore.After(c.env.Now)
	if to.Terminal() {
		job.CompletedAt = c.env.Now
		c.d.Ended = true
	}
}

// step moves a step along one edge.
func (c *change) step(step *Step, to StepState, cause, detail string) {
	t := Transition{Object: ObjectStep, ID: step.ID, AttemptNo: step.AttemptNo, Cause: cause, Detail: detail}
	if to != StepInProgress {
		t.Owner = step.Holder()
	}
	if !follow(c, StepEdges, &step.State, to, t) {
		return
	}
	c.touch(step)
	if to != StepInProgress {
		step.Progress = nil
	}
	if to.Terminal() {
		step.CompletedAt = c.env.Now
		step.LeaseExpiresAt = time.Time{}
		step.NextAttemptAt = time.Time{}
	}
}

// touch marks a step as changed now.
func (c *change) touch(step *Step) {
	step.UpdatedAt = c.env.Now
	c.mark(step)
}

// mark marks a step as changed.
func (c *change) mark(step *Step) {
	if !slices.Contains(c.d.Steps, step.Index) {
		c.d.Steps = append(c.d.Steps, step.Index)
	}
}

// outbox moves the active outbox row along one edge.
func (c *change) outbox(to OutboxState, cause string) {
	row := c.agg.Outbox
	if !follow(c, OutboxEdges, &row.State, to, Transition{
		Object: ObjectOutbox, ID: row.ID, AttemptNo: row.AttemptNo, Cause: cause,
	}) {
		return
	}
	row.UpdatedAt = c.env.Now
	if to != OutboxPending {
		row.DueAt = time.Time{}
	}
	if to == OutboxSent {
		row.SentAt = c.env.Now
	}
	if c.d.Added == nil {
		c.d.Replaced = row
	}
}

// outboxSame moves the row from PENDING to PENDING, under its own event type.
func (c *change) outboxSame(eventType, cause string) {
	c.outbox(OutboxPending, cause)
	c.d.History[len(c.d.History)-1].Type = eventType
}

// active returns the active step, nil if all are terminal.
func (c *change) active() *Step {
	if i, ok := c.agg.Active(); ok {
		return &c.agg.Steps[i]
	}
	return nil
}

// deadline returns now + delay, rounded up to the millisecond in which the schedule counts,
// so that a deadline and its entry agree.
func deadline(now time.Time, delay time.Duration) time.Time {
	at := now.Add(delay)
	if cut := at.Truncate(time.Millisecond); !cut.Equal(at) {
		return cut.Add(time.Millisecond)
	}
	return at
}

// The maximum number of bytes of a worker's or a bus's texts that are stored and sent on.
const (
	maxCode     = 128
	maxMessage  = 1024
	maxProgress = 256
)

// truncate cuts a text at a rune boundary.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// NextWake is the next time at which a relay or the sweeper must look at the job, by
// its rows alone. A live job without one does not expire, and is paused with no attempt under
// way, waits for its turn in its line, or waits in the pull queue for a worker.
func NextWake(agg *Aggregate) Wake {
	i, ok := agg.Active()
	if !ok || agg.Job.State.Terminal() {
		return Wake{}
	}
	wake := Wake{Kind: WakeTimer}
	switch step := &agg.Steps[i]; {
	case agg.Job.Parked:
		wake.At = agg.Job.NotBefore
	case agg.Job.State == JobPaused || agg.Job.State == JobQueued:
	case step.State == StepDispatching:
		wake = Wake{Kind: WakeDispatch, At: agg.Outbox.DueAt}
	case step.State == StepAwaitingAck || step.State == StepInProgress:
		wake.At = step.attemptEnd()
	case step.State == StepFailedRetry:
		wake.At = step.NextAttemptAt
	}
	if expiry := agg.Expiry(); !expiry.IsZero() && (wake.At.IsZero() || expiry.Before(wake.At)) {
		wake = Wake{Kind: WakeTimer, At: expiry}
	}
	switch {
	case wake.At.IsZero():
		return Wake{}
	case !agg.Job.begun():
		wake.Kind = WakeDate
	}
	return wake
}
