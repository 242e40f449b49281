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
// A work item is no record of its own. It is an attempt of a step, seen as the
// queue sees it (package workitem), and what it may do is the law of package
// lifecycle. Each verb is one change of the job: the policy is asked first, then
// the state machine, and one commit writes step, outbox row, item and journal. A
// claim is the delivery, start the ACK, heartbeat the lease's, complete and fail
// the RESULT. There is one clock, the ledger's: the lease of an item is that of
// its step. So no two workers ever hold one pair of attempt and lease, and no
// item is handed out whose pair is not current.
//
// The commit that marks an outbox row SENT is its publication. A row waits for a
// relay only while a pause holds it back.
//
// # Finding work
//
// The ready index holds one hint for each queued item, written before the commit
// that queues it. A hint proves nothing: a claim loads the job and takes the item
// only if it names that hint. [Mirror] keeps the head of the index in memory, one
// queue for each tenant, and reads on when a queue runs low, so a backlog of any
// length drains at the speed of the workers. Claims pick in turns over the
// tenants, oldest first within one. What other processes queue is found within a
// second.
//
//	take ──▶ pick from the mirror ──▶ ledger.Claim ──▶ items, or void hints deleted
//	  ▲            │ too few
//	  └── read on ◀┘
//
// # Repeats
//
// A verb's request id is remembered in the item. What a claim took is remembered
// by one row for each owner and request id, written with the claims, on a store
// that is not atomic before the first of them: a repeat finds there which items to
// look at, and the items say whether it holds them.
//
// Source: Job lifecycle plan 02.
package workqueue
