package auth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// value is a value of the file with its position. An absent value has no node, and
// the line of the mapping that lacks it.
type value struct {
	path string
	line int
	node ast.Node
}

// reader collects all faults of a file, so that they are reported together.
type reader struct {
	file   string
	faults []*strictyaml.Error
	taken  map[string]int // Which caller has each value that must be unique.
}

// fail records a fault of a value. It masks tokens, because the message may quote the
// value, which could be a misplaced token.
func (r *reader) fail(v value, format string, args ...any) {
	message := Printable(strings.TrimSpace(v.path + " " + fmt.Sprintf(format, args...)))
	r.faults = append(r.faults, &strictyaml.Error{File: r.file, Line: v.line, Message: message})
}

// document parses the text, which must hold one document, and calls use with it.
func (r *reader) document(text []byte, use func(top value)) {
	fault := strictyaml.ParseYAML(text, func(root ast.Node) error {
		use(at("", root, 1))
		return nil
	})
	if fault != nil {
		r.fail(value{line: fault.Line}, "%s", fault.Message)
	}
}

// at returns the value of a node; line is used if the node has no position.
func at(path string, node ast.Node, line int) value {
	if token := node.GetToken(); token != nil && token.Position != nil {
		line = token.Position.Line
	}
	return value{path: path, line: line, node: node}
}

// members returns the values of a mapping by its keys; other keys are faults.
func (r *reader) members(v value, keys []string) map[string]value {
	found := map[string]value{}
	for _, key := range keys {
		found[key] = value{path: strings.TrimPrefix(v.path+"."+key, "."), line: v.line}
	}
	if v.node == nil {
		return found
	}
	mapping, ok := v.node.(*ast.MappingNode)
	if !ok {
		r.fail(v, "must be a mapping with the keys %s", strings.Join(keys, ", "))
		return found
	}
	for i, member := range mapping.Values {
		key := at(v.path, member.Key, v.line)
		if i == 0 {
			v.line = key.line
		}
		name := key.node.GetToken().Value
		if !slices.Contains(keys, name) {
			r.fail(key, "has the unknown key %q; known are %s", name, strings.Join(keys, ", "))
			continue
		}
		found[name] = value{path: strings.TrimPrefix(v.path+"."+name, "."), line: key.line, node: member.Value}
	}
	return found
}

// list returns the values of a list; an absent list is empty.
func (r *reader) list(v value, most int) []value {
	if v.absent() {
		return nil
	}
	sequence, ok := v.node.(*ast.SequenceNode)
	switch {
	case !ok:
		r.fail(v, "must be a list")
		return nil
	case len(sequence.Values) == 0:
		r.fail(v, "must not be empty")
	case len(sequence.Values) > most:
		r.fail(v, "holds %d entries; at most %d are allowed", len(sequence.Values), most)
		return nil
	}
	values := make([]value, 0, len(sequence.Values))
	for i, node := range sequence.Values {
		values = append(values, at(fmt.Sprintf("%s[%d]", v.path, i), node, v.line))
	}
	return values
}

// texts returns the single values of a list.
func (r *reader) texts(v value, most int) []string {
	var texts []string
	for _, v := range r.list(v, most) {
		text, _ := r.text(v)
		texts = append(texts, text)
	}
	return texts
}

// text returns a single value as it is written; an absent one is a fault.
func (r *reader) text(v value) (string, bool) {
	text, ok := v.scalar()
	_, mapping := v.node.(*ast.MappingNode)
	switch {
	case ok:
	case v.absent():
		r.fail(v, "is required")
	case mapping:
		r.fail(v, "must be a single value; put it in quotes if it has a colon")
	default:
		r.fail(v, "must be a single value")
	}
	return text, ok
}

// scalar returns the value as it is written, if it is a single value.
func (v value) scalar() (string, bool) {
	switch node := v.node.(type) {
	case *ast.StringNode:
		return node.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return node.GetToken().Value, true
	default:
		return "", false
	}
}

// absent reports whether there is no value, or null.
func (v value) absent() bool {
	_, null := v.node.(*ast.NullNode)
	return v.node == nil || null
}
