package commands

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// protocolDefinition is the content of a protocol file.
type protocolDefinition struct {
	ProtocolID     yamlScalar       `yaml:"protocol_id"`
	Version        yamlScalar       `yaml:"version"`
	RequestTypes   []yamlScalar     `yaml:"request_types"`
	SchemaVersions []yamlScalar     `yaml:"schema_versions"`
	Order          orderDefinition  `yaml:"order"`
	Priority       yamlScalar       `yaml:"priority"`
	Steps          []stepDefinition `yaml:"steps"`
	Defaults       policyDefinition `yaml:",inline"`
}

// stepDefinition is a step in a protocol file.
type stepDefinition struct {
	StepID        yamlScalar       `yaml:"step_id"`
	StepType      yamlScalar       `yaml:"step_type"`
	Service       yamlScalar       `yaml:"service"`
	Input         yamlScalar       `yaml:"input"`
	Payload       yamlScalar       `yaml:"payload"`
	PayloadSchema any              `yaml:"payload_schema"`
	Own           policyDefinition `yaml:",inline"`
}

// yamlScalar is a single value with its text as written: the version 1.10 is
// not 1.1. The zero value stands for absent and null alike.
type yamlScalar struct {
	text string
	set  bool
	// compound says that the value is a list or a mapping instead of a text.
	compound bool
}

// UnmarshalYAML reads the node; it implements [yaml.NodeUnmarshaler]. It accepts a
// node of another kind, so that the checker reports it with all other faults.
func (s *yamlScalar) UnmarshalYAML(node ast.Node) error {
	switch n := node.(type) {
	case *ast.NullNode:
		*s = yamlScalar{}
	case *ast.LiteralNode:
		*s = yamlScalar{text: n.Value.Value, set: true}
	case *ast.StringNode:
		*s = yamlScalar{text: n.Value, set: true}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		*s = yamlScalar{text: node.GetToken().Value, set: true}
	default:
		*s = yamlScalar{set: true, compound: true}
	}
	return nil
}

// decodeProtocol reads the one document of a file, which keeps its lines in the node.
func decodeProtocol(text []byte) (d *protocolDefinition, root ast.Node, fault *strictyaml.Error) {
	d = new(protocolDefinition)
	fault = strictyaml.Decode(text, d, func(node ast.Node) error {
		root = node
		return nil
	})
	return d, root, fault
}

// schemaPath is the keys and indexes from the top of a file to one of its values.
type schemaPath []string

// to returns the path of a value below this one.
func (p schemaPath) to(tokens ...string) schemaPath {
	return append(slices.Clip(p), tokens...)
}

// item returns the path of a list's element.
func (p schemaPath) item(i int) schemaPath { return p.to(strconv.Itoa(i)) }

// String formats the path like steps[1].retry.ack[0].
func (p schemaPath) String() string {
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
func (p schemaPath) line(node ast.Node) int {
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
