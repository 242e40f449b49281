package statemachine

import "time"

// Outcome is what became of an event.
type Outcome uint8

// The outcomes.
const (
	// Applied: the decision holds what changes.
	Applied Outcome = iota + 1
	// Duplicate: it was applied before, or is so already. Nothing changes.
	Duplicate
	// Refused: it must not be applied; Code and Reason say why. Nothing changes.
	Refused
)

// String returns the outcome's wire name.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Duplicate:
		return "duplicate"
	case Refused:
		return "refused"
	}
	return "unknown"
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
)

// The error codes of the state machine's own on jobs and steps.
const (
	ErrorAckTimeout        = "ack_timeout"
	ErrorPublishRejected   = "publish_rejected" // while another publish follows
	ErrorDispatchExhausted = "dispatch_exhausted"
	ErrorLeaseExpired      = "lease_expired"
	ErrorStepTimeout       = "step_timeout"
	ErrorCancelled         = "cancelled"
)

// Object names what a [Transition] is of.
type Object string

// The objects.
const (
	ObjectJob    Object = "job"
	ObjectStep   Object = "step"
	ObjectOutbox Object = "outbox"
)

// Transition is one entry of a change's history. From and To are equal where
// something happened without a change of state.
type Transition struct {
	Object    Object
	ID        string // the step's id, or the outbox row's; empty for the job
	Type      string // canonical event type, such as "step.succeeded"
	From      string
	To        string
	AttemptNo int
	Cause     string
	Detail    string
}

// WakeKind is the kind of schedule entry that a job needs.
type WakeKind uint8

// The kinds. A dispatch entry asks a relay to publish, a timer the sweeper to
// look at the job.
const (
	WakeNone WakeKind = iota
	WakeTimer
	WakeDispatch
)

// Wake is the next time at which somebody must look at the job.
type Wake struct {
	Kind WakeKind
	At   time.Time
}

// Fenced is a callback that was refused as stale and is to be recorded.
type Fenced struct {
	StepID    string
	StepIndex int
	AttemptNo int
	Kind      string
}

// Decision is what [Decide] makes of an event.
type Decision struct {
	Outcome Outcome
	Code    Code   // set when Refused
	Reason  string // a sentence for people, set when Refused or Duplicate

	// After is the aggregate as it is then; the one before unless Applied.
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
	// change, because its pair is new; nil where no pair is.
	Dispatch *Outbox
	// Hot says that the row is for this process's own relay.
	Hot bool
	// History is what the journal row of this change holds.
	History []Transition
	// Wake is what the job needs next, unless Light.
	Wake Wake
	// Fenced is set when a stale callback is to be recorded.
	Fenced *Fenced
	// Ended says that the job became terminal by this change.
	Ended bool
}
