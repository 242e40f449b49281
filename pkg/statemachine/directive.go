package statemachine

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Directive is what a platform service receives. Every field is always there,
// null where it is unset.
//
// Source: Option B spec, 11.1.
type Directive struct {
	Type           string          `json:"type"`
	JobID          string          `json:"jobId"`
	StepID         string          `json:"stepId"`
	TenantID       string          `json:"tenant_id"`
	ProtocolID     string          `json:"protocol_id"`
	StepType       string          `json:"step_type"`
	Service        string          `json:"service"`
	AttemptNo      int             `json:"attempt_no"`
	LeaseID        string          `json:"lease_id"`
	InputRef       json.RawMessage `json:"input_ref"`
	WorkspaceRef   json.RawMessage `json:"workspace_ref"`
	OutputRef      json.RawMessage `json:"output_ref"`
	Payload        json.RawMessage `json:"payload"`
	Mode           Mode            `json:"mode"`
	Lane           int             `json:"lane"`
	RoutingKeyUsed string          `json:"routing_key_used"`
	CorrelationID  *string         `json:"correlation_id"`
	Traceparent    *string         `json:"traceparent"`
}

// NewDirective is the directive of the row's attempt, with the step's part of
// the command's payload.
func NewDirective(job *Job, step *Step, row *Outbox, payload json.RawMessage) Directive {
	return Directive{
		Type: "DIRECTIVE", JobID: job.ID, StepID: step.ID, TenantID: job.TenantID, ProtocolID: job.ProtocolID,
		StepType: step.Type, Service: step.Service, AttemptNo: row.AttemptNo, LeaseID: row.LeaseID,
		InputRef: step.InputRef, WorkspaceRef: job.WorkspaceRef, OutputRef: step.OutputRef, Payload: payload,
		Mode: row.Routing.ResolvedMode, Lane: row.Routing.Lane, RoutingKeyUsed: row.Routing.RoutingKeyUsed,
		CorrelationID: orNull(job.CorrelationID), Traceparent: orNull(job.Traceparent),
	}
}

// Bytes is the message body: the same for the same directive. References and
// payload take no more room in it than they were sent with.
func (d *Directive) Bytes() ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(d); err != nil {
		return nil, fmt.Errorf("encode a directive: %w", err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

// orNull is nil for an empty string.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// WithoutLease is a directive for eyes that must not act on it: the lease id,
// a capability, is left out.
func WithoutLease(directive []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(directive, &fields); err != nil {
		return nil, fmt.Errorf("read a directive: %w", err)
	}
	delete(fields, "lease_id")
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode a directive: %w", err)
	}
	return body, nil
}
