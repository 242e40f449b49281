// Package fakeservicebus is an in-process Service Bus for tests and for running
// Lucius on a laptop. It speaks AMQP 1.0 on a TCP port of its own, so tests use the
// unmodified Azure SDK, including its retries and silent resends.
//
//	client ── TCP ──▶ connection        handshake; frame.go, encode.go, decode.go
//	                    └ session       windows, channels
//	                       └ link       credit, attach and detach
//	                           │
//	          client sends     │     client receives
//	        ┌──────────────────┴───────────────────┐
//	        ▼                                      │
//	      incoming ──▶ OnSend ──▶ topic ──▶ queue ─┘   a subscription, under locks
//	                              dedup       │
//	                                          └──▶ queue   its $DeadLetterQueue
//
// A connection begins with SASL ANONYMOUS; the client authenticates with the tokens
// that it puts at $cbs. A topic stores nothing: it copies every message to each of
// its subscriptions, once per message id within its window. A subscription locks a
// message when it delivers it. The receiver completes, abandons or dead-letters the
// message; if it does nothing, the lock expires and the delivery has failed. After
// MaxDeliveries failures the message is dead-lettered.
//
// One mutex guards the broker's state. No socket is written while it is held: frames
// are appended to a buffer of their connection, which a writer flushes. Hooks are
// called without the mutex, from the goroutine that reads the connection. A client
// that sends malformed frames loses its connection; other clients are not affected.
//
// Tests inject faults in two ways. Hooks decide on single transfers, arrivals, links
// and tokens; see Hooks. Cut, Stop and Restart, and ExpireLocks act on everything at
// once. Messages live as long as the Server, whatever happens to its connections.
//
// ServeAdmin adds the management interface over HTTP, as far as checking and creating
// topics, subscriptions and rules needs it.
//
// It has no message sessions, deferral, schedules, transactions, forwarding or
// WebSockets, its filters only compare application properties, and it accepts any
// key: it fakes the protocol and its losses, not the permissions or the limits of a
// namespace.
//
// Source: AMQP 1.0; the Service Bus protocol guide.
package fakeservicebus
