// Package worker is a platform service that pulls its work over HTTP.
//
//	       ┌──────────── free slots ◀───────────┐
//	       ▼                                    │
//	claim (long poll, many at once, started)    │
//	       │                                    │
//	       ├──▶ handle ──▶ complete or fail ────┤
//	       │       ┆ heartbeats                 │
//	       ├──▶ handle ──▶ complete or fail ────┤
//	       ┆                                    ┆
//
// The worker survives restarts of the server. It retries a call without an answer,
// or answered with 408, 429 or 5xx, with growing delays and the same request id, so
// that the server repeats its answer and not the work. It retries a claim for as long
// as the worker runs, and a report or heartbeat until the server says that the
// attempt belongs to another worker.
//
// Delivery is at least once: a handler may see a directive again, and must be
// idempotent.
package worker
