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
// It lives through restarts of the server. A call that is not answered, or
// answered with 5xx or 429, is made again, with growing delays and the same
// request id, so that what the server did the first time is answered and not
// done twice. A claim is repeated for as long as the worker runs, a report and
// a heartbeat until the server says that the attempt is another's.
//
// Delivery is at least once: a handler may see a directive again, and must do
// the same then.
package worker
