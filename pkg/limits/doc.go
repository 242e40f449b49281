// Package limits bounds how many attempts of a service may start in any window of time, and
// closes a service for a while.
//
//	operator ── Set, Close, Open ──▶ rows ◀── lease ── Gate of each process ◀── Take ── a claim
//	                                  │                  ▲        ▲
//	                                  └──── Refresh ─────┘        └── Close ── a RESULT that was throttled
//
// A limit is a row with its configuration and the tokens that were granted lately, so a lease is
// judged by the configuration that it replaces. A process leases tokens under the row's ETag, in
// the background, and spends them in memory: no claim waits for the store. A start is the
// sending of a commit that claims an item. Its token is looked at immediately before each
// sending, because a claim may wait for the store, or its host may be suspended:
//
//	invariant: ∀x: starts in (x, x+window] ≤ count, if any two clocks differ by at most the skew
//
// See tokens.go for the arithmetic. Tokens that are not used in time lapse, so a limit errs low.
// A limit bounds and does not smooth: all starts of a window may come in its first second.
//
// A closure is another row. It holds back all starts of its scope until a time, and then lets
// through twice as many each second. A RESULT that was throttled closes its service in its own
// process at once, and in the others with their next refresh.
//
// A directive may be covered by four limits: of its service, step type and tenant, in all
// combinations that have the service. All give a token or none does. The narrowest is asked
// first, so a tenant at its own limit leases no tokens of the service.
package limits
