// Package demo ingests a folder of documents, as a small example of a platform.
//
//	documents ──command each──▶ ┌────────┐ ◀──claim, complete── extract
//	                            │ server │ ◀──claim, complete── embed
//	bars or lines ◀───states─── └────────┘ ◀──claim, complete── index ──▶ files
//
// It runs the three services of package docpipeline as workers that pull over
// HTTP, submits a command for each document, shows the progress of the jobs, and
// searches the resulting index. Only the server is a separate process.
//
// After a kill, even kill -9, it may be run again on the same folders. Each command's
// idempotency key is derived from the document's path and content, so the server
// answers with the job of the first run, which continues; a document edited in the
// meantime is a new job. The items of a killed worker become available again when
// their leases expire.
package demo
