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
//	body ──ParseJSON──► tree ──► every field checked ──► *Command
//	  │                                        │
//	  └── Members ──► refs, payload verbatim   └─► *apierror.Error that names
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
// A body that [ParseJSON] refuses is answered with its invalid_json or
// too_large, because nothing else can be checked.
//
// # Protocols
//
// A protocol maps the request type of a command to its steps, their order and their services.
//
//	protocols/*.yaml, *.yml, *.json
//	        │ LoadProtocols: the whole folder, or nothing
//	        ▼
//	     Protocols ──Lookup(request_type)──► Protocol ──► Steps
//	        ▲                                    │          ├ Policy(global)
//	        │ Swap ◄── ProtocolFolder            │          └ payload pointer
//	     ProtocolHolder ◄── Load                 ├ CheckSchemaVersion
//	                                             └ ValidatePayload
//
// A protocol is a file. All files of a folder are read and checked together and
// become one registry, which never changes: two files that claim one request
// type, an unknown key, a duration without a unit, a JSON Schema that does not
// compile, each is an error that names file, line and fault. A loaded registry needs
// no further checks.
//
// A [ProtocolFolder] is loaded again when its files change, and hands the registry to the
// [ProtocolHolder]; if loading fails, the old one stays in use. Jobs keep the steps that they
// were accepted with. docs/use/protocols.md has the rules as users see them.
//
// [Protocols], [Protocol] and [ProtocolStep] are immutable and safe for concurrent use.
//
// # Canonical JSON
//
// The SHA-256 of a command's canonical form tells whether two commands are the same.
//
//	text ──ParseJSON──► tree ──AppendCanonical──► canonical text ──HashCanonical──► SHA-256, hex
//	                     │
//	                     └──► the envelope, the JSON Schemas of the protocol
//
// [ParseJSON] refuses text that parsers are known to read differently, because it
// could mean one thing to Lucius and another to a platform service: duplicate
// names, invalid UTF-8, lone surrogates, a byte order mark, text after the
// value. It also refuses, as too large, values nested deeper than [MaxDepth],
// and numbers that need more than [MaxDigits] digits, which only an attacker
// sends.
//
// The canonical form:
//
//   - No white space outside of strings; UTF-8 without a byte order mark.
//   - Members are sorted by the UTF-8 bytes of their names (not by UTF-16 code
//     units, as RFC 8785 does), arrays keep their order.
//   - Members whose value is null are left out, at any depth. A null in an array
//     stays, since leaving it out would move its neighbours.
//   - Numbers keep their exact decimal value and never pass through a float, so
//     2^53 and 2^53+1 differ. They are written in plain decimal notation without
//     exponent, superfluous zeros or a negative zero: 1.50, 1.5 and 15e-1 are
//     all 1.5.
//   - In strings only the quotation mark, the backslash and the control
//     characters U+0000 to U+001F are escaped: \b \t \n \f \r, all others as
//     \u00xx with lower-case digits. There is no other normalisation: é and
//     e followed by a combining accent stay two different strings.
//
// The vectors in testdata/canonicaljson are examples of these rules, and can
// test any other implementation.
//
// Source: Orchestrator flow canvas, Entry; Option B spec, 5 to 7; Ledger and state model,
// Canonical JSON for idempotency.
package commands
