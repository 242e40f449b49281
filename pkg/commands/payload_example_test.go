package commands_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/lucius-project/lucius/pkg/commands"
)

// Each payload is one that the protocol accepts, or there is none.
func TestExamplePayload(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		steps []string // What each has beside its names.
		want  string
	}{
		"no schema": {[]string{""}, ``},
		"the members that are required": {
			[]string{`payload_schema: {type: object, required: [words, language], properties: {words: {type: integer, minimum: 1}, language: {type: string}, more: {type: string}}}`}, `{"language":"text","words":1}`,
		},
		"what the schema says by itself": {
			[]string{`payload_schema: {required: [a, b, c, d], properties: {a: {const: 7}, b: {enum: [low, high]}, c: {type: string, default: en}, d: {examples: [x1]}}}`}, `{"a":7,"b":"low","c":"en","d":"x1"}`,
		},
		"texts": {
			[]string{`payload_schema: {required: [a, b, c, d], properties: {a: {type: string, format: date}, b: {type: string, minLength: 6}, c: {type: string, maxLength: 2}, d: {type: string, format: email}}}`}, `{"a":"2026-01-27","b":"xxxxxx","c":"te","d":"person@example.com"}`,
		},
		"numbers": {
			[]string{`payload_schema: {required: [a, b, c, d, e, f], properties: {a: {type: number, exclusiveMinimum: 0}, b: {type: integer, multipleOf: 5, minimum: 11}, c: {type: number, maximum: 0.5}, d: {type: integer, maximum: -3}, e: {type: integer, exclusiveMinimum: 2.5}, f: {type: number, exclusiveMaximum: 1}}}`}, `{"a":1,"b":15,"c":0.5,"d":-3,"e":4,"f":0}`,
		},
		"lists and what is in them": {
			[]string{`payload_schema: {required: [a, b, c], properties: {a: {type: array, minItems: 2, items: {type: boolean}}, b: {type: array}, c: {type: array, minItems: 1, prefixItems: [{type: object, required: [n], properties: {n: {type: integer}}}]}}}`}, `{"a":[true,true],"b":[],"c":[{"n":1}]}`,
		},
		"a member that has no schema": {[]string{`payload_schema: {type: object, required: [title]}`}, `{"title":"text"}`},
		"schemas for the same value": {
			[]string{`payload_schema: {allOf: [{required: [a], properties: {a: {type: integer}}}, {$ref: "#/$defs/b"}], oneOf: [{required: [c], properties: {c: {const: 1}}}, {required: [d]}], $defs: {b: {required: [b], properties: {b: {type: boolean}}}}}`}, `{"a":1,"b":true,"c":1}`,
		},
		"parts of steps": {
			[]string{`payload: /ocr/first, payload_schema: {required: [dpi], properties: {dpi: {type: integer, minimum: 72}}}`, `payload: /ocr, payload_schema: {required: [first, language], properties: {language: {type: string}}}`}, `{"ocr":{"first":{"dpi":72},"language":"text"}}`,
		},
		"a schema that contains itself": {
			[]string{`payload_schema: {$ref: "#/$defs/node", $defs: {node: {type: object, required: [next], properties: {next: {$ref: "#/$defs/node"}}}}}`}, ``,
		},
		"schemas that grow tenfold with each level":   {[]string{`payload_schema: {required: [a], properties: {a: {$ref: "#/$defs/v1"}}, $defs: {` + tenfold(12) + `}}`}, ``},
		"a constant that exceeds the largest example": {[]string{`payload_schema: {required: [a], properties: {a: {const: ` + strings.Repeat("x", 10_000) + `}}}`}, ``},
		"a part that allows no other members": {
			[]string{`payload: /read, payload_schema: {type: object, additionalProperties: false, required: [pages, "who's"], properties: {pages: {type: integer, minimum: 3}, "who's": {enum: ["it's <me>"]}}}`},
			`{"read":{"pages":3,"who's":"it's \u003cme\u003e"}}`,
		},
		"a pattern":                {[]string{`payload_schema: {required: [a], properties: {a: {type: string, pattern: "^[0-9]{8}$"}}}`}, ``},
		"nothing fits":             {[]string{`payload_schema: false`}, ``},
		"the payload is no object": {[]string{`payload_schema: {type: string}`}, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var steps strings.Builder
			for i, more := range test.steps {
				fmt.Fprintf(&steps, "  - {step_id: s%d, step_type: S, service: s, input: job, %s}\n", i, more)
			}
			got := protocolOf(t, steps.String()).Protocols()[0].PayloadExample
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// tenfold returns definitions of lists of ten lists each, to that depth.
func tenfold(depth int) string {
	var defs strings.Builder
	for level := 1; level < depth; level++ {
		fmt.Fprintf(&defs, `v%d: {type: array, minItems: 10, items: {$ref: "#/$defs/v%d"}}, `, level, level+1)
	}
	return fmt.Sprintf("%sv%d: {type: string}", defs.String(), depth)
}

// protocolOf returns a registry of one protocol with the steps.
func protocolOf(t *testing.T, steps string) *commands.Protocols {
	t.Helper()
	text := "protocol_id: p\nrequest_types: [x]\nsteps:\n" + steps
	registry, err := commands.LoadProtocolsFS(fstest.MapFS{"p.yaml": &fstest.MapFile{Data: []byte(text)}})
	if err != nil {
		t.Fatal(err, text)
	}
	return registry
}

// An example has copies of the schema's values, so that placing a step's part in it changes no
// schema.
func TestExamplePayload_ChangesNoSchema(t *testing.T) {
	t.Parallel()
	registry := protocolOf(t, `
  - {step_id: a, step_type: S, service: s, input: job, payload_schema: {required: [read], properties: {read: {enum: [{dpi: 72, more: [{}]}]}}}}
  - {step_id: b, step_type: S, service: s, input: job, payload: /read, payload_schema: {examples: [{added: 1}]}}
`)
	payload := map[string]any{"read": map[string]any{"dpi": json.Number("72"), "more": []any{map[string]any{}}}}
	if faults := registry.Protocols()[0].ValidatePayload(payload); len(faults) > 0 {
		t.Errorf("making the example changed the schema, which refuses: %v", faults)
	}
}
