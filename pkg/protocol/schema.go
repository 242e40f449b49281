package protocol

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lucius-project/lucius/pkg/canonicaljson"
	"github.com/lucius-project/lucius/pkg/problem"
)

// errNotLoaded is returned for every reference of a schema to another document.
var errNotLoaded = errors.New("references to other documents are not loaded")

// noLoader keeps the compiler from the network and from the file system.
type noLoader struct{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(string) (any, error) { return nil, errNotLoaded }

// schema compiles a payload_schema, or returns nil if there is none.
func (c *checker) schema(at path, document any) *jsonschema.Schema {
	if document == nil {
		return nil
	}
	tree, err := jsonTree(document)
	if err != nil {
		c.fail(at, "is not JSON: %v", err)
		return nil
	}
	schema, err := compile(tree)
	if err != nil {
		c.schemaFault(at, err)
		return nil
	}
	return schema
}

// jsonTree turns a value decoded from YAML into the same value decoded from JSON:
// NaN is an error, and binary data becomes text.
func jsonTree(document any) (any, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	tree, err := canonicaljson.Parse(text)
	if err != nil {
		// The error's offset is in the intermediate JSON, so it is left out.
		fault := problem.From(err).Errors[0]
		return nil, fmt.Errorf("%q %s", fault.Pointer, fault.Message)
	}
	return tree, nil
}

// compile compiles a schema of draft 2020-12, unless it names another draft, and
// loads no other document. Formats are asserted: "format: date" is a constraint.
func compile(tree any) (*jsonschema.Schema, error) {
	const url = "schema:///payload_schema"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(url, tree); err != nil {
		return nil, err
	}
	return compiler.Compile(url)
}

// schemaFault records why a schema does not compile, each fault on its line.
func (c *checker) schemaFault(at path, err error) {
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		c.fail(at, "refers to %s: only references within the schema itself are allowed", load.URL)
		return
	}
	var validation *jsonschema.ValidationError
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); !ok || !errors.As(invalid.Err, &validation) {
		c.fail(at, "does not compile: %s", firstLine(err.Error()))
		return
	}
	for finding := range explain(validation) {
		c.fail(at.to(finding.location...), "%s", finding.message)
	}
}
