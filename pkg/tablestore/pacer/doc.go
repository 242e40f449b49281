// Package pacer makes a server wait for a slow store instead of asking it again and again.
//
// A remote store may answer near the deadline of a call. If calls then time out and are
// repeated, the store has more to do than before, and each repeat is as late as the first
// call: work stands still until the load goes. A [Store] passes calls on to such a store with
// a pace that adapts:
//
//	requests ─┐                        ┌─ a call timed out: half as many calls
//	relay    ─┤  in turns   at most    │  at once, and twice the deadline
//	sweeper  ─┼──────────▶  limit    ──┤
//	webhooks ─┤             calls      └─ a call was answered: one more at once for
//	…        ─┘                           each round of calls, and if it was quick, a
//	                                      shorter deadline
//
// The limit falls and grows as the window of TCP does. A healthy store never reaches it. The
// calls that wait for a place get it in turns by loop ([tablestore.ForLoop]), so that no loop
// takes the places of another, and requests get every second one. The calls of an operation that
// has begun ([tablestore.ForOperation]) come before those that begin one: with so few places, each
// operation that is given up on the way would have wasted what it got. A call that waits longer
// than one may take, or of an operation that has begun four times as long, is refused, and has
// written nothing.
//
// The driver sets the deadline ([tablestore.Patience]), since only it knows what a request that
// was not answered means. The pacer itself repeats nothing.
//
// # Why not a library
//
// github.com/platinummonkey/go-concurrency-limits (v0.8.0) estimates the limit from the latency
// alone, and has one line for all callers; the turns, the deadline and the queue would still be
// ours. The rest is one addition and one division.
package pacer
