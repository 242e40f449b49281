// Package envelope reads a command from the body of a request and checks all of
// it that needs no protocol: which fields there are, their types and sizes, the
// references, the mode.
//
//	body ──canonicaljson.Parse──► tree ──► every field checked ──► *Command
//	  │                                        │
//	  └── Members ──► refs, payload verbatim   └─► *problem.Error that names
//	headers ──► idempotency key, traceparent        every violation
//
// A command is accepted whole or refused with all that is wrong with it, each
// by its JSON pointer, so that a client mends it in one go. Unknown fields are
// refused, since they are mostly typing errors. A field that is null counts as
// absent, as in the canonical form.
//
// Where the violations are of several kinds, one code is answered, the first of
//
//	invalid_envelope   a field is missing, unknown, of the wrong type or form
//	too_large          a value exceeds one of the limits below
//	ref_invalid        a reference without a URI, or with one not allowed
//
// and before them all what [canonicaljson.Parse] refuses, invalid_json or
// too_large, with which nothing else can be checked.
//
// What the payload must hold is the protocol's business, where it goes that of
// the router. The package is pure and safe for concurrent use.
//
// Source: Option B spec, 5. Request Envelope and Validation.
package envelope
