// Package schedules submits a command at the times that a calendar says.
//
//	entry is due ──▶ load HEAD ──▶ decide ──▶ accept, with FIRE:{time} as the claim ──▶ commit HEAD: last, next, entry
//
// A schedule is a partition: HEAD, the versions of its definition, and one row for each occurrence. That row
// is the claim under which the ledger accepts the command, in place of an idempotency record, and the history. So an
// occurrence has at most one job, however many processes fire it, and whichever version of the schedule they saw.
package schedules
