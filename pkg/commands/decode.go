package commands

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/canonicaljson"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/routing"
)

// Decode reads and checks a command. The error is a [problem.Error] with the code
// [problem.InvalidJSON], [problem.InvalidEnvelope], [problem.TooLarge] or
// [problem.RefInvalid]. The command aliases body.
//
// Source: Option B spec, 5.2.
func Decode(body []byte, headers Headers, policy Policy) (*Command, error) {
	tree, err := canonicaljson.Parse(body)
	if err != nil {
		return nil, err
	}
	fields, isObject := tree.(map[string]any)
	texts, _ := canonicaljson.Members(body)
	d := decoder{policy: policy, fields: fields, texts: texts}
	if !isObject {
		d.fail(problem.InvalidEnvelope, "", "must be an object, not %s", describe(tree))
		return nil, d.err()
	}
	command := d.command(headers)
	if err := d.err(); err != nil {
		return nil, err
	}
	command.Hash = hash(fields)
	return command, nil
}

// hashed are the fields that must be equal in two equal commands.
//
// Source: Ledger and state model, Canonical JSON for idempotency.
var hashed = []string{"tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"}

// hash returns the idempotency hash.
func hash(fields map[string]any) string {
	same := make(map[string]any, len(hashed))
	for _, name := range hashed {
		same[name] = fields[name]
	}
	return canonicaljson.Hash(same)
}

// known are the fields of a command.
var known = map[string]bool{
	"tenant_id": true, "request_type": true, "schema_version": true, "input_ref": true, "output_ref": true, "payload": true,
	"mode": true, "doc_id": true, "idempotency_key": true, "callback_urls": true, "workspace_ref": true, "correlation_id": true,
	"traceparent": true,
}

// decoder collects the fields of one command and the violations among them.
type decoder struct {
	policy     Policy
	fields     map[string]any
	texts      map[string]json.RawMessage
	code       problem.Code
	violations []problem.Violation
	unnamed    int
}

// command reads all fields. Its result is valid only without a violation.
func (d *decoder) command(headers Headers) *Command {
	c := &Command{
		TenantID:      d.text("tenant_id", MaxTenantID, required),
		RequestType:   d.text("request_type", MaxRequestType, required),
		SchemaVersion: d.text("schema_version", MaxSchemaVersion, required),
		InputRef:      d.ref("input_ref", required),
		OutputRef:     d.ref("output_ref", required),
		Mode:          d.mode(),
		DocID:         d.text("doc_id", MaxDocID, optional),
		CallbackURLs:  d.callbackURLs(),
		WorkspaceRef:  d.ref("workspace_ref", optional),
		CorrelationID: d.text("correlation_id", MaxCorrelationID, optional),
		Traceparent:   d.traceparent(headers.Traceparent),
	}
	c.Payload, c.PayloadTree = d.payload()
	c.IdempotencyKey = d.idempotencyKey(headers.IdempotencyKey)
	if c.Mode == routing.Burst && d.fields["doc_id"] == nil {
		d.fail(problem.InvalidEnvelope, "/doc_id", "is required in the mode %s", routing.Burst)
	}
	for _, name := range slices.Sorted(maps.Keys(d.fields)) {
		if !known[name] {
			d.fail(problem.InvalidEnvelope, string(jsontext.Pointer("").AppendToken(name)), "is not a field of a command")
		}
	}
	return c
}

// fail records a violation.
func (d *decoder) fail(code problem.Code, pointer, format string, args ...any) {
	d.code = problem.Foremost(d.code, code)
	if len(d.violations) == MaxViolations {
		d.unnamed++
		return
	}
	d.violations = append(d.violations, problem.Violation{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// err returns the error of all violations, or nil if there are none.
func (d *decoder) err() error {
	if len(d.violations) == 0 {
		return nil
	}
	if d.unnamed > 0 {
		d.violations = append(d.violations, problem.Violation{Message: fmt.Sprintf("has %d more violations", d.unnamed)})
	}
	return &problem.Error{Code: d.code, Errors: d.violations}
}
