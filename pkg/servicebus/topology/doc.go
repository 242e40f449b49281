// Package topology says which topics and subscriptions a namespace of Service Bus
// has to have, looks whether they are as they must be, and creates what is
// missing.
//
//	global-bus-p0 … p15              one for each lane: directives
//	   └─ <service>                  a platform service's subscription: its directives
//	global-bus-replies-p0 … p15      with replies by bus
//	   └─ lucius-invoker             ACK, RESULT and heartbeat messages
//
// A topic without a subscription takes every message and keeps none, and says
// nothing about it; so that is the first thing to look for.
//
// Source: Option B spec, 9 and 10.
package topology
