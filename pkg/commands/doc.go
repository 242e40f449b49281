// Package commands is the way in: a command is decoded, checked against its
// protocol, routed, and accepted as a job.
//
//	body ──▶ envelope ──▶ protocol ──▶ payload schemas ──▶ routing ──▶ ledger
//	           400, 413,     422            422              400       202, 422,
//	           422                                                     429, 503
//
// Nothing is written before the ledger's accept, and once that returns the job
// is durable.
//
// Source: Orchestrator flow canvas, Entry; Option B spec, 5 to 7.
package commands
