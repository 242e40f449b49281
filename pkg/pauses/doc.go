// Package pauses stops dispatch within a scope: of one tenant, one protocol,
// one lane, or at all.
//
//	operator ── Create, Resume ──► rows ──► Gate (a view, refreshed each second)
//	                                           ▲
//	                   relay, pull queue ── Admit?
//
// A pause is a row, so that every process sees it and it outlives them all. It
// touches no job: commands are accepted, outbox rows wait as PENDING with their
// schedule entries, and what a worker has in hand goes on. That makes a pause
// cheap however much waits behind it, and resuming is no change of any job.
//
// What waited would flood the bus when a pause ends. So a resumed scope ramps
// up: what each process lets through doubles every second until the ramp is
// over, and then the row goes.
package pauses
