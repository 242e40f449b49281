// Package repolint holds the rules of this repository that neither the
// compiler nor the linter knows, as tests over its files. It has no code of
// its own: `go test ./internal/repolint` is all there is to it.
//
// Each test is one rule. Its comment gives the reason, and its failure names
// the file, the line and what to do.
package repolint
