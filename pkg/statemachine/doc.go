// Package statemachine decides what happens to a job. It is pure: it takes an
// aggregate, an event, the time and fresh ids, and returns a decision. It does
// no I/O, reads no clock, draws no random numbers and logs nothing.
//
//	aggregate + event + Env ──▶ Decide ──▶ Decision
//	                                        changed rows, history, wake, outcome
//
// # The machines
//
// A job, one of its steps, and the outbox row of its active attempt move
// together. The legal transitions are data ([JobEdges], [StepEdges],
// [OutboxEdges]), and every composite change follows listed edges.
//
//	job    QUEUED ─▶ DISPATCHING ─▶ IN_PROGRESS ─▶ SUCCEEDED │ FAILED_FINAL
//	            any of these three ─▶ PAUSING ─▶ PAUSED ─▶ (resume)
//	            any not terminal ───▶ CANCELLING ─▶ CANCELLED
//
//	step   PENDING ─▶ DISPATCHING ─▶ AWAITING_ACK ─▶ IN_PROGRESS ─▶ SUCCEEDED
//	                       ▲               │ ACK timeout  │ lease     FAILED_FINAL
//	                       │               ▼              ▼           CANCELLED
//	                       └───────── FAILED_RETRY ◀──────┘
//
//	outbox PENDING ─▶ SENT │ FAILED_FINAL
//
// # Fencing
//
// Each attempt has a pair: its number and an unguessable lease id. A callback must carry
// the current pair; any other changes nothing. A step remembers its attempts, so that it
// recognises the repeat of an applied callback even after it has moved on. On Service Bus a
// worker may be faster than the relay's mark: the pair proves the publish. In the pull
// queue a worker gets the pair by a claim, so an attempt that is not SENT accepts no
// report. A worker may also be late: until the next dispatch, a RESULT that ends the step
// counts.
//
// # Buses
//
// A row is created for one bus ([Outbox.Bus]). The pull queue is in the store, so the
// change that creates a row publishes it, unless the row must wait. A process of the other
// bus gives a row that is still PENDING a new pair before it publishes it, and withdraws an
// attempt that waits in the queue for a claim.
//
// # Budgets
//
// A list of n delays allows n retries of its cause. What spends which budget:
//
//	publish rejected because of the message         dispatch
//	no ACK in time                                  ack
//	RESULT FAILED_RETRY, lease or timeout expired   execution
//	outage, unknown publish, pause, withdrawal,
//	operator's retry or stall, shutdown             nothing
//
// [Policy.MaxAttempts] caps the sum. The attempt number is only the fence.
//
// # Deadlines
//
// A step has one deadline at a time: of its ACK, then of its lease. A decision
// says when a relay or the sweeper must look at the job next ([Wake]).
//
// Source: Ledger and state model, Phase 1; Option B spec, sections 13 to 19;
// Orchestrator flow canvas.
package statemachine
