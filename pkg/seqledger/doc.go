// Package seqledger is the Stage1 seq ledger: the relay's window over the
// outbox rows that one process has taken up and not yet settled.
//
// Each row taken up gets the next seq. The ledger says for each seq which
// state it is in, who may work on it, and which moves are legal. It is memory
// only, holds no rows and calls nobody but the Fatal hook: what must survive a
// crash is in the store, and a process that starts again takes its rows up
// under new seqs.
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
// The arrows are data, the table behind [Transitions]; nothing else is legal.
//
// # A bug or mere latency
//
// A move that is not in the table, or that breaks a rule which the table
// cannot express, is a bug of this process. The ledger then halts: the call
// that tried it gets an [IllegalTransitionError] with the five facts (seq, prior
// state, attempted state, owner, wall-clock time), the Fatal hook gets the
// same, and every later call is refused with [ErrHalted], so that nothing
// moves while the process goes down.
//
// Being slow is not a bug. A [Lease] says who works on a seq; when it expires,
// Reclaim takes it away, and a late Finish or Heartbeat under it is told that
// it is no longer held. The question and the move are one step, so whoever
// hears held = true is the one whose outcome counts, and whoever hears false
// drops its outcome before it reaches the store. A second Finish under a lease
// that its owner has already finished is a second terminal event, which is
// fatal.
//
// # Cost
//
// There is one mutex, held for a map access and a few words, and never across
// a call to the hook. All leases have one duration, so the list of leases in
// order of their heartbeats is also in order of their expiry: Begin and
// Heartbeat append, Reclaim pops from the front, and nobody scans. Counters
// are kept on every move.
//
// Memory is bounded by Config.Window. A committed seq leaves the window at
// once and is still known: each seq below the next one to be given out is
// either in the window or COMMITTED, so the replay of a commit needs no record
// of its own, and one seq that is late to settle holds back no other.
//
// Time comes in with each call. The ledger's clock is the latest time it was
// given, and an earlier one is read as that: heartbeats are monotonic, also
// when two goroutines read their clocks in one order and call in the other.
//
// Source: Stage1 seq ledger spec.
package seqledger
