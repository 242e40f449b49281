// Package ledger keeps jobs in a table store, each as one aggregate with one
// commit point.
//
//	            ┌────────────── lost race ──────────────┐
//	            ▼                                       │
//	event ──▶ load ──▶ statemachine.Decide ──▶ plan ──▶ commit (CAS) ──▶ post
//	                                            │          │
//	                                     pre: schedule     rev + 1, EVENT:{rev}
//	                                     entry, claim,
//	                                     slot
//
// [Ledger.Change] is the only such loop; the API, the callbacks, the relay and
// the sweeper differ only in the event that they bring.
//
// # Rows
//
// A job's partition holds JOB (the head, with rev and the key of the schedule
// entry that stands for it), STEP rows, OUTBOX rows with their DIRECTIVE bytes
// beside them, the COMMAND's payload once, and EVENT:{rev} for each change.
// Loading a job is one short range scan from JOB to STEP.
//
// # One revision per change
//
// Every change updates JOB under its ETag, raises rev by one, and inserts
// EVENT:{rev} with an operation id. Two changes for one rev collide, and after
// a lost reply that row tells whose change came through. A heartbeat writes its
// Step row alone.
//
// # The schedule
//
// Nobody scans for work. Each job with anything left to do has an entry at or
// before its next deadline: a hint in the partition of its kind and shard,
// written before the commit that needs it. An entry names the rev that its
// change makes; below that rev it is left alone, since the change may be under
// way. Only the job's own rows say what is due.
//
// # Layouts
//
// A [Projector] shows the jobs in further tables. What it writes follows the
// commit, and an entry of the schedule remembers it until it is known done. The
// ledger never reads it.
//
// # Idempotency and the in-flight limit
//
// An accept claims the command's key first, then a slot of the tenant, then
// commits. A claim whose job never came is rolled forward under the same job
// id; slots are taken by insert, so a limit holds under any concurrency.
//
// Source: Ledger and state model, Phase 1; Option B spec, sections 12 to 15.
package ledger
