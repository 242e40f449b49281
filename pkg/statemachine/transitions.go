package statemachine

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
	{JobQueued, JobPausing, "pause request"},
	{JobDispatching, JobPausing, "pause request"},
	{JobInProgress, JobPausing, "pause request"},
	{JobPausing, JobPaused, "no live attempt left"},
	{JobPausing, JobDispatching, "resume request, step 0 never ACKed"},
	{JobPausing, JobInProgress, "resume request"},
	{JobPaused, JobDispatching, "resume request, step 0 never ACKed"},
	{JobPaused, JobInProgress, "resume request"},
	{JobPausing, JobCancelling, "cancel request"},
	{JobPaused, JobCancelling, "cancel request"},
	{JobPausing, JobSucceeded, "the step in hand was the last"},
	{JobPausing, JobFailedFinal, "the step in hand failed final"},
	{JobPaused, JobSucceeded, "a late RESULT ended the last step"},
	{JobPaused, JobFailedFinal, "a late RESULT failed the step"},
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
	{StepDispatching, StepFailedFinal, "publish budget exhausted"},
	{StepAwaitingAck, StepFailedFinal, "ACK budget exhausted"},
	{StepFailedRetry, StepSucceeded, "late RESULT with the still current pair"},
	{StepFailedRetry, StepFailedFinal, "late RESULT with the still current pair"},
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

// legal reports whether the edge is listed.
func legal[S ~string](edges []Edge[S], from, to S) bool {
	for i := range edges {
		if edges[i].From == from && edges[i].To == to {
			return true
		}
	}
	return false
}
