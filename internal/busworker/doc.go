// Package busworker is a platform service on Azure Service Bus: it takes the
// directives of its subscription on each lane, does the work, and answers by the
// reply topics.
//
//	topic of a lane ──▶ subscription ──▶ handler
//	                                        │ ACK, HEARTBEAT, RESULT
//	reply topic of that lane ◀──────────────┘
//
// A directive is completed once its RESULT is on the bus, so one whose worker dies
// comes again. It may then be superseded; the ledger knows by its pair, and a
// reply topic tells nobody, so the work is done for nothing at worst.
//
// The project's tests and its local stand-in for Azure use it; it shows what a
// platform service has to do.
package busworker
