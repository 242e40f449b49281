// Package servicebus is Azure Service Bus as the bus: the publisher behind the
// relay's port, and the consumer of the reply topics.
//
//	relay ──▶ Publisher ──▶ lane ──▶ topic global-bus-p{lane} ──▶ platform services
//	            by topic     bounded, in batches                        │
//	                         a watchdog                                 ▼
//	callbacks ◀── Replies ◀── subscription of global-bus-replies-p{lane}
//	  commit first, then settle
//
// The SDK does several things that a relay must not find out in an outage. Each
// has its answer here, and its test:
//
//	the SDK sends again by itself     the message id is that of the attempt, so that
//	                                  the topic drops the copy
//	without retries it never          a few quick ones are left to it; what is longer
//	recovers                          is the relay's business
//	a send may wait for ever, or      each has a deadline; one that does not come back
//	longer than its context           is left behind, its connections are cut, and the
//	                                  places of a topic for such sends are few
//	released and modified pass for    the connection turns them into a rejection
//	success                           before the SDK reads them (see outcomeReader)
//	an unknown rejection passes for   the same
//	a broken connection
//	a batch has one outcome           a batch that is refused for the sake of one
//	                                  message is sent again message by message
//	an empty batch panics             none is sent
//
// What an error means is decided in one place, by verdict:
//
//	the message's own fault   too large (for good), refused
//	the topic's               missing, disabled, full, unauthorised, throttled, silent
//	the whole bus's           no connection
//	unknown                   time is up, and everything else
//
// A reply is settled after the commit of the ledger, never before. One that
// nobody can read goes to the dead letters with its reason. One that is stale is
// completed: the use case has recorded it. While the store does not answer, its
// replies are held, their locks renewed, and no more are taken; a lock that is
// lost meanwhile only makes the reply come again, as a duplicate.
//
// A reply topic gives the worker no answer: the pair of attempt and lease protects
// the ledger, not the worker's time, and it does not learn of a cancellation.
//
// Source: Option B spec, 9 to 11; Orchestrator flow canvas, Service Bus.
package servicebus
