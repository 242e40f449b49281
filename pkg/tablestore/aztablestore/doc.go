// Package aztablestore is the table store in an account of Azure Table Storage.
// It is no [tablestore.AtomicStore]: one write reaches one partition, and a
// change goes through its stages.
//
//	Get · Scan                 Commit
//	    │                        │  guards: the port's rules, ETags
//	    │                        ▼
//	    │              ops → one transaction         ◄─┐ again without the rows
//	    │                        │                     │ it discards that are
//	    ▼                        ▼                     │ not there
//	  tries, deadlines, pauses (send.go)               │
//	    │                        │                     │
//	    ▼                        ▼                     │
//	  SDK, which tries once    parts of the answer: ETags, or the op that failed
//	    │
//	    ▼
//	  transport, which notes whether a connection was had (delivery.go)
//
// # What a failure means
//
// Every write is a transaction, and every answer to one says 202. What happened
// stands inside, in an answer for each op or one for the op that failed, and
// that is what the driver reads; an answer that is cut off, short of a part or
// of an ETag, or of another form tells nothing.
//
//	what happened                               tries    a write is    a read is
//	a precondition did not hold                 one      ConflictError —
//	no such row                                 one      ConflictError ErrNotFound
//	no connection was had, no token             more     ErrUnavailable
//	429, or 503 with ServerBusy or Retry-After  more     ErrUnavailable
//	401, 403, no such table or account          one      ErrUnavailable
//	400, 413 and the like                       one      ErrInvalid, ErrTooLarge
//	sent, and anything else                     one      ErrUnknown    ErrUnavailable
//	a conflict after a try that was throttled   one      ErrUnknown    —
//
// A read is also sent again where a write's outcome would be unknown. A pause
// lasts at least as long as Retry-After says, and is left out where the call
// has no time for it. Each request has a deadline, and each call with all of
// its requests.
//
// # Unknown outcomes
//
// A write whose reply was lost is not sent again by the driver: it would meet
// itself and look like a conflict, or bring back a row that somebody else has
// removed meanwhile. Whoever must know puts a marker first into the batch, a
// row of its own that is inserted under the operation's id (the journal row of
// a job's rev is one):
//
//	batch: insert EVENT:7 (operation x), replace JOB under its ETag
//	ErrUnknown → read EVENT:7: operation x, it is applied; another, it is lost;
//	             not there, submit the identical batch again
//
// # Guards
//
// [tablestore.Batch.Validate] and the check of ETags stand in front of every
// write, so that what Azure refuses is refused here, before it is sent, and on
// the emulator too, which is laxer about partitions, sizes, numbers and names of
// properties, and quotes in keys. An ETag of "*" is refused, and a replacement
// always carries one: without, it would be an upsert.
//
// # Tests
//
// The tests run on Azurite, which package azurite installs and starts. With
// LUCIUS_TEST_TABLE_CONNECTION set to a connection string they run on that
// account instead, in tables whose names begin with "lucius" and a random part,
// and which they delete.
package aztablestore
