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
// tells the ledger, and moves the item in the same change. There is one clock,
// the ledger's: an item's lease is its step's.
//
// So no two workers ever hold one pair of attempt and lease, and no item is
// handed out whose pair is not current.
//
// # Torn apart
//
// A store that can not write ledger and item at once lets a crash, a lost write
// or another process come between the two. Then the item follows the ledger:
//
//   - Once the ledger has applied a request, it is not refused any more: the
//     item is read again and moved from where it is, or follows its step. The
//     one exception is a heartbeat, which leaves nothing to follow.
//   - A request that the item would refuse is judged again by what the item
//     shows after it has followed. One that the job's journal has is a repeat.
//   - Where the ledger's step says that the item has moved, or should have, the
//     ledger is not told before the item was read again.
//   - The requests on one item take turns within the process, so that the second
//     sees what the first has done.
//
// # Finding work
//
// Ready items are mirrored in memory for the claims of this process, in turns
// over the tenants, oldest first within one; hint rows let another process, or
// the next one, find them: claims look for those about once a second. What a
// claim takes is remembered by a row for each item, in the claim's own change,
// or where the store can not do that, before it.
//
// Source: Job lifecycle plan 02.
package workqueue
