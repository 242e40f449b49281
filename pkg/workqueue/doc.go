// Package workqueue is the pull queue: the bus that needs nothing installed.
// Platform workers claim directives over HTTP instead of receiving them.
//
//	commit of the job ──▶ item queued ──Claim──▶ claimed ──Start──▶ running
//	                          ▲                    │                  │
//	                          │                 (ACK timeout)   (lease expired)
//	                          │                    ▼                  │
//	                          └──re-dispatch──── stalled ◀────────────┤
//	                                                                  ▼
//	                                                succeeded │ failed (RESULT)
//
// A work item is an attempt of a step as the queue sees it ([statemachine.FollowItem]), not a
// separate record. [statemachine.ItemTransitions] are its legal moves. Each verb is one change of
// the job: it consults that policy, then the state machine, and one commit writes step,
// outbox row, item and journal. Claim is the delivery, start the ACK, heartbeat extends the
// lease, complete and fail are the RESULT. The lease of an item is that of its step, on the
// ledger's clock, so no two workers ever hold the same pair of attempt and lease, and no
// claim returns an item whose pair is not current.
//
// The commit that marks an outbox row SENT is its publication. A row waits for a
// relay only while a pause holds it back.
//
// # Finding work
//
// The ready index holds one hint for each queued item, written before the commit that
// queues it. A hint proves nothing: a claim loads the job and takes the item only if it
// names that hint. [Mirror] keeps the head of the index in memory, one queue for each
// tenant, and reads ahead when a queue runs low, so a backlog of any length drains at the
// speed of the workers. Claims pick from the tenants in turn, oldest item first within a
// tenant, and find items queued by other processes within a second. On a store that is a
// [tablestore.Notifier], the other process wakes a claim at once.
//
//	take ──▶ pick from the mirror ──▶ ledger.Claim ──▶ items, or void hints deleted
//	  ▲            │ too few
//	  └─ read ahead ◀┘
//
// The change that queues an item may hand it to a waiting claim: see [Mirror.Taker].
//
// # Repeats
//
// The item remembers the request ids of its verbs. A row for each owner and request id
// remembers the candidates of a claim. It is written with the claims, or before the first
// of them if the store is not atomic. A repeat reads that row to find the candidates, and
// each item says whether the claim holds it.
//
// Source: Job lifecycle plan 02.
package workqueue
