// Package tablestore is the interface through which everything is stored: rows by (table,
// partition, row), an [ETag] per row, range scans within a partition, and atomic batches
// within a partition, in which each write carries its precondition. It offers no more than
// Azure Tables does, so that one code path serves the cloud, the local disk and the tests.
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
// A write is committed, or conflicts, or its outcome is unknown. A conflict ([ErrConflict])
// means that another writer was first and that nothing was written; the caller loads and
// decides again. [ErrUnknown] means that the reply was lost: only reading a row of the
// write shows whether it was applied, and a later conflict may be with the caller's own
// write. [ErrUnavailable] is neither: the store did not accept the request.
//
// # Changes
//
// A write over several partitions is a [Change]: stages before and after one
// commit point. [Apply] carries it out, on an [AtomicStore] in one write and on
// other stores stage by stage, with the same rows at the end. A change must be
// correct if the process dies between any two batches; package memstore's Split
// option lets tests run the stages.
//
// # Keys and sizes
//
// Keys are parts joined by [Join], which escapes bytes that some store cannot
// hold; numbers in them are padded by [Pad]. Every driver checks the limits by
// [Batch.Validate]. Callers compute sizes by [RowBytes] and [BatchBytes] in
// advance, so that too large an input is rejected on arrival and not when it is
// stored.
//
// Every driver must pass the suite in package storetest.
package tablestore
