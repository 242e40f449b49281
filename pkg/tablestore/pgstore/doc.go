// Package pgstore is a table store on PostgreSQL. It is a [tablestore.AtomicStore], so a
// change of a job is one transaction, and any number of processes may share it.
//
//	Commit ──► group ──► one call of lucius.apply(...) ──► all rows, or the conflicts
//	            │           │                                 │
//	            │           │ rows in the order of their      └ those changes have their
//	            │           │ keys                              outcome, the others are
//	            │           ▼                                   sent again
//	            └ changes that arrived while others were being written
//
//	lucius.rows (tbl, part, row) ── etag, props (jsonb)
//
// Rows are readable: their properties are a JSON object, with texts, numbers and booleans as
// such, and times as {"t": "2026-01-27T10:02:30.000Z"}.
//
// # Outcomes
//
// A group is a single statement outside of a transaction block, so the server commits before
// it answers. An answer of severity ERROR means that nothing was written. Without an answer, or
// if the session was terminated, it is certain that nothing was written only if nothing was
// sent. Otherwise the outcome is [tablestore.ErrUnknown], and the caller reads a row of the
// change to learn it. Every session sets synchronous_commit, so that an acknowledged change is
// on disk; [Open] refuses a server that runs without fsync.
//
// # Schema
//
// Migrations are embedded and numbered, and the database records the hash of each. [Migrate]
// applies those that are missing, one process at a time. [Open] changes nothing, and refuses a
// schema of another version or of other statements with an error that says what to do.
package pgstore
