// Package aztablestore is the table store in an account of Azure Table Storage.
// It is not a [tablestore.AtomicStore]: one write changes one partition, and a
// change runs its stages.
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
//	  transport, which records whether there was a connection (send.go)
//
// # What a failure means
//
// Every write is a transaction, and every answer to one has status 202. The
// outcome is inside, as one answer for each op or one for the op that failed;
// the driver reads these. If the answer is truncated, lacks a part or an ETag,
// or has another form, the outcome is unknown.
//
//	what happened                               tries    a write is    a read is
//	a precondition did not hold                 one      ConflictError —
//	no such row                                 one      ConflictError ErrNotFound
//	no connection, no token                     more     ErrUnavailable
//	the circuit is open                         none     ErrUnavailable
//	429, or 503 with ServerBusy or Retry-After  more     ErrUnavailable
//	401, 403                                    one      ErrDenied with ErrUnavailable
//	no such table or account                    one      ErrUnavailable
//	400, 413 and the like                       one      ErrInvalid, ErrTooLarge
//	sent, and anything else                     one      ErrUnknown    ErrUnavailable
//	a conflict after a try that was throttled   one      ErrUnknown    —
//
// A read is also retried in the cases in which a write's outcome would be
// unknown. A delay lasts at least as long as Retry-After says; if it would
// exceed the call's deadline, the call ends at once. Each request has a
// deadline, and so has each call with all its requests. A request that exceeds a
// deadline of its caller ([tablestore.Patience]) is not sent again: the caller
// sets a longer one.
//
// # Outages
//
// After 20 failures in a row without a success, of any kind that is not the
// caller's fault, the account counts as out of service. A [breaker.Set] then
// holds requests back for 1 s, later for up to 10 s, lets a page of 3 through to
// see whether the account is back, and afterwards as many as it carries again
// step by step. Requests of the first second wait for their turn, up to 2 s, which is
// no try; later ones fail at once. So an account that throttles is not kept busy by
// retries, and callers are not kept waiting. A throttled partition counts as the
// account, which sends the same answer, as long as no other succeeds.
//
// # Unknown outcomes
//
// The driver does not resend a write whose reply was lost: the write could
// conflict with itself, or bring back a row that another writer has removed
// since. A caller that must know the outcome puts a marker first into the
// batch: a row that is inserted under the operation's id, such as the journal
// row of a job's rev:
//
//	batch: insert EVENT:7 (operation x), replace JOB under its ETag
//	ErrUnknown → read EVENT:7: operation x, it is applied; another, it is lost;
//	             not there, submit the identical batch again
//
// # Guards
//
// Before every write the driver calls [tablestore.Batch.Validate] and checks
// the ETags, so that it refuses what Azure would refuse before sending it, and
// on the emulator too, which is laxer about partitions, sizes, numbers and
// names of properties, and quotes in keys. An ETag of "*" is refused, and a
// replacement always carries an ETag: without one it would be an upsert.
//
// # Tests
//
// The tests run on Azurite, which package azurite installs and starts. With
// LUCIUS_TEST_TABLE_CONNECTION set to a connection string they run on that
// account instead, in tables that they delete and whose names begin with
// "lucius" and a random part.
package aztablestore
