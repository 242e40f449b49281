// Package topology defines which topics and subscriptions a namespace of Service
// Bus must have, checks them, and creates missing ones.
//
//	global-bus-p0 … p15              one for each lane: directives
//	   └─ <service>                  a platform service's subscription: its directives
//	global-bus-replies-p0 … p15      with replies by bus
//	   └─ lucius-invoker             ACK, RESULT and heartbeat messages
//
// A topic without a subscription silently drops every message, so the check reports
// it as an error.
//
// Source: Option B spec, 9 and 10.
package topology
