// Package projections copies the jobs to the tables of Phase 1, next to the
// aggregate that the ledger works on: the storage layout "table".
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
// The job's partition of the Steps table is the source of truth and the only
// commit point. No decision reads a projected row: the API reads the aggregate.
//
// # Forwards only
//
// Jobs and Outbox rows carry the revision that they show. A row is written
// under the version that was read, and only if that shows an earlier revision.
// So the later revision stays if writers overtake each other. Events are
// inserted and never change.
//
// # The watermark
//
// The row in Jobs is written last. Invariant: Jobs row at revision n ⇒ the
// other tables show every change of the job up to n. So one read tells whether
// anything is missing. If the row shows a change's predecessor, the change
// writes only its own rows; otherwise the ledger reads what changed since.
//
// Source: Ledger and state model, Data model (Jobs, Steps, Outbox and Events
// tables); '#' is illegal in keys and became ':'.
package projections
