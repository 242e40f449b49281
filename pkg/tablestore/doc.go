// Package tablestore is the port through which everything is stored: rows by
// (table, partition, row), an [ETag] per row, range scans within a partition,
// and atomic batches within a partition, in which each write carries its
// precondition. That is what Azure Tables can do, and no more, so that one code
// path serves the cloud, the local disk and the tests.
//
//	ledger, outbox, sweeper, work queue
//	        │  Get · Scan · Commit        Apply: pre → commit → post
//	        ▼                                      │
//	┌─ Store ──────────────────────────────────────▼──┐
//	│ table │ partition │ row  → ETag, properties     │
//	│       └─ one Batch: all ops or none ─┘          │
//	└───────┬────────────────┬────────────────┬───────┘
//	     memstore       pebblestore      Azure Tables
//	     AtomicStore    AtomicStore      one partition a write
//
// # Three outcomes
//
// A write is committed, or conflicts, or its outcome is unknown. A conflict
// ([ConflictError]) says that another writer was first and that nothing was
// written; the caller loads and decides again. [ErrUnknown] says that the reply
// was lost: only a row that the write would have left can tell what became of
// it, and a later conflict may be one's own. [ErrUnavailable] is neither; the
// request was not taken in.
//
// # Changes
//
// What does not fit one partition is a [Change]: stages before and after one
// commit point. [Apply] carries it out, on an [AtomicStore] in one write and
// elsewhere stage by stage, with the same rows at the end. A change must be
// correct when the process dies between any two batches; package memstore's
// Split option makes tests go through them.
//
// # Keys and sizes
//
// Keys are parts joined by [Join], which escapes what some store cannot hold;
// numbers in them are padded by [Pad]. Limits are checked by [Batch.Validate]
// in front of every driver and can be foreseen with [RowBytes] and
// [BatchBytes], so that too large an input is refused when it comes in and not
// when it is stored.
//
// Package storetest is what every driver has to pass.
package tablestore
