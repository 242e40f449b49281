// Package callbacks is how workers report: ACK, heartbeat and RESULT.
//
//	POST /v1/callbacks/*  ──┐
//	/v1/work/{workId}:*   ──┼──▶ Service ──▶ one event ──▶ ledger
//	reply topics          ──┘
//
// A callback carries the pair of attempt number and lease id that its
// directive had. The state machine compares it with the step's current pair:
// one that does not match changes nothing and is answered as stale, one that
// was applied before is answered as the first was. So a worker may send each
// callback as often as it likes.
//
// Source: Option B spec, section 11; Orchestrator flow canvas, Callbacks.
package callbacks
