package api

import (
	_ "embed"
	"slices"
)

//go:generate go tool -modfile=../tools/oapi-codegen/go.mod oapi-codegen -config oapi-codegen.yaml openapi.yaml
//go:generate go run ../internal/apipage -document openapi.yaml -o docs.gen.html

//go:embed openapi.yaml
var spec []byte

// Spec returns the OpenAPI document, in YAML. The caller owns the bytes.
func Spec() []byte { return slices.Clone(spec) }

//go:embed docs.gen.html
var docs []byte

// Docs returns the OpenAPI document as a page of HTML, which has its style in its
// only style element, no script, and nothing to load. The caller owns the bytes.
func Docs() []byte { return slices.Clone(docs) }
