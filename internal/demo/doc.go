// Package demo is the main job on a small stage.
//
//	documents ──command each──▶ ┌────────┐ ◀──claim, complete── extract
//	                            │ server │ ◀──claim, complete── embed
//	bars or lines ◀───states─── └────────┘ ◀──claim, complete── index ──▶ files
//
// It runs the three services of package docpipeline as workers that pull over
// HTTP, submits a command for each document, shows how the jobs get on, and
// searches the index that comes of it. Only the server is somebody else's.
//
// Whoever kills it, with kill -9 as well, may run it again on the same folders.
// Each command's idempotency key is made of the document's place and content,
// so the server answers with the job of the first run, which goes on where it
// was; a document that was edited meanwhile is a new job. What a killed worker
// had in hand comes back when its lease has run out.
package demo
