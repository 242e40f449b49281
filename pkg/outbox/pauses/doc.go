// Package pauses stops dispatch within a scope: one tenant, one protocol, one lane,
// one service, or everything.
//
//	operator ── Create, Resume ──► rows ──► Gate (a view, refreshed each second)
//	                                           ▲
//	          ledger, relay, pull queue: may this directive go out?
//
// A pause is a row, so that every process sees it and it survives restarts. It changes no
// job: commands are accepted, outbox rows wait as PENDING with their schedule entries, and
// work that a worker holds continues. So a pause is cheap whatever its backlog, and
// resuming changes no job.
//
// A pause may end by itself: the first process whose clock passes [Pause.Until] resumes it
// under the row's version, so every process ramps up from the same moment, also after a
// time in which none ran.
//
// The backlog would flood the bus when a pause ends. So a resumed scope ramps up: what
// each process lets through doubles every second until the ramp is over, and then the
// row is deleted.
package pauses
