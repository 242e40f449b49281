// Package lucius is the Go SDK of Lucius: a [Client] that submits commands and follows
// their jobs, and a [Worker] that does the work of their steps.
//
//	application ──Submit──▶ ┌────────┐ ◀──claim, heartbeat── Worker
//	                        │ Lucius │ ──directive─────────▶   │ Handler
//	application ◀──Wait──── └────────┘ ◀──complete, fail────   ▼
//
// The types of what is sent and answered are generated from the OpenAPI document of
// the server; their comments say what each field means.
//
// Both retry a call without an answer, or answered with 408, 429, 5xx or the code
// conflict, after growing delays, or after the Retry-After that the server asks for. That
// is safe: every call names what it does, so that the server does it once and repeats its
// answer.
//
// The package depends on the standard library alone.
package lucius

//go:generate go tool -modfile=../../tools/oapi-codegen/go.mod oapi-codegen -config oapi-codegen.yaml ../../api/openapi.yaml
