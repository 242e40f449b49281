// Package statemachine decides what happens to a job, its steps and its work items. It is pure: it takes an
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
//	operator's retry or stall, priority, shutdown   nothing
//
// [Policy.MaxAttempts] caps the sum. The attempt number is only the fence.
//
// # Deadlines
//
// A step has one deadline at a time: of its ACK, then of its lease. A decision
// says when a relay or the sweeper must look at the job next ([Wake]).
//
// # Work items
//
// To the workers of the pull queue an attempt, with its re-deliveries after a stall, is a
// work item. The item_*.go files are the policy of that queue, whatever its storage: the
// statuses of an [Item], who may move it from one to the next, and what each move changes.
// A queue loads an item, asks for the [ItemChange], and writes item and events in one step.
//
//	enqueue
//	   │
//	   ▼       claimNext           start           complete
//	queued ────────────────▶ claimed ──────▶ running ───────▶ succeeded
//	   ▲                     ▲  │ ↺             │ │ ↺
//	   │           claimNext │  │ stall   stall │ └─────────▶ failed
//	   │           (reclaim) │  ▼               │    fail
//	   └──────────────────── stalled ◀──────────┘
//	     requeueStalled                            ↺ heartbeat
//
// The arrows are data, the table behind [ItemTransitions]. [ValidateItem] checks what must
// hold in each status, [ValidateItemHistory] what must hold of an item's events.
//
// # Who moves an item
//
// Any worker may claim a queued item. Only its owner moves a claimed or running
// item, under a lease, until the system stalls it. Only the system offers a stalled
// item again. Nothing moves a succeeded or failed item. If the owner reports past
// the queue, the queue makes the owner's move in the owner's name.
//
// An expired lease is a reason for a stall and changes nothing by itself: until the
// queue stalls the item, its owner may still move it.
//
// # How a request is checked, in this order
//
//  1. It is complete: actor, expected rev and request id; else [ErrInvalidRequest],
//     which names the field.
//  2. It is not a repeat. Actor and id identify a request. The same move again
//     returns the item as it is and changes nothing, whatever happened since;
//     another move under a used id is refused.
//  3. An owner's move comes from the owner, by its current claim: not at a rev from
//     before it ([ErrNotOwner]). If the item has no owner, its status decides, see 5.
//  4. The item is at the expected rev ([ErrRevConflict]).
//  5. The table has the move ([ErrIllegalTransition]).
//
// A worker makes a new request id for each request and sends it again only to
// repeat that request. The item itself remembers the ids ([Item.Requests]), so every
// replica recognises a repeat, also after a crash.
//
// # Counting
//
// attempt counts claims: 0 at first, one more on each entry to claimed. rev counts
// accepted moves, heartbeats included: enqueue makes it 1, each event has its own
// rev, a repeat has none. Both survive a requeue.
//
// # What the queue decides
//
// How long leases last, when an item is stalled, whether a worker may reclaim a
// stalled item directly, and which item a claim takes. A dedupe key is opaque.
//
// # How a step is seen as a work item
//
// A work item is not a separate record:
//
//	Step row, Outbox row, ItemRecord ──ViewItem──▶ Item ──▶ ValidateItem
//
//	Decision ──FollowItem──▶ ItemMoves: the record after the change,
//	                         the one it ended, and the item's events
//
// An [ItemRecord] holds only what the Step row (state, attempt, lease, deadline,
// references, error) lacks: the owner, the number of claims, the item's rev and the
// requests that it remembers. [ViewItem] combines both. [FollowItem] derives from a decision
// of the state machine the moves of the item, so that step and item change in one
// commit, whichever transport brought the event.
//
// The first row of this table that fits says its status. An attempt on Service Bus has no item.
//
//	step                                outbox   record              status
//	any, reported on without a claim    SENT     removed             no item
//	PENDING, or DISPATCHING             PENDING  none open           no item
//	DISPATCHING                         PENDING  open, no owner      stalled
//	AWAITING_ACK, no deadline           SENT     open, no owner      queued
//	AWAITING_ACK, deadline              SENT     owner               claimed
//	IN_PROGRESS                         SENT     owner               running
//	FAILED_RETRY by deadline, operator  SENT     open, no owner      stalled
//	FAILED_RETRY by RESULT              SENT     ended               failed
//	CANCELLED after that                SENT     ended               failed
//	FAILED_RETRY by withdrawal          any      removed             no item
//	ended by RESULT while held          SENT     ended               succeeded, failed
//	ended otherwise                     any      removed             no item
//
// Source: Ledger and state model, Phase 1; Option B spec, sections 13 to 19;
// Orchestrator flow canvas; Job lifecycle plan 02.
package statemachine
