// Package seqledger is the Stage1 seq ledger: the relay's window of outbox rows
// that one process has taken up and not yet settled.
//
// Each row taken up gets the next seq. The window knows for each seq its state, its owner,
// and which moves are legal. It is in memory only, holds no rows, and calls only the Fatal
// hook: the store holds what must survive a crash, and a restarted process takes up its
// rows again under new seqs.
//
//	                 Take
//	  UNSEEN 0 ──────────────▶ DISPATCHED 1 ◀───────────────────┐
//	                              │      │                      │ Retry, Reclaim:
//	                        Begin │      │ Cancel               │ retryable class,
//	                              ▼      │                      │ attempts left
//	                        IN_FLIGHT 2  │                      │
//	             Finish           │      │                      │
//	    ┌───────────────┬─────────┴──────┼──────────────┐       │
//	    ▼               ▼                ▼              ▼       │
//	TERMINAL_       TERMINAL_       TERMINAL_       TERMINAL_ ──┘
//	SUCCESS 3       SKIP 4          CANCEL 6        FAIL 5
//	    │               │                │              │
//	    └───────────────┴────────┬───────┴──────────────┘
//	                             │ Commit
//	                             ▼
//	                        COMMITTED 7
//
// The arrows are data, the table behind [Legal]; nothing else is legal.
//
// # Bugs and latency
//
// A move that is not in the table, or that breaks a rule that the table cannot
// express, is a bug of this process. The window then halts: the call that tried
// it gets an [IllegalTransitionError] with the five facts (seq, prior state,
// attempted state, owner, wall-clock time), the Fatal hook gets the same error,
// and every later change returns [ErrHalted], so that no state changes while
// the process exits.
//
// Being slow is not a bug. A [Lease] names the owner of a seq; when it expires,
// Reclaim takes it away, and a late Finish or Heartbeat under it returns held =
// false. The check and the move are one atomic step: an owner that gets held =
// true has the outcome that counts; one that gets false drops its outcome
// before it reaches the store. A second Finish under a lease that its owner has
// already finished is a second terminal event, which is fatal.
//
// # Cost
//
// There is one mutex, held for a map access and a few writes, and never during a call
// of the hook. No call scans: the leases are in order of their expiry, and every move
// updates the counters. Memory is bounded by Config.Window: a committed seq leaves the
// window at once, and its state follows from its number. So the replay of a commit
// needs no record, and a seq that settles late does not delay others.
//
// Each call passes the time. The window's clock is the latest time passed, which
// replaces an earlier one: heartbeats are monotonic, even if two goroutines read their
// clocks in one order and call in the other.
//
// Source: Stage1 seq ledger spec.
package seqledger
