package protocol

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// path is the keys and indexes from the top of a file to one of its values.
type path []string

// to returns the path of a value below this one.
func (p path) to(tokens ...string) path {
	return append(slices.Clip(p), tokens...)
}

// item returns the path of a list's element.
func (p path) item(i int) path { return p.to(strconv.Itoa(i)) }

// String writes the path as people do: steps[1].retry.ack[0].
func (p path) String() string {
	var out strings.Builder
	for i, token := range p {
		_, err := strconv.Atoi(token)
		switch {
		case err == nil:
			out.WriteString("[" + token + "]")
		case i > 0:
			out.WriteString("." + token)
		default:
			out.WriteString(token)
		}
	}
	return out.String()
}

// line returns the line of the value at the path, or of its nearest parent in the
// file, or 0.
func (p path) line(node ast.Node) int {
	line := 0
	for _, token := range p {
		var at int
		if node, at = descend(node, token); node == nil {
			break
		}
		line = at
	}
	return line
}

// descend returns the value of a key or index and the line on which it begins,
// or nil if there is none.
func descend(node ast.Node, token string) (ast.Node, int) {
	switch n := node.(type) {
	case *ast.AnchorNode:
		return descend(n.Value, token)
	case *ast.MappingNode:
		for _, member := range n.Values {
			if key := member.Key.GetToken(); key != nil && key.Value == token {
				return member.Value, key.Position.Line
			}
		}
	case *ast.SequenceNode:
		if i, err := strconv.Atoi(token); err == nil && i < len(n.Values) && n.Values[i].GetToken() != nil {
			return n.Values[i], n.Values[i].GetToken().Position.Line
		}
	}
	return nil, 0
}
