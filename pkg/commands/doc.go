// Package commands decodes a command, checks it against its protocol, routes its
// steps and accepts it as a job.
//
//	body ──▶ Decode ──▶ authorize ──▶ protocol ──▶ payload schemas ──▶ routing ──▶ ledger
//	           400, 413,    403           422            422              400       202, 422,
//	           422                                                                  429, 503
//
// Nothing is written before the ledger's accept, and when that returns the job is
// durable.
//
// [Decode] checks what needs no protocol: the fields with their types and sizes, the
// references, the mode.
//
//	body ──canonicaljson.Parse──► tree ──► every field checked ──► *Command
//	  │                                        │
//	  └── Members ──► refs, payload verbatim   └─► *problem.Error that names
//	headers ──► idempotency key, traceparent        every violation
//
// A refusal lists all violations with their JSON pointers, so that a client can fix
// them in one go. Unknown fields are refused, since they are mostly typing errors. A
// null field counts as absent, as in the canonical form. If there are violations of
// several kinds, the answer has the first of the codes
//
//	invalid_envelope   a field is missing, unknown, of the wrong type or form
//	too_large          a value exceeds one of the limits below
//	ref_invalid        a reference without a URI, or with one not allowed
//
// A body that [canonicaljson.Parse] refuses is answered with its invalid_json or
// too_large, because nothing else can be checked.
//
// Source: Orchestrator flow canvas, Entry; Option B spec, 5 to 7.
package commands
