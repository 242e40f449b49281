package api

import (
	_ "embed"
	"slices"
)

//go:embed openapi.yaml
var spec []byte

// Spec returns the OpenAPI document, in YAML. The caller owns the bytes.
func Spec() []byte { return slices.Clone(spec) }
