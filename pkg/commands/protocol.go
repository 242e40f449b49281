package commands

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// MaxSteps is how many steps a protocol may have: every change to a job must fit
// into one batch of the store.
const MaxSteps = 32

// Protocol defines the steps of commands with its request types.
type Protocol struct {
	// ID is the protocol_id, unique in its registry.
	ID string `json:"protocol_id"`
	// Version is the version as written in the file, or empty.
	Version string `json:"version,omitempty"`
	// RequestTypes are the request types that the protocol claims, at least one.
	RequestTypes []string `json:"request_types"`
	// SchemaVersions are the accepted schema versions; empty accepts any.
	SchemaVersions []string `json:"schema_versions,omitempty"`
	// Order says which commands run one after the other.
	Order ProtocolOrder `json:"-"`
	// Class is that of commands that name none.
	Class statemachine.Class `json:"-"`
	// Steps are the steps in their order, 1 to [MaxSteps].
	Steps []ProtocolStep `json:"steps"`
	// File is the name of the file, without its folder.
	File string `json:"file"`
	// Digest is the SHA-256 of the file, in hexadecimal: it tells apart two contents under one version.
	Digest string `json:"digest"`
	// PayloadExample is a payload that the protocol accepts; nil if an empty one is valid, or if the
	// schemas gave none.
	PayloadExample json.RawMessage `json:"payload_example,omitempty"`
}

// ProtocolStep is one step of a protocol.
type ProtocolStep struct {
	ID      string `json:"step_id"`
	Type    string `json:"step_type"`
	Service string `json:"service"`
	// Input says where the step's input_ref comes from.
	Input statemachine.InputSource `json:"-"`
	// PayloadPointer is the JSON pointer (RFC 6901) of the step's payload in the
	// command's payload; "" is all of it.
	PayloadPointer string `json:"-"`
	// Mode is the mode of the step, or empty if the protocol sets none.
	Mode statemachine.Mode `json:"-"`
	// Overrides are the timeouts and budgets that the file sets for the step or
	// for the whole protocol. A field that is 0, or a list that is nil, is not
	// set; a list that is empty allows no retry of its cause. A Timeout below 0 is
	// off.
	Overrides statemachine.Policy `json:"-"`
	// schema is the compiled payload_schema, or nil if there is none.
	schema *jsonschema.Schema
}

// Policy returns the step's timeouts and budgets: its own, or the global ones that it
// does not override.
func (s *ProtocolStep) Policy(global statemachine.Policy) statemachine.Policy {
	policy := s.Overrides.Or(global)
	policy.Timeout = max(policy.Timeout, 0)
	return policy
}

// CheckSchemaVersion returns the violation of a schema_version that the protocol does
// not accept, for an error with the code [apierror.SchemaVersionUnsupported].
func (p *Protocol) CheckSchemaVersion(version string) []apierror.Violation {
	if len(p.SchemaVersions) == 0 || slices.Contains(p.SchemaVersions, version) {
		return nil
	}
	accepted := make([]string, len(p.SchemaVersions))
	for i, version := range p.SchemaVersions {
		accepted[i] = strconv.Quote(version)
	}
	return []apierror.Violation{{
		Pointer: "/schema_version",
		Message: fmt.Sprintf("must be %s for the protocol %s", strings.Join(accepted, " or "), p.ID),
	}}
}
