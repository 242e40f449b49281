// Package ledger keeps jobs in a table store, each as one aggregate with one
// commit point.
//
//	            ┌────────────── lost race ──────────────┐
//	            ▼                                       │
//	event ──▶ load ──▶ Decide, Follow ──▶ plan ──▶ commit (CAS) ──▶ post
//	                                       │          │
//	                                pre: schedule     rev + 1, EVENT:{rev}
//	                                entry, record,
//	                                slot, ready hint
//
// statemachine.Decide says what the event does to the job, statemachine.FollowItem what it
// does to the work item. [Ledger.Change] applies an event, [Ledger.Work] a verb of
// the pull queue, [Ledger.Claim] the claims of several items; all use this loop.
//
// # Rows
//
// A job's partition holds JOB (with rev, and the head, which names the job's rows in
// other partitions), STEP rows, OUTBOX rows and their DIRECTIVE bytes, OPENITEM (the
// work item that is queued or held), ITEM rows of ended ones, the COMMAND's payload,
// and EVENT:{rev} for each change. Loading a job is one range scan from JOB to STEP.
//
// # One revision per change
//
// Every change updates JOB under its ETag, raises rev by one, and inserts
// EVENT:{rev} with an operation id. Two changes for one rev collide, and after
// a lost reply that row tells which of them was committed. Only a heartbeat has no
// revision: it writes its Step row and its item's rows.
//
// # The schedule
//
// No pass scans for work. Each job with work left has an entry at or before its next
// deadline: a hint in the partition of its shard, by kind, written before the commit that
// needs it. While the job is below the entry's rev, that commit may still land, so the
// sweeper leaves the entry alone. Only the job's rows say what is due.
//
// A job whose attempt waits in the pull queue has a hint in the ready index instead,
// under the same rule.
//
// # Layouts
//
// A [Projector] copies the jobs to other tables after the commit; a timer repeats
// that after a crash. The ledger never reads the copies.
//
// # Idempotency and the in-flight limit
//
// An accept writes the command's idempotency record, then takes a slot of the tenant, then commits.
// If the process crashes in between, the next accept of the command rolls the record
// forward under the same job id. Slots are taken by insert, so a limit holds under
// any concurrency.
//
// Source: Ledger and state model, Phase 1; Option B spec, sections 12 to 15.
package ledger
