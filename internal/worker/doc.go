// Package worker is a platform service that pulls its work over HTTP: it
// claims directives, runs a handler on each, sends heartbeats meanwhile, and
// reports what came of it. It lives through restarts of the server: a call
// without an answer is made again with the same request id, and what the
// server answered the first time it answers again.
package worker
