// Package announce tells the URLs of a command how its job ended: it is where the
// sender of package webhooks gets its deliveries from.
//
//	schedule ── due ──► Take (CAS, held) ──► webhooks.Runner ──► Settle: next attempt, or an end
//
// The rows and their entries are the ledger's, written with the end of the job.
// An attempt is claimed before it is sent, so that replicas do not send side by
// side; a process that dies in between leaves the webhook to the next one, under
// the same id. The bytes of an event follow from the job, which does not change
// any more, so they are made anew for each attempt.
package announce
