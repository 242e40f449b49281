// Package admission decides which directives may be dispatched, and which attempts may start. It has
// three kinds of rows: a pause stops dispatch, a closure stops the starts of a service for a while,
// and a limit bounds how many attempts start in any window of time, or run at once.
//
//	operator ── Pause, Resume, Close, ──▶ rows ◀── lease ── Gate of each process ◀── Take ── a claim
//	            Open, SetLimit             │                  ▲      ▲
//	                                       └──── Refresh ─────┘      └── Close ── a RESULT that was throttled
//
// A row is seen by every process within a second, and survives restarts. Each process decides by
// its view of the rows. One whose view is too old dispatches and starts nothing.
//
// # Pauses
//
// A pause is of one tenant, one protocol, one lane, one service, or everything. It changes no
// job: commands are accepted, outbox rows wait as PENDING with their schedule entries, and
// work that a worker holds continues. So a pause is cheap whatever its backlog, and
// resuming changes no job.
//
// A pause may end by itself: the first process whose clock passes [Pause.Until] resumes it
// under the row's version, so every process ramps up from the same moment, also after a
// time in which none ran.
//
// The backlog would flood the bus when a pause ends. So a resumed scope ramps up: what
// each process lets through doubles every second until the ramp is over, and then the
// row is deleted.
//
// # Limits and closures
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
// A closure holds back all starts of its scope until a time, and then lets
// through twice as many each second. A RESULT that was throttled closes its service in its own
// process at once, and in the others with their next refresh.
//
// A directive may be covered by four limits: of its service, step type and tenant, in all
// combinations that have the service. All give a token or none does. The narrowest is asked
// first, so a tenant at its own limit leases no tokens of the service.
package admission
