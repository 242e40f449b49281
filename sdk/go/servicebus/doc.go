// Package servicebus runs a [lucius.Worker] on Azure Service Bus, for servers that send
// their directives by it: [Run] receives the directives of a service on every lane, has the
// worker's handlers do them, and answers by the reply topics.
//
//	topic of a lane ──▶ subscription ──▶ handler
//	                                        │ ACK, HEARTBEAT, RESULT
//	reply topic of that lane ◀──────────────┘
//
// A directive is completed once its RESULT is on the bus. If the worker dies before that,
// the bus redelivers the directive when the lock ends, unless its time to live is over,
// which the server sets to the ACK timeout and 30 s. Then the bus drops it, and the server
// sends a new attempt when the lease ends, for which the worker asks with its ACK, see
// [Config.Lease].
//
// A redelivered attempt may be superseded: the server rejects its replies, but a reply
// topic gives no answer, so at worst the work is wasted. For the same reason a handler is
// not told that its job is cancelled or paused.
package servicebus

//go:generate sh -c "{ echo '// Code generated from pkg/servicebus/outcomes.go. DO NOT EDIT.'; echo; cat ../../../pkg/servicebus/outcomes.go; } > outcomes.gen.go"
