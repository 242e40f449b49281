package commands_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// faults lists the parts of Load's joined error, one per line.
func protocolFaults(t *testing.T, err error) []string {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("Load: %v, want joined errors", err)
	}
	var lines []string
	for _, fault := range joined.Unwrap() {
		if _, ok := errors.AsType[*strictyaml.Error](fault); !ok {
			t.Errorf("%v is a %T, want an Error", fault, fault)
		}
		lines = append(lines, fault.Error())
	}
	return lines
}

// A file is refused with its name, the line, and what is wrong there.
func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	seventeen := "[" + strings.Repeat("1s, ", 16) + "1s]"
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "p.yaml: is empty"},
		{"comments only", "# later\n", "p.yaml: is empty"},
		{"not UTF-8", "protocol_id: \xff\n", "p.yaml: is not UTF-8"},
		{"two documents", smallProtocol("", "") + "---\n" + smallProtocol("", ""), "p.yaml: has more than one document; a file holds one"},
		{"a list", "- protocol_id: p\n", "p.yaml:1: sequence was used where mapping is expected"},
		{"a tab as indentation", "protocol_id: p\nsteps:\n\t- step_id: a\n", "p.yaml:3: is not valid YAML: found character '\t' that cannot start any token"},
		{"half a text", "protocol_id: 'p\n", "p.yaml:1: is not valid YAML: could not find end character of single-quoted text"},
		{"JSON cut off", `{"protocol_id": "p"`, "p.yaml:1: is not valid YAML: could not find flow mapping end token '}'"},
		{"a key twice", smallProtocol("version: 1\nversion: 2", ""), `p.yaml:4: is not valid YAML: mapping key "version" already defined at [3:1]`},
		{"an unknown key", smallProtocol("request_type: r", ""), `p.yaml:3: unknown field "request_type", did you mean "request_types"?`},
		{"an unknown key in a step", smallProtocol("", "    leese: 1m"), `p.yaml:8: steps[0].leese: unknown field "leese", did you mean "lease"?`},
		{"an unknown key in retry", smallProtocol("retry:\n  acks: [1s]", ""), `p.yaml:4: retry.acks: unknown field "acks", did you mean "ack"?`},
		{"a key in the wrong case", smallProtocol("Version: 1", ""), `p.yaml:3: unknown field "Version", did you mean "version"?`},
		{"retry is a list", smallProtocol("retry: [1s]", ""), "p.yaml:3: retry: sequence was used where mapping is expected"},
		{"request_types is a text", strings.Replace(smallProtocol("", ""), "[r]", "r", 1), "p.yaml:2: request_types: string was used where sequence is expected"},

		{"a tag without a value", "protocol_id: p\nrequest_types: !x\n0\n  -0", "p.yaml: is not valid YAML"},
		{"a YAML version", "%YAML 1.2\n---\nprotocol_id: p\n", "p.yaml: has more than one document; a file holds one"},
		{"an alias without its anchor", smallProtocol("version: *v", ""), `p.yaml:3: could not find alias "v"`},
		{"nested without end", "protocol_id: p\nsteps: " + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), "p.yaml:2: is nested deeper than 128 levels"},

		{"no protocol_id", strings.Replace(smallProtocol("", ""), "protocol_id: p\n", "", 1), "p.yaml: protocol_id is required"},
		{"a null protocol_id", strings.Replace(smallProtocol("", ""), "_id: p\n", "_id:\n", 1), "p.yaml:1: protocol_id is required"},
		{"a protocol_id with a slash", strings.Replace(smallProtocol("", ""), "_id: p\n", "_id: a/b\n", 1), `p.yaml:1: protocol_id is "a/b" and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -`},
		{"a protocol_id that is a list", strings.Replace(smallProtocol("", ""), "_id: p\n", "_id: [p]\n", 1), "p.yaml:1: protocol_id must be a single value"},
		{"a version with a space", smallProtocol("version: 1 beta", ""), `p.yaml:3: version is "1 beta" and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -`},
		{"an unknown priority", smallProtocol("priority: high", ""), `p.yaml:3: priority is "high" and must be normal or bulk`},
		{"no request types", strings.Replace(smallProtocol("", ""), "[r]", "[]", 1), "p.yaml:2: request_types must name at least one request type"},
		{"a request type twice", strings.Replace(smallProtocol("", ""), "[r]", "[r, r]", 1), `p.yaml:2: request_types[1] is "r", which the list holds already`},
		{"a blank request type", strings.Replace(smallProtocol("", ""), "[r]", "[' ']", 1), "p.yaml:2: request_types[0] must not be empty or blank"},
		{"a request type that begins with a blank", strings.Replace(smallProtocol("", ""), "[r]", "[' r']", 1), "p.yaml:2: request_types[0] must not begin or end with a blank"},
		{"a null request type", strings.Replace(smallProtocol("", ""), "[r]", "[~]", 1), "p.yaml:2: request_types[0] must not be empty or blank"},
		{"a request type that is a mapping", strings.Replace(smallProtocol("", ""), "[r]", "[{r: s}]", 1), "p.yaml:2: request_types[0] must be a single value"},
		{"a request type with a line break", strings.Replace(smallProtocol("", ""), "[r]", `["a\nb"]`, 1), "p.yaml:2: request_types[0] must not contain control characters"},
		{"a long request type", strings.Replace(smallProtocol("", ""), "[r]", "["+long+"]", 1), "p.yaml:2: request_types[0] is 129 bytes long; at most 128 are allowed"},
		{"many request types", strings.Replace(smallProtocol("", ""), "[r]", "[r"+strings.Repeat(", r", 64)+"]", 1), "p.yaml:2: request_types holds 65 entries; at most 64 are allowed"},
		{"a long schema version", smallProtocol("schema_versions:\n  - '1'\n  - "+long[:33], ""), "p.yaml:5: schema_versions[1] is 33 bytes long; at most 32 are allowed"},

		{"no steps", "protocol_id: p\nrequest_types: [r]\nsteps: []\n", "p.yaml:3: steps must hold at least one step"},
		{"too many steps", "protocol_id: p\nrequest_types: [r]\nsteps:\n" + strings.Repeat("  - {}\n", 33), "p.yaml:3: steps holds 33 steps; at most 32 are allowed"},
		{"a step_id twice", smallProtocol("", "  - step_id: two\n    step_type: T\n    service: s\n  - step_type: T\n    step_id: one\n    service: s"), `p.yaml:12: steps[2].step_id is "one", as that of steps[0] is`},
		{"a step_id with a colon", strings.Replace(smallProtocol("", ""), "step_id: one", "step_id: 'o:ne'", 1), `p.yaml:5: steps[0].step_id is "o:ne" and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -`},
		{"a step_id of 65", strings.Replace(smallProtocol("", ""), "step_id: one", "step_id: "+long[:65], 1), `p.yaml:5: steps[0].step_id is "` + long[:65] + `" and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -`},
		{"no service", strings.Replace(smallProtocol("", ""), "    service: svc\n", "", 1), "p.yaml:5: steps[0].service is required"},
		{"an input that is none", smallProtocol("", "    input: jobs"), `p.yaml:8: steps[0].input is "jobs" and must be job or previous`},
		{"a payload that is no pointer", smallProtocol("", "    payload: ocr"), `p.yaml:8: steps[0].payload is "ocr" and must be a JSON pointer: empty, or /name/name with ~0 for ~ and ~1 for /`},
		{"a payload with a bad escape", smallProtocol("", "    payload: /a~2"), `p.yaml:8: steps[0].payload is "/a~2" and must be a JSON pointer: empty, or /name/name with ~0 for ~ and ~1 for /`},
		{"a mode that is none", smallProtocol("mode: burst", ""), `p.yaml:3: mode is "burst" and must be DEFAULT or BURST`},

		{"a duration without a unit", smallProtocol("", "    lease: 30"), `p.yaml:8: steps[0].lease is "30" and must be a duration such as 30s, 15m or 1h30m`},
		{"a duration that is none", smallProtocol("ack_timeout: soon", ""), `p.yaml:3: ack_timeout is "soon" and must be a duration such as 30s, 15m or 1h30m`},
		{"a duration of 0", smallProtocol("", "    lease: 0s"), `p.yaml:8: steps[0].lease is "0s" and must be at least 1ms`},
		{"a lease that is off", smallProtocol("", "    lease: off"), `p.yaml:8: steps[0].lease is "off" and must be a duration such as 30s, 15m or 1h30m`},
		{"a duration below a millisecond", smallProtocol("", "    lease: 999us"), `p.yaml:8: steps[0].lease is "999us" and must be at least 1ms`},
		{"a negative duration", smallProtocol("", "    timeout: -1s"), `p.yaml:8: steps[0].timeout is "-1s" and must be at least 1ms`},
		{"a duration of years", smallProtocol("lease: 9000h", ""), `p.yaml:3: lease is "9000h" and must be at most 8784h0m0s`},
		{"a delay that is none", smallProtocol("", "    retry:\n      dispatch:\n        - 1s\n        - 2"), `p.yaml:11: steps[0].retry.dispatch[1] is "2" and must be a duration such as 30s, 15m or 1h30m`},
		{"a delay of null", smallProtocol("retry: {ack: [1s, ~]}", ""), "p.yaml:3: retry.ack[1] must be a duration"},
		{"a delay that is a list", smallProtocol("retry: {ack: [[1s]]}", ""), "p.yaml:3: retry.ack[0] must be a single value"},
		{"many delays", smallProtocol("retry:\n  execution: "+seventeen, ""), "p.yaml:4: retry.execution holds 17 delays; at most 16 are allowed"},
		{"attempts of 0", smallProtocol("retry: {max_attempts: 0}", ""), `p.yaml:3: retry.max_attempts is "0" and must be a whole number from 1 to 1000`},
		{"attempts and a half", smallProtocol("retry: {max_attempts: 1.5}", ""), `p.yaml:3: retry.max_attempts is "1.5" and must be a whole number from 1 to 1000`},
		{"attempts without end", smallProtocol("retry: {max_attempts: 1001}", ""), `p.yaml:3: retry.max_attempts is "1001" and must be a whole number from 1 to 1000`},

		{"an order that is a text", smallProtocol("order: doc_id", ""), "p.yaml:3: order: string was used where mapping is expected"},
		{"an unknown key in order", smallProtocol("order: {modes: fifo}", ""), `p.yaml:3: order.modes: unknown field "modes", did you mean "mode"?`},
		{"an order key that is a field", smallProtocol("order: {key: tenant_id}", ""), `p.yaml:3: order.key is "tenant_id" and must be doc_id, or a JSON pointer into the payload such as /customer/id`},
		{"an order key that is all of the payload", smallProtocol("order: {key: ''}", ""), `p.yaml:3: order.key is "" and must be doc_id, or a JSON pointer into the payload such as /customer/id`},
		{"an order key with a bad escape", smallProtocol("order: {key: /a~2}", ""), `p.yaml:3: order.key is "/a~2" and must be doc_id, or a JSON pointer into the payload such as /customer/id`},
		{"a list of order keys", smallProtocol("order: {key: [/a, /b]}", ""), "p.yaml:3: order.key must be a single value"},
		{"an order prefix without a key", smallProtocol("order: {prefix: 'a:'}", ""), "p.yaml:3: order.prefix needs a key, before which it is put"},
		{"an empty order prefix", smallProtocol("order: {key: /a, prefix: ''}", ""), "p.yaml:3: order.prefix must not be empty"},
		{"an order prefix that begins with a blank", smallProtocol("order: {key: /a, prefix: ' a'}", ""), "p.yaml:3: order.prefix must not begin with a blank"},
		{"an order prefix with a line break", smallProtocol(`order: {key: /a, prefix: "a\n"}`, ""), "p.yaml:3: order.prefix must not contain control characters"},
		{"a long order prefix", smallProtocol("order: {key: /a, prefix: "+long+"}", ""), "p.yaml:3: order.prefix is 129 bytes long; at most 128 are allowed"},
		{"an order mode that is none", smallProtocol("order: {mode: lifo}", ""), `p.yaml:3: order.mode is "lifo" and must be fifo, newest or reject`},
		{"an on_failure that is none", smallProtocol("order: {on_failure: stop}", ""), `p.yaml:3: order.on_failure is "stop" and must be block or continue`},
		{"an on_running that is none", smallProtocol("order: {mode: newest, on_running: kill}", ""), `p.yaml:3: order.on_running is "kill" and must be finish or cancel`},
		{"an on_running of fifo", smallProtocol("order: {on_running: finish}", ""), "p.yaml:3: order.on_running needs the mode newest"},
		{"an order of no job", smallProtocol("order: {max_waiting: 0}", ""), `p.yaml:3: order.max_waiting is "0" and must be a whole number from 1 to 1000000`},
		{"an order without end", smallProtocol("order: {max_waiting: 1000001}", ""), `p.yaml:3: order.max_waiting is "1000001" and must be a whole number from 1 to 1000000`},
		{"an order that may be required", smallProtocol("order: {required: maybe}", ""), `p.yaml:3: order.required is "maybe" and must be true or false`},

		{"a schema with an unknown type", smallProtocol("", "    payload_schema:\n      properties:\n        language:\n          type: sting"), "p.yaml:11: steps[0].payload_schema.properties.language.type fits none of the alternatives: must be of type array, not string; value must be one of 'array', 'boolean', 'integer', 'null', 'number', 'object', 'string'"},
		{"a schema that is a text", smallProtocol("", "    payload_schema: object"), "p.yaml:8: steps[0].payload_schema must be of type boolean or object, not string"},
		{"a schema with a bad pattern", smallProtocol("", "    payload_schema: {pattern: '(?=x)'}"), "p.yaml:8: steps[0].payload_schema.pattern '(?=x)' is not valid regex: error parsing regexp: invalid or unsupported Perl syntax: `(?=`"},
		{"a schema with a wrong place in a list", smallProtocol("", "    payload_schema:\n      allOf:\n        - type: object\n        - &x\n          minimum: a"), "p.yaml:12: steps[0].payload_schema.allOf[1].minimum must be of type number, not string"},
		{"a schema with what JSON has not", smallProtocol("", "    payload_schema: {enum: [.nan]}"), "p.yaml:8: steps[0].payload_schema is not JSON: json: unsupported value: NaN"},
		{"a schema nested without end", smallProtocol("", "    payload_schema: "+strings.Repeat("{not: ", 65)+strings.Repeat("}", 65)), `p.yaml:8: steps[0].payload_schema is not JSON: "` + strings.Repeat("/not", 64) + `" is nested deeper than 64 levels`},
		{"a schema that refers to its own kind", smallProtocol("", "    payload_schema: {$schema: 'schema:///payload_schema'}"), `p.yaml:8: steps[0].payload_schema does not compile: draft "schema:///payload_schema" is not supported`},
		{"a schema on the network", smallProtocol("", "    payload_schema: {$ref: 'https://example.com/s.json'}"), "p.yaml:8: steps[0].payload_schema refers to https://example.com/s.json: only references within the schema itself are allowed"},
		{"a schema in a file", smallProtocol("", "    payload_schema: {$ref: 'file:///etc/passwd'}"), "p.yaml:8: steps[0].payload_schema refers to file:///etc/passwd: only references within the schema itself are allowed"},
		{"a schema beside it", smallProtocol("", "    payload_schema: {$ref: other.json}"), "p.yaml:8: steps[0].payload_schema refers to schema:///other.json: only references within the schema itself are allowed"},
		{"a schema of an unknown draft", smallProtocol("", "    payload_schema: {$schema: 'https://example.com/draft'}"), "p.yaml:8: steps[0].payload_schema refers to https://example.com/draft: only references within the schema itself are allowed"},
		{"a schema that is itself", smallProtocol("", "    payload_schema: {$ref: '#'}"), `p.yaml:8: steps[0].payload_schema refers from "#" to itself for the same value, so that no payload can be checked`},
		{"two definitions that are each other", smallProtocol("", "    payload_schema: {properties: {a: {$ref: '#/$defs/x'}}, $defs: {x: {allOf: [{$ref: '#/$defs/y'}]}, y: {anyOf: [{type: string}, {$ref: '#/$defs/x'}]}}}"), `p.yaml:8: steps[0].payload_schema refers from "#/$defs/x" to itself for the same value, so that no payload can be checked`},
		{"a schema that depends on itself", smallProtocol("", "    payload_schema: {dependentSchemas: {a: {$dynamicRef: '#'}}}"), `p.yaml:8: steps[0].payload_schema refers from "#" to itself for the same value, so that no payload can be checked`},
		{"a schema of draft 7 that depends on itself", smallProtocol("", "    payload_schema: {$schema: 'http://json-schema.org/draft-07/schema#', dependencies: {a: {not: {$ref: '#'}}}}"), `p.yaml:8: steps[0].payload_schema refers from "#" to itself for the same value, so that no payload can be checked`},
		{"a schema that refers to nothing", smallProtocol("", "    payload_schema: {$ref: '#/$defs/x'}"), `p.yaml:8: steps[0].payload_schema does not compile: json-pointer in "schema:///payload_schema#/$defs/x" not found`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			registry, err := commands.LoadProtocolsFS(protocolFolder("p.yaml", test.text))
			if err == nil || registry != nil {
				t.Fatalf("Load = %v, %v, want an error", registry, err)
			}
			if diff := cmp.Diff([]string{test.want}, protocolFaults(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOneFileThatIsWrongInManyPlaces(t *testing.T) {
	t.Parallel()
	_, err := commands.LoadProtocolsFS(protocolFolder("p.yaml", smallProtocol("lease: 1", "    input: x\n    retry: {ack: [0s]}\n  -\n  - step_id: two")))
	want := []string{
		`p.yaml:3: lease is "1" and must be a duration such as 30s, 15m or 1h30m`,
		`p.yaml:8: steps[0].input is "x" and must be job or previous`,
		`p.yaml:9: steps[0].retry.ack[0] is "0s" and must be at least 1ms`,
		`p.yaml:10: steps[1].step_id is required`,
		`p.yaml:10: steps[1].step_type is required`,
		`p.yaml:10: steps[1].service is required`,
		`p.yaml:11: steps[2].step_type is required`,
		`p.yaml:11: steps[2].service is required`,
	}
	if diff := cmp.Diff(want, protocolFaults(t, err)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestFilesWithTheSameIDOrRequestType(t *testing.T) {
	t.Parallel()
	second := strings.Replace(smallProtocol("", ""), "[r]", "\n  - x\n  - r", 1)
	_, err := commands.LoadProtocolsFS(protocolFolder("a.yaml", smallProtocol("", ""), "b.yaml", second))
	want := []string{
		`b.yaml:1: the protocol_id "p" is already claimed by a.yaml`,
		`b.yaml:4: the request type "r" is already claimed by a.yaml`,
	}
	if diff := cmp.Diff(want, protocolFaults(t, err)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// One bad file prevents the good ones from being loaded, too.
func TestAFolderIsLoadedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	registry, err := commands.LoadProtocolsFS(protocolFolder("a.yaml", smallProtocol("", ""), "b.yaml", "x: 1\n", "c.yaml", "extra: 1\n"))
	want := []string{`b.yaml:1: unknown field "x"`, `c.yaml:1: unknown field "extra"`}
	if diff := cmp.Diff(want, protocolFaults(t, err)); diff != "" || registry != nil {
		t.Errorf("registry %v, faults (-want +got):\n%s", registry, diff)
	}
}

// Anchors let YAML files avoid repetition.
func TestAnchorsAndAliases(t *testing.T) {
	t.Parallel()
	got := loadText(t, smallProtocol("retry: &slow {ack: [&long 1h, *long]}", "    retry: *slow\n    lease: *long\n    payload_schema: &s {type: object}\n  - {step_id: b, step_type: B, service: s, payload_schema: *s}"))
	if ack := got.Steps[0].Overrides.Ack; len(ack) != 2 || ack[1] != got.Steps[0].Overrides.Lease {
		t.Errorf("aliases are not followed: %+v", got.Steps[0].Overrides)
	}
	if got := got.ValidatePayload("x"); len(got) != 1 {
		t.Errorf("the schemas behind the alias find %v", got)
	}
}

func FuzzLoadProtocols(f *testing.F) {
	f.Add(smallProtocol("version: 1", "    lease: 1m"))
	f.Add(smallProtocol("retry: &slow {ack: [&long 1h, *long]}", "    retry: *slow\n    lease: |\n      1m"))
	f.Add(smallProtocol("", "    payload_schema: {type: object, required: [a], properties: {a: {$ref: '#/$defs/a'}}, $defs: {a: {enum: [1, .nan, !!binary aGVsbG8=]}}}"))
	f.Add(`{"protocol_id": "p", "request_types": ["r"], "steps": [{"step_id": "s", "step_type": "S", "service": "s"}]}`)
	f.Add("a: &a [*a]\n? b\n: - <<: *a\n")
	f.Fuzz(func(t *testing.T, text string) {
		registry, err := commands.LoadProtocolsFS(protocolFolder("p.yaml", text))
		if (registry == nil) == (err == nil) {
			t.Fatalf("Load(%q) = %v, %v, want one of the two", text, registry, err)
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "p.yaml:") {
					t.Fatalf("Load(%q): %q does not begin with the file", text, line)
				}
			}
			return
		}
		for _, p := range registry.Protocols() {
			if p.ID == "" || len(p.Steps) == 0 || len(p.RequestTypes) == 0 {
				t.Fatalf("Load(%q) accepted %+v", text, p)
			}
			p.ValidatePayload(map[string]any{"a": []any{nil, "x"}})
		}
	})
}

func ExampleLoadProtocols_refused() {
	_, err := commands.LoadProtocolsFS(protocolFolder("ingest.yaml", `protocol_id: ingest
request_types: [doc.ingest]
steps:
  - step_id: ocr
    step_type: OCR
    service: ocr
    lease: 15
`))
	fmt.Println(err)
	// Output: ingest.yaml:7: steps[0].lease is "15" and must be a duration such as 30s, 15m or 1h30m
}
