// Package outbox is the relay: it publishes the directives that the ledger has
// committed, and marks their rows SENT.
//
//	commit ──▶ Handoff ───────────┐ hot path, at once
//	                              ▼
//	dispatch schedule ──▶ pass ──▶ window ──▶ Publisher ──▶ mark
//	  (safety net, retries,       (seq        (Service Bus)  (one event,
//	   other replicas' rows)      ledger)                     CAS)
//
// With the pull queue the commit publishes: the change that creates a row also marks it
// SENT. The relay only marks rows that a pause held back.
//
// Publish first, then mark. A crash in between publishes the same attempt
// again, with the same bytes and the same message id, so that duplicate
// detection can drop it. A row becomes SENT only after the bus has it.
//
// What a failed publish means:
//
//	rejected because of the     spends the dispatch budget; the retry carries a
//	message itself              new attempt number and lease, so a worker that
//	                            got some copy is fenced
//	unknown                     the same attempt and message id again, inside
//	                            the publish deadline; then left to the schedule
//	topic or bus out of service the same, and the circuit opens: no budget is
//	                            spent and the entries stay where they are
//
// Off the hot path a row is taken by compare-and-swap before it is published: its next
// due time moves past the publish deadline, so that replicas do not publish it at the same
// time. Taking it gives a row of another bus a new pair.
//
// The window is the Stage1 seq ledger: each row that is taken up gets a seq, and the relay
// may do with it only what that contract lists. Heartbeats keep the lease of a publish
// until its deadline. A publish that exceeds the deadline loses its lease, and one that a
// pause covers for longer than a grace period is cancelled; a late outcome is dropped
// before it reaches the ledger. Before a retry the row is read, and skipped if it was
// withdrawn or answered.
//
// The pauses (Config.Admit) and the circuits (package breaker) decide whether a row may
// be sent now. [Outages] tells all replicas which circuits are open.
//
// Source: Orchestrator flow canvas, Retry Loop; Stage1 seq ledger spec.
package outbox
