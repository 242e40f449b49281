package commands

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// protocolChecker turns one file into a protocol and collects its faults.
type protocolChecker struct {
	file   string
	root   ast.Node
	faults []*strictyaml.Error
}

// fail records a fault of the value at the path.
func (c *protocolChecker) fail(at schemaPath, format string, args ...any) {
	c.faults = append(c.faults, &strictyaml.Error{
		File: c.file, Line: at.line(c.root), Message: at.String() + " " + fmt.Sprintf(format, args...),
	})
}

// protocol checks everything that concerns only this file.
func (c *protocolChecker) protocol(d *protocolDefinition) *Protocol {
	p := &Protocol{
		ID:             c.id(schemaPath{"protocol_id"}, d.ProtocolID),
		RequestTypes:   c.names(schemaPath{"request_types"}, d.RequestTypes, maxRequestTypes, maxRequestType),
		SchemaVersions: c.names(schemaPath{"schema_versions"}, d.SchemaVersions, maxSchemaVersions, maxSchemaVersion),
		Order:          c.order(&d.Order),
		Class:          c.class(d.Priority),
		File:           c.file,
	}
	if d.Version.set {
		p.Version = c.id(schemaPath{"version"}, d.Version)
	}
	if len(d.RequestTypes) == 0 {
		c.fail(schemaPath{"request_types"}, "must name at least one request type")
	}
	switch steps := len(d.Steps); {
	case steps == 0:
		c.fail(schemaPath{"steps"}, "must hold at least one step")
	case steps > MaxSteps:
		c.fail(schemaPath{"steps"}, "holds %d steps; at most %d are allowed", steps, MaxSteps)
		return p
	}
	mode, defaults := c.mode(schemaPath{}, d.Defaults.Mode), c.policy(schemaPath{}, d.Defaults)
	for i := range d.Steps {
		step := c.step(schemaPath{"steps"}.item(i), &d.Steps[i])
		if step.Mode == "" {
			step.Mode = mode
		}
		step.Overrides = step.Overrides.Or(defaults)
		if first := slices.IndexFunc(p.Steps, func(s ProtocolStep) bool { return s.ID == step.ID }); first >= 0 && step.ID != "" {
			c.fail(schemaPath{"steps"}.item(i).to("step_id"), "is %q, as that of steps[%d] is", step.ID, first)
		}
		p.Steps = append(p.Steps, step)
	}
	return p
}

// step checks one step.
func (c *protocolChecker) step(at schemaPath, d *stepDefinition) ProtocolStep {
	return ProtocolStep{
		ID:             c.id(at.to("step_id"), d.StepID),
		Type:           c.id(at.to("step_type"), d.StepType),
		Service:        c.id(at.to("service"), d.Service),
		Input:          c.input(at.to("input"), d.Input),
		PayloadPointer: c.pointer(at.to("payload"), d.Payload),
		Mode:           c.mode(at, d.Own.Mode),
		Overrides:      c.policy(at, d.Own),
		schema:         c.schema(at.to("payload_schema"), d.PayloadSchema),
	}
}

// The limits of a protocol file, in addition to [MaxSteps].
const (
	maxRequestTypes   = 64
	maxRequestType    = 128 // bytes, as in a command
	maxSchemaVersions = 64
	maxSchemaVersion  = 32 // bytes, as in a command
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// text returns the text of a value, and false if it is absent or not a text.
func (c *protocolChecker) text(at schemaPath, s yamlScalar) (string, bool) {
	if s.compound {
		c.fail(at, "must be a single value")
	}
	return s.text, s.set && !s.compound
}

// id checks an id that is required.
func (c *protocolChecker) id(at schemaPath, s yamlScalar) string {
	text, ok := c.text(at, s)
	switch {
	case !s.set:
		c.fail(at, "is required")
	case ok && !idPattern.MatchString(text):
		c.fail(at, "is %q and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -", text)
	}
	return text
}

// names checks a list of texts that commands may carry.
func (c *protocolChecker) names(at schemaPath, list []yamlScalar, count, size int) []string {
	if len(list) > count {
		c.fail(at, "holds %d entries; at most %d are allowed", len(list), count)
		return nil
	}
	var names []string
	for i, s := range list {
		text, _ := c.text(at.item(i), s)
		_, fault := textFault(text, size)
		switch {
		case s.compound:
		case fault != "":
			c.fail(at.item(i), "%s", fault)
		case slices.Contains(names, text):
			c.fail(at.item(i), "is %q, which the list holds already", text)
		}
		names = append(names, text)
	}
	return names
}

// input checks where a step's input comes from.
func (c *protocolChecker) input(at schemaPath, s yamlScalar) statemachine.InputSource {
	source := statemachine.InputSource(c.word(at, s, string(statemachine.InputJob), string(statemachine.InputPrevious)))
	return cmp.Or(source, statemachine.InputJob)
}

// mode checks a mode.
func (c *protocolChecker) mode(at schemaPath, s yamlScalar) statemachine.Mode {
	return statemachine.Mode(c.word(at.to("mode"), s, string(statemachine.ModeDefault), string(statemachine.ModeBurst)))
}

// pointer checks a JSON pointer.
func (c *protocolChecker) pointer(at schemaPath, s yamlScalar) string {
	text, _ := c.text(at, s)
	if !jsontext.Pointer(text).IsValid() {
		c.fail(at, "is %q and must be a JSON pointer: empty, or /name/name with ~0 for ~ and ~1 for /", text)
	}
	return text
}

// class checks the class of the protocol's commands.
func (c *protocolChecker) class(priority yamlScalar) statemachine.Class {
	word := c.word(schemaPath{"priority"}, priority, statemachine.ClassNormal.String(), statemachine.ClassBulk.String())
	class, _ := statemachine.ParseClass(word)
	return class
}
