// Package ledger keeps jobs in a table store, each as one aggregate with one
// commit point.
//
//	            ┌────────────── lost race ──────────────┐
//	            ▼                                       │
//	event ──▶ load ──▶ Decide, Follow ──▶ plan ──▶ commit (CAS) ──▶ post
//	                                       │          │
//	                                pre: schedule     rev + 1, EVENT:{rev}
//	                                entry, claim,
//	                                slot, ready hint
//
// statemachine.Decide says what the event does to the job, workitem.Follow what
// that is to its work item. [Ledger.Change] brings an event, [Ledger.Work] a verb of
// the pull queue, [Ledger.Claim] the claims of several items; all go by one loop.
//
// # Rows
//
// A job's partition holds JOB (the head, with rev and the key of the schedule
// entry that stands for it), STEP rows, OUTBOX rows with their DIRECTIVE bytes
// next to them, OPENITEM (the work item that a worker may claim or holds), ITEM
// rows of those that ended, the COMMAND's payload once, and EVENT:{rev} for each
// change. Loading a job is one short range scan from JOB to STEP.
//
// # One revision per change
//
// Every change updates JOB under its ETag, raises rev by one, and inserts
// EVENT:{rev} with an operation id. Two changes for one rev collide, and after
// a lost reply that row tells whose change was committed. A heartbeat writes its
// Step row and its item's row, and has no revision.
//
// # The schedule
//
// No pass scans for work. Each job with anything left to do has an entry at or
// before its next deadline: a hint in the partition of its kind and shard,
// written before the commit that needs it. An entry names the rev that its
// change makes; below that rev it is left alone, since the change may be under
// way. Only the job's own rows say what is due.
//
// A job whose attempt waits in the pull queue has a hint in the ready index in
// place of an entry, under the same rule.
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
