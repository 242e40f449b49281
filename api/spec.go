// Package api is the wire contract of Lucius as code.
//
//	openapi.yaml ──► lucius.gen.go   types, gorilla/mux glue, client
//	     │
//	     ├─────────► Spec()          the document itself, served as it is
//	     │
//	     ├─────────► docs.gen.html   the document as a page, [Docs]
//	     │
//	     └─────────► check.go        its limits on requests, by hand,
//	                                 because generated validation is slow
//	                   decode.go     the rules for the text of every body, and
//	                                 the problem of one that does not decode
//
// openapi.yaml is written first; everything else follows from it or is tested
// against it. To change the contract, edit the document, then run go generate.
//
// References, payloads and directives are [encoding/json.RawMessage]: Lucius
// does not read them, so their bytes pass through. Times are [Time], which
// writes RFC 3339 in UTC with milliseconds.
//
// A program that talks to Lucius uses [NewClientWithResponses].
package api

import (
	_ "embed"
	"slices"
)

//go:generate go tool -modfile=../tools/oapi-codegen/go.mod oapi-codegen -config oapi-codegen.yaml openapi.yaml
//go:generate go run ../internal/apidocs -document openapi.yaml -o docs.gen.html

//go:embed openapi.yaml
var spec []byte

// Spec returns the OpenAPI document, in YAML. The caller owns the bytes.
func Spec() []byte { return slices.Clone(spec) }

//go:embed docs.gen.html
var docs []byte

// Docs returns the OpenAPI document as a page of HTML, which has its style in its
// only style element, no script, and nothing to load. The caller owns the bytes.
func Docs() []byte { return slices.Clone(docs) }
