package protocol

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/reload"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// checker turns one file into a protocol and collects its faults.
type checker struct {
	file   string
	root   ast.Node
	faults []*reload.FileError
}

// fail records a fault of the value at the path.
func (c *checker) fail(at path, format string, args ...any) {
	c.faults = append(c.faults, &reload.FileError{
		File: c.file, Line: at.line(c.root), Message: at.String() + " " + fmt.Sprintf(format, args...),
	})
}

// protocol checks everything that concerns only this file.
func (c *checker) protocol(d *definition) *Protocol {
	p := &Protocol{
		ID:             c.id(path{"protocol_id"}, d.ProtocolID),
		RequestTypes:   c.names(path{"request_types"}, d.RequestTypes, maxRequestTypes, maxRequestType),
		SchemaVersions: c.names(path{"schema_versions"}, d.SchemaVersions, maxSchemaVersions, maxSchemaVersion),
		File:           c.file,
	}
	if d.Version.set {
		p.Version = c.id(path{"version"}, d.Version)
	}
	if len(d.RequestTypes) == 0 {
		c.fail(path{"request_types"}, "must name at least one request type")
	}
	switch steps := len(d.Steps); {
	case steps == 0:
		c.fail(path{"steps"}, "must hold at least one step")
	case steps > MaxSteps:
		c.fail(path{"steps"}, "holds %d steps; at most %d are allowed", steps, MaxSteps)
		return p
	}
	mode, defaults := c.mode(path{}, d.Defaults.Mode), c.policy(path{}, d.Defaults)
	for i := range d.Steps {
		step := c.step(path{"steps"}.item(i), &d.Steps[i])
		if step.Mode == "" {
			step.Mode = mode
		}
		step.Overrides = overlay(step.Overrides, defaults)
		if first := slices.IndexFunc(p.Steps, func(s Step) bool { return s.ID == step.ID }); first >= 0 && step.ID != "" {
			c.fail(path{"steps"}.item(i).to("step_id"), "is %q, as that of steps[%d] is", step.ID, first)
		}
		p.Steps = append(p.Steps, step)
	}
	return p
}

// step checks one step.
func (c *checker) step(at path, d *stepDefinition) Step {
	return Step{
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

// policy checks the timeouts and budgets of a protocol or of a step.
func (c *checker) policy(at path, d policyDefinition) statemachine.Policy {
	retry := at.to("retry")
	return statemachine.Policy{
		AckTimeout:  c.duration(at.to("ack_timeout"), d.AckTimeout),
		Lease:       c.duration(at.to("lease"), d.Lease),
		Timeout:     c.duration(at.to("timeout"), d.Timeout),
		Dispatch:    c.delays(retry.to("dispatch"), d.Retry.Dispatch),
		Ack:         c.delays(retry.to("ack"), d.Retry.Ack),
		Execution:   c.delays(retry.to("execution"), d.Retry.Execution),
		MaxAttempts: c.attempts(retry.to("max_attempts"), d.Retry.MaxAttempts),
	}
}
