// Package servicebus dispatches over Azure Service Bus: it publishes the relay's
// directives and consumes the reply topics.
//
//	relay ──▶ Publisher ──▶ lane ──▶ topic global-bus-p{lane} ──▶ platform services
//	            by topic     bounded, in batches                        │
//	                         a watchdog                                 ▼
//	callbacks ◀── Replies ◀── subscription of global-bus-replies-p{lane}
//	  commit first, then settle
//
// The SDK has pitfalls that matter during an outage. Each has a remedy here, and a test:
//
//	the SDK resends by itself         the message id names the attempt, so the topic
//	                                  drops the copy
//	without retries it never          the SDK makes a few quick retries; the relay
//	recovers                          makes the slow ones
//	a sender or receiver whose link   a new one takes its place (see closesLink)
//	was closed with a final error
//	returns it forever
//	a receiver whose link was closed  a second empty answer proves it, and another
//	with a passing error returns      receiver takes its place
//	nothing, at once, forever
//	a send may block forever, or     each send has a timeout; one that does not return
//	longer than its context           is abandoned, the connections are cut, and a
//	                                  topic has few permits for such sends
//	released and modified pass for    the connection turns them into a rejection
//	success                           before the SDK reads them (see outcomeReader)
//	an unknown rejection passes for   the same
//	a broken connection
//	so does an error of a link that   while a connection is open, the topic is blamed,
//	the SDK does not know             not the whole bus
//	a batch has one outcome           a batch that is rejected because of one message
//	                                  is resent message by message
//	an empty batch panics             none is sent
//
// The functions verdict and outcome alone decide what an error blames:
//
//	the message     too large (permanent), rejected
//	the topic       missing, disabled, full, unauthorised, throttled, silent, unknown errors
//	                of its link
//	the whole bus   no connection, no token
//	unknown         timeout, and everything else
//
// A reply is settled after the ledger's commit, never before. An unreadable reply is
// dead-lettered with its reason. A stale reply is completed: the use case has recorded it.
// While the store does not answer, the consumer holds the replies it has, renews their
// locks and receives no more; if a lock is lost, the bus redelivers the reply, and the
// ledger answers that it is a duplicate.
//
// A worker gets no response over a reply topic: the pair of attempt and lease protects the
// ledger, but the worker may waste its time, and does not learn of a cancellation.
//
// Source: Option B spec, 9 to 11; Orchestrator flow canvas, Service Bus.
package servicebus
