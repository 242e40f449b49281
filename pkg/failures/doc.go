// Package failures shows the jobs that failed, in groups by step type and error
// code, and reruns many of them as one operation.
//
//	operator ── Groups ──► index of ended jobs
//	   │
//	   └─ Create ──► draft ──► items ──► HEAD (RUNNING)          Get, Cancel
//	                                      ▲
//	              Runner: lease by CAS ───┘ each second
//	                 │
//	                 └─ item by item, at rate_per_second ──► ledger.Rerun
//	                        outcome ──► item, then the sum ──► HEAD
//
// # An operation
//
// Which jobs an operation is for is settled when it is made, so that neither
// jobs that fail meanwhile nor its own reruns that fail again get into it. All
// its rows lie in the schedule's table: one HEAD for each operation in the
// partition "retries", and an item for each job in a partition of its own.
//
// The items are written before the HEAD, and a draft row before the items: a
// create that crashes leaves a draft, by which its items are found and removed
// an hour later. The HEAD takes the draft's place in one batch. So an operation
// is seen whole or not at all, and of two creates under one key the second finds
// the first's HEAD, removes its own items and answers with that.
//
// # The runner
//
// A runner takes a lease on a HEAD by CAS, so that of several processes one
// works on an operation. It learns what is left to do from the items alone,
// whose outcomes are written before the HEAD's sum. It never repairs itself: a
// write that fails ends the work on that operation, and the next pass begins
// anew from the rows. That is safe because [ledger.Ledger.Rerun] makes one job
// for each job and starting point, whoever asks and how often. The history of
// a new job names the operation as its request id, by which an operation knows
// after a crash which reruns are its own.
//
// Before each item the HEAD is read: when Cancel has answered, no further rerun
// begins, but for those under way at that moment.
//
// A tenant at its limit of jobs in flight is passed over for a second, and the
// other tenants' jobs go on. Where the store does not answer, the job waits.
package failures
