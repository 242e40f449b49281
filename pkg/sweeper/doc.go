// Package sweeper acts on deadlines: ACK timeouts, expired leases, retries that
// came due, rows that the hot path did not publish in time, and what is left to
// do after a job's end.
//
// It never looks for such jobs. Each job with anything left to do has an entry
// in the schedule at or before its next deadline, so a pass reads the due part
// of one partition per shard and nothing else:
//
//	timer:000  ──▶ due entries ──▶ Fire ──▶ load, decide, commit
//	timer:001  ──▶ (nothing due: one short read)
//	   …
//
// Any number of sweepers may run on one store, without leases and without a
// leader: each starts at a random shard, and where two fire one entry the
// compare-and-swap decides.
//
// Deadlines that passed while nobody could report, because the process or the
// store was down or the host was suspended, get a grace first; see
// [statemachine.DeadlinePassed].
package sweeper
