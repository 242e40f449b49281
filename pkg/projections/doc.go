// Package projections keeps the jobs readable in the tables of Phase 1, beside
// the aggregate that the ledger works on: the storage layout "table".
//
//	Steps table                        Jobs      {tenant}:{YYYYMM} / {jobId}
//	  {jobId} / JOB, STEP:…, OUTBOX:…  Outbox    {tenant}:{YYYYMM} / {outbox id}
//	            EVENT:{rev}, …         Events    {jobId} / {timestamp}:{event id}
//	      │                               ▲
//	      │ commit: rev + 1               │ forwards only
//	      └──────────▶ Ledger ──▶ Projections.Project
//	                     │                ▲
//	       entry, seconds ahead ──▶ sweeper, after a crash
//
// The job's partition of the Steps table is the truth, and its one commit point.
// Nobody decides by a projected row: the API reads the aggregate.
//
// # Forwards only
//
// Jobs and Outbox rows carry the revision that they show. A row is written under
// the version that was read, and only where that shows an earlier revision, so
// that of two writers who overtake each other the later revision stays. Events
// are inserted and never change.
//
// # The watermark
//
// The row in Jobs is written last: at revision n it says that all that the job
// did up to n is in the other tables. So one read tells whether anything is
// missing. A change whose predecessor is shown writes what it did itself; any
// other has the ledger read what changed since.
//
// Source: Ledger and state model, Data model (Jobs, Steps, Outbox and Events
// tables); '#' is illegal in keys and became ':'.
package projections
