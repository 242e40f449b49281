// Package amqppeer is a Service Bus for tests, and for running the whole on a
// laptop: a broker in the process that speaks AMQP 1.0 on a TCP port of its own.
// The unmodified SDK of Azure talks to it, so what a test sees is what the SDK makes
// of the wire, its own retries and silent resends included.
//
//	client ── TCP ──▶ connection        handshake.go, frame.go, encode.go, decode.go
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
// A connection begins with SASL ANONYMOUS; who the client is, it says in the tokens
// that it puts at $cbs. A topic keeps nothing: it hands every message to each of its
// subscriptions, once for a message id within its window. A subscription locks what
// it delivers. The receiver completes it, gives it back, or makes it a dead letter; if
// it does nothing, the lock runs out and the delivery has failed. So many failures
// make a dead letter too.
//
// All of it is guarded by one mutex, and no socket is written with it held: frames
// are appended to a buffer of their connection, which a writer flushes. Hooks are
// called without it, from the goroutine that reads the connection. A client that
// sends nonsense loses its connection; nobody else notices.
//
// Two kinds of things can go wrong on purpose. Hooks decide over single transfers,
// arrivals, links and tokens; see Hooks. Cut, Stop and Restart, and ExpireLocks act
// on all at once. The messages live as long as the Server, whatever happens to its
// connections.
//
// It has no sessions (of messages), deferral, schedules, transactions, forwarding or
// WebSockets, its filters only compare application properties, and it takes any key:
// it is a peer for the protocol and for what can be lost on the way, not for the
// rights or the limits of a namespace.
//
// Source: AMQP 1.0; the Service Bus protocol guide.
package amqppeer
