// Package announce tells the URLs of a command how its job ended.
//
//	schedule ── due ──► take (CAS, held) ──► Sender ──► settle: next attempt, or an end
//
// The rows and their entries are the ledger's, written with the end of the job.
// An attempt is claimed before it is sent, so that replicas do not send side by
// side; a process that dies in between leaves the webhook to the next one, under
// the same id. Delivery is at least once. What is sent, to whom it may go, and
// what an answer means is the Sender's.
package announce
