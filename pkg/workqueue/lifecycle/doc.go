// Package lifecycle is the policy of the pull queue: which statuses a work item
// has, who may move it from one to the next, and what each move changes. It is
// pure. It does no I/O, reads no clock and makes no ids, so that a queue of any
// kind applies the same rules to its own storage: load an item, ask this
// package for the [Change], write item and events in one step.
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
// The arrows are data, the table behind [Transitions]; there are no others.
// [Validate] has what must hold in each status, [ValidateHistory] what must
// hold of an item's events.
//
// # Whose move it is
//
// queued is any worker's: whoever claims it first. claimed and running are the
// owner's alone, under a lease, until the system stalls the item. stalled is
// the system's: it offers the item again. succeeded and failed are nobody's,
// for good. Where an owner has reported past the queue, and the queue follows,
// it makes the owner's move in the owner's name.
//
// A lease that has expired authorises nobody and forbids nothing: it is the
// reason for a stall, and when a queue looks at it is the queue's business.
// Until then the item is its owner's, late or not.
//
// # What is asked of a move, in this order
//
//  1. The request is whole: who, which rev, which request id; else
//     [ErrInvalidRequest], which names the field.
//  2. It is not a repeat. A request is known by its actor and its id. The same
//     move again is answered with the item as it is, and changes nothing, no
//     matter what came after it; another move under a used id is refused.
//  3. Whoever makes an owner's move is the owner ([ErrNotOwner]). Where an item
//     has no owner, its status tells what is wrong, see 5.
//  4. The item is at the expected rev ([ErrRevConflict]).
//  5. The table has the move ([ErrIllegalTransition]).
//
// A worker makes a new request id for each request and sends the same one only
// to repeat it. Ids are remembered in the item itself ([Item.Requests]), so
// that a repeat is recognised by every replica and after a crash.
//
// # Counting
//
// attempt is how often the item was claimed: 0 at first, one more on each
// entry to claimed, and never anything else. rev counts accepted moves,
// heartbeats included: enqueue makes it 1, each event has one of its own, and
// a repeat has none. Both survive a requeue.
//
// # What is not here
//
// How long leases last, when an item is stalled and whether a stalled one may
// be reclaimed directly are for the queue to decide. So is the choice among
// the items that may be claimed. A dedupe key is an opaque string.
//
// Source: Job lifecycle plan 02.
package lifecycle
