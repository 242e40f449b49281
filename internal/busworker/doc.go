// Package busworker is a platform service on Azure Service Bus: it receives the
// directives of its subscription on each lane, does the work, and answers over the
// reply topics.
//
//	topic of a lane ──▶ subscription ──▶ handler
//	                                        │ ACK, HEARTBEAT, RESULT
//	reply topic of that lane ◀──────────────┘
//
// The worker completes a directive once its RESULT is on the bus, so the bus
// redelivers the directive of a worker that died. That attempt may be superseded by
// then. The ledger rejects it by its pair of attempt and lease, but a reply topic
// gives no answer, so at worst the work is wasted.
//
// The project's tests and azurelocal use it; it shows what a platform service has to
// do.
package busworker
