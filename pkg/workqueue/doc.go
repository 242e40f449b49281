// Package workqueue is the pull queue: the bus that needs nothing installed.
// Platform workers claim directives over HTTP instead of receiving them.
//
//	relay ──Publish──▶ item queued ──Claim──▶ claimed ──Start──▶ running
//	                        ▲                    │                  │
//	                        │                 (ACK timeout)   (lease expired)
//	                        │                    ▼                  │
//	                        └──re-dispatch──── stalled ◀────────────┤
//	                                                                ▼
//	                                              succeeded │ failed (RESULT)
//
// What an item may do is the law of package lifecycle. What is true is the
// ledger's to say: a claim is a delivery, start is the ACK, heartbeat the
// lease's, complete and fail are the RESULT. Each verb asks the item first,
// tells the ledger, and moves the item in the same change; where the two were
// separated by a crash, the item follows the ledger. There is one clock, the
// ledger's: an item's lease is its step's.
//
// So no two workers ever hold one pair of attempt and lease, and no item is
// handed out whose pair is not current.
//
// Ready items are mirrored in memory for the claims of this process, in turns
// over the tenants; hint rows let another process, or the next one, find them.
//
// Source: Job lifecycle plan 02.
package workqueue
