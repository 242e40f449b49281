package statemachine

import (
	"slices"
	"strings"
)

// JobState is the state of a job.
//
// Source: Ledger and state model, Job states; Option B spec, 18.1 (pause).
type JobState string

// The job states, each with who acts next.
const (
	JobQueued      JobState = "QUEUED"       // ours: the first step has no attempt yet
	JobDispatching JobState = "DISPATCHING"  // ours, then the first worker's: step 0 was never ACKed
	JobInProgress  JobState = "IN_PROGRESS"  // a worker's, or ours between two attempts
	JobPausing     JobState = "PAUSING"      // a worker's: the live attempt may finish
	JobPaused      JobState = "PAUSED"       // the operator's: resume or cancel
	JobCancelling  JobState = "CANCELLING"   // a worker's, until its attempt ends or expires
	JobCancelled   JobState = "CANCELLED"    // terminal
	JobSucceeded   JobState = "SUCCEEDED"    // terminal
	JobFailedFinal JobState = "FAILED_FINAL" // terminal
)

// JobStates lists all job states.
var JobStates = []JobState{
	JobQueued, JobDispatching, JobInProgress, JobPausing, JobPaused,
	JobCancelling, JobCancelled, JobSucceeded, JobFailedFinal,
}

// Terminal reports whether the state is final; a job in it never changes.
func (s JobState) Terminal() bool {
	return s == JobCancelled || s == JobSucceeded || s == JobFailedFinal
}

// StepState is the state of a step.
//
// Source: Ledger and state model, Step states. AWAITING_ACK is the flow
// canvas's INITIATED, IN_PROGRESS its PROCESSING.
type StepState string

// The step states, each with who acts next.
const (
	StepPending     StepState = "PENDING"      // ours: an earlier step is not done, or the job is paused
	StepDispatching StepState = "DISPATCHING"  // the relay's: the directive is to be published
	StepAwaitingAck StepState = "AWAITING_ACK" // a worker's: take the directive and ACK it
	StepInProgress  StepState = "IN_PROGRESS"  // the worker's: heartbeat and RESULT
	StepFailedRetry StepState = "FAILED_RETRY" // the sweeper's: dispatch again at next_attempt_at
	StepSucceeded   StepState = "SUCCEEDED"    // terminal
	StepFailedFinal StepState = "FAILED_FINAL" // terminal
	StepCancelled   StepState = "CANCELLED"    // terminal
)

// StepStates lists all step states.
var StepStates = []StepState{
	StepPending, StepDispatching, StepAwaitingAck, StepInProgress,
	StepFailedRetry, StepSucceeded, StepFailedFinal, StepCancelled,
}

// Terminal reports whether the state is final; a step in it never changes.
func (s StepState) Terminal() bool {
	return s == StepSucceeded || s == StepFailedFinal || s == StepCancelled
}

// OutboxState is the state of an outbox row.
//
// Source: Ledger and state model, Outbox states.
type OutboxState string

// The outbox states.
const (
	OutboxPending     OutboxState = "PENDING"      // the relay's: publish it
	OutboxSent        OutboxState = "SENT"         // terminal: published at least once
	OutboxFailedFinal OutboxState = "FAILED_FINAL" // terminal: never published, or withdrawn
)

// OutboxStates lists all outbox states.
var OutboxStates = []OutboxState{OutboxPending, OutboxSent, OutboxFailedFinal}

// Terminal reports whether the state is final; a row in it never changes.
func (s OutboxState) Terminal() bool { return s != OutboxPending }

// Edge is one legal transition with what triggers it.
type Edge[S ~string] struct {
	From    S
	To      S
	Trigger string
}

// JobEdges are the legal transitions of a job.
//
// Source: Ledger and state model, Job transition table; the edges that pause,
// resume and a failing first step need beyond it are marked.
var JobEdges = []Edge[JobState]{
	{JobQueued, JobDispatching, "first step's outbox row created"},
	{JobDispatching, JobInProgress, "step 0 ACKed"},
	{JobInProgress, JobInProgress, "step N succeeded, step N+1 activated"},
	{JobInProgress, JobSucceeded, "final step succeeded"},
	{JobInProgress, JobFailedFinal, "step failed final"},
	{JobQueued, JobCancelling, "cancel request"},
	{JobDispatching, JobCancelling, "cancel request"},
	{JobInProgress, JobCancelling, "cancel request"},
	{JobCancelling, JobCancelled, "no live attempt left"},

	// Beyond the Phase 1 table.
	{JobDispatching, JobFailedFinal, "first step failed final"},
	{JobQueued, JobFailedFinal, "expired"},
	{JobQueued, JobPausing, "pause request"},
	{JobDispatching, JobPausing, "pause request"},
	{JobInProgress, JobPausing, "pause request"},
	{JobPausing, JobPaused, "no live attempt left"},
	{JobPausing, JobDispatching, "resume request, step 0 never ACKed"},
	{JobPausing, JobInProgress, "resume request"},
	{JobPaused, JobQueued, "resume request before its date"},
	{JobPaused, JobDispatching, "resume request, step 0 never ACKed"},
	{JobPaused, JobInProgress, "resume request"},
	{JobPausing, JobCancelling, "cancel request"},
	{JobPaused, JobCancelling, "cancel request"},
	{JobPausing, JobSucceeded, "the step in hand was the last"},
	{JobPausing, JobFailedFinal, "the step in hand failed final"},
	{JobPaused, JobSucceeded, "a late RESULT ended the last step"},
	{JobPaused, JobFailedFinal, "a late RESULT failed the step, or expired"},
}

// StepEdges are the legal transitions of a step.
//
// Source: Ledger and state model, Step transition table; the edges beyond it
// are marked.
var StepEdges = []Edge[StepState]{
	{StepPending, StepDispatching, "outbox row created"},
	{StepDispatching, StepAwaitingAck, "outbox row SENT"},
	{StepAwaitingAck, StepInProgress, "ACK"},
	{StepInProgress, StepSucceeded, "RESULT SUCCEEDED"},
	{StepInProgress, StepFailedFinal, "RESULT FAILED_FINAL, or budget exhausted"},
	{StepInProgress, StepFailedRetry, "RESULT FAILED_RETRY, or lease expired"},
	{StepAwaitingAck, StepFailedRetry, "ACK timeout, or withdrawn by pause"},
	{StepFailedRetry, StepDispatching, "retry dispatch"},
	{StepPending, StepCancelled, "cancel"},
	{StepDispatching, StepCancelled, "cancel"},
	{StepAwaitingAck, StepCancelled, "cancel"},
	{StepInProgress, StepCancelled, "cancel"},
	{StepFailedRetry, StepCancelled, "cancel"},

	// Beyond the Phase 1 table.
	{StepPending, StepFailedFinal, "expired"},
	{StepDispatching, StepFailedFinal, "publish budget exhausted, or expired"},
	{StepAwaitingAck, StepFailedFinal, "ACK budget exhausted, or expired"},
	{StepFailedRetry, StepSucceeded, "late RESULT with the still current pair"},
	{StepFailedRetry, StepFailedFinal, "late RESULT with the still current pair, or expired"},
	{StepDispatching, StepFailedRetry, "withdrawn by pause"},
	{StepDispatching, StepDispatching, "retry after a rejected publish, with a new pair"},
}

// OutboxEdges are the legal transitions of an outbox row. SENT to FAILED_FINAL
// does not exist: a published directive cannot be called back.
//
// Source: Ledger and state model, Outbox transition table; the edges beyond it
// are marked.
var OutboxEdges = []Edge[OutboxState]{
	{OutboxPending, OutboxSent, "publish succeeded"},
	{OutboxPending, OutboxFailedFinal, "publish failed final, or withdrawn"},

	// Beyond the Phase 1 table.
	{OutboxPending, OutboxPending, "due again"},
}

// The event types that do not name an object's new state.
const (
	EventJobAccepted    = "job.accepted"
	EventJobAdvanced    = "job.advanced"
	EventJobRescheduled = "job.rescheduled"
	EventJobPrioritized = "job.prioritized"
	EventStepRefenced   = "step.refenced"
	EventStepClaimed    = "step.claimed"
	EventStepExtended   = "step.extended"
	EventStepRetryNow   = "step.retry_requested"
	EventStepCarried    = "step.carried"
	EventStepResolved   = "step.resolved"
	EventOutboxPending  = "outbox.pending"
	EventOutboxDue      = "outbox.due"
	EventOutboxTaken    = "outbox.taken"
	EventOutboxRejected = "outbox.rejected"
	// EventCallbackRejected is the event of a refused callback. It is not part of a change.
	EventCallbackRejected = "step.callback_rejected"
)

// EventTypes returns all types of history entries.
func EventTypes() []string {
	types := []string{
		EventJobAccepted, EventJobRescheduled, EventJobPrioritized, EventStepClaimed, EventStepExtended, EventStepRetryNow,
		EventStepCarried, EventStepResolved,
		EventOutboxPending, EventOutboxTaken, EventOutboxRejected, EventCallbackRejected,
	}
	types = appendTypes(types, ObjectJob, JobEdges)
	types = appendTypes(types, ObjectStep, StepEdges)
	return appendTypes(types, ObjectOutbox, OutboxEdges)
}

// appendTypes appends the types of the edges that are not in the list.
func appendTypes[S ~string](types []string, object Object, edges []Edge[S]) []string {
	for _, e := range edges {
		if name := eventType(object, string(e.From), string(e.To)); !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	return types
}

// eventType is the canonical type of a transition: the object and the state
// that it entered, or a separate type if the state stays.
func eventType(object Object, from, to string) string {
	if object == ObjectJob && to == string(JobQueued) {
		return EventJobRescheduled // It waits for its date again.
	}
	if from != to {
		return string(object) + "." + strings.ToLower(to)
	}
	switch object {
	case ObjectJob:
		return EventJobAdvanced
	case ObjectStep:
		return EventStepRefenced
	case ObjectOutbox:
	}
	return EventOutboxDue
}
