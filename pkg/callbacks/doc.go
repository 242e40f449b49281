// Package callbacks applies the reports of workers: ACK, heartbeat and RESULT.
//
//	POST /v1/callbacks/*  ──┐
//	                        ├──▶ Service.Apply ──▶ one event ──▶ ledger
//	reply topics          ──┘
//
// Both read the same bodies, and api.Callback translates each into its event.
//
// A callback carries its directive's pair of attempt number and lease id. The state
// machine compares it with the step's current pair: a callback that does not match
// changes nothing and is answered as stale; one that was applied before is answered
// as a duplicate. So a worker may send each callback as often as it likes.
//
// Source: Option B spec, section 11; Orchestrator flow canvas, Callbacks.
package callbacks
