package commands_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func parsePayload(tb testing.TB, text string) any {
	tb.Helper()
	return musttest.Make(tb, commands.ParseJSON, []byte(text))
}

func TestViolationsOfASchema(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, schema, payload string
		want                  []apierror.Violation
	}{
		{"nothing", `{type: object, required: [language], properties: {language: {type: string}}}`, `{"language":"en"}`, nil},
		{"each missing property at its place", `{required: [language, "a/b", ok]}`, `{"ok":1}`, []apierror.Violation{
			{Pointer: "/payload/a~1b", Message: "is required"}, {Pointer: "/payload/language", Message: "is required"}}},
		{"a missing property further down", `{properties: {list: {items: {required: [x]}}}}`, `{"list":[{"x":1},{}]}`, []apierror.Violation{
			{Pointer: "/payload/list/1/x", Message: "is required"}}},
		{"each property too many", `{properties: {a: {}}, additionalProperties: false}`, `{"a":1,"b":2,"~c":3}`, []apierror.Violation{
			{Pointer: "/payload/b", Message: "is not allowed here"}, {Pointer: "/payload/~0c", Message: "is not allowed here"}}},
		{"each property that nothing looked at", `{properties: {a: {}}, unevaluatedProperties: false}`, `{"a":1,"b":2}`, []apierror.Violation{
			{Pointer: "/payload/b", Message: "is not allowed here"}}},
		{"a property that must not be", `{properties: {a: false}}`, `{"a":1}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "is not allowed here"}}},
		{"a wrong type", `{properties: {language: {type: string}}}`, `{"language":5}`, []apierror.Violation{
			{Pointer: "/payload/language", Message: "must be of type string, not number"}}},
		{"null, which is no string", `{properties: {language: {type: [string, integer]}}}`, `{"language":null}`, []apierror.Violation{
			{Pointer: "/payload/language", Message: "must be of type integer or string, not null"}}},
		{"several faults at once", `{properties: {a: {type: string}, b: {minimum: 10}, c: {enum: [x, y]}}}`, `{"a":1,"b":2,"c":"z"}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "must be of type string, not number"},
			{Pointer: "/payload/b", Message: "must be at least 10"},
			{Pointer: "/payload/c", Message: "value must be one of 'x', 'y'"}}},
		{"no alternative", `{properties: {a: {anyOf: [{type: string}, {properties: {b: {type: string}}, required: [b]}]}}}`, `{"a":{"b":1}}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "fits none of the alternatives: b must be of type string, not number; must be of type string, not object"}}},
		{"no exclusive alternative", `{oneOf: [{required: [a]}, {required: [b]}]}`, `{}`, []apierror.Violation{
			{Pointer: "/payload", Message: "fits none of the alternatives: a is required; b is required"}}},
		{"more than one exclusive alternative", `{oneOf: [{required: [a]}, {required: [b]}]}`, `{"a":1,"b":1}`, []apierror.Violation{
			{Pointer: "/payload", Message: "fits more than one of the alternatives"}}},
		{"all of several", `{allOf: [{required: [a]}, {required: [b]}]}`, `{}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "is required"}, {Pointer: "/payload/b", Message: "is required"}}},
		{"a form that is ruled out", `{properties: {a: {not: {type: string}}}}`, `{"a":"x"}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "has the form that is ruled out here"}}},
		{"a property's name", `{propertyNames: {maxLength: 2}}`, `{"abc":1}`, []apierror.Violation{
			{Pointer: "/payload", Message: `must not have a property of the name "abc": is 3 characters long; at most 2 are allowed`}}},
		{"a property that another one asks for", `{dependentRequired: {a: [b]}}`, `{"a":1}`, []apierror.Violation{
			{Pointer: "/payload/b", Message: `is required where "a" is present`}}},
		{"the same in an older draft", `{$schema: "http://json-schema.org/draft-07/schema#", dependencies: {a: [b]}}`, `{"a":1}`, []apierror.Violation{
			{Pointer: "/payload/b", Message: `is required where "a" is present`}}},
		{"nothing of a kind in an array", `{properties: {a: {contains: {type: string}}}}`, `{"a":[1,2]}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "no items match contains schema"}}},
		{"a reference within the schema", `{properties: {a: {$ref: "#/$defs/text"}}, $defs: {text: {type: string}}}`, `{"a":1}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "must be of type string, not number"}}},
		{"a format", `{properties: {at: {format: date}}}`, `{"at":"31.12.2025"}`, []apierror.Violation{
			{Pointer: "/payload/at", Message: `'31.12.2025' is not valid date: parsing time "31.12.2025" as "2006-01-02": cannot parse "31.12.2025" as "2006"`}}},
		{"a schema that takes nothing", `false`, `{}`, []apierror.Violation{{Pointer: "/payload", Message: "is not allowed here"}}},
		{"numbers are exact", `{properties: {n: {maximum: 9007199254740992}}}`, `{"n":9007199254740993}`, []apierror.Violation{
			{Pointer: "/payload/n", Message: "must be at most 9007199254740992"}}},
		{"numbers out of their range", `{properties: {a: {exclusiveMinimum: 1.50}, b: {exclusiveMaximum: -1}, c: {multipleOf: 0.01}}}`, `{"a":1.5,"b":0,"c":0.005}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "must be more than 1.5"},
			{Pointer: "/payload/b", Message: "must be less than -1"},
			{Pointer: "/payload/c", Message: "must be a multiple of 0.01"}}},
		{"texts and lists out of their range", `{properties: {a: {minLength: 2}, b: {maxLength: 2}, c: {minItems: 1}, d: {maxItems: 1}}}`, `{"a":"é","b":"ééé","c":[],"d":[1,2]}`, []apierror.Violation{
			{Pointer: "/payload/a", Message: "is 1 characters long; at least 2 are required"},
			{Pointer: "/payload/b", Message: "is 3 characters long; at most 2 are allowed"},
			{Pointer: "/payload/c", Message: "has 0 entries; at least 1 are required"},
			{Pointer: "/payload/d", Message: "has 2 entries; at most 1 are allowed"}}},
		{"1.0 is an integer", `{properties: {n: {type: integer, const: 100}}}`, `{"n":1e2}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := loadText(t, smallProtocol("", "    payload_schema: "+test.schema))
			if diff := cmp.Diff(test.want, p.ValidatePayload(parsePayload(t, test.payload))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

const twoStepProtocol = `
  - step_id: two
    step_type: TWO
    service: svc
    payload: /two
    payload_schema: {type: object, required: [x]}
  - step_id: three
    step_type: THREE
    service: svc
    payload: /three/0
`

func TestEveryStepSeesItsPartOfThePayload(t *testing.T) {
	t.Parallel()
	p := loadText(t, smallProtocol("", "    payload_schema: {type: object, required: [language]}"+twoStepProtocol))
	for payload, want := range map[string][]apierror.Violation{
		`{"language":"en","two":{"x":1},"three":[{}]}`: nil,
		`{"language":"en","two":{"x":1}}`:              nil, // a step without a schema needs no payload
		`{"two":{}}`: {
			{Pointer: "/payload/language", Message: "is required"}, {Pointer: "/payload/two/x", Message: "is required"}},
		`{"language":"en"}`: {{Pointer: "/payload/two", Message: "is required by the step two"}},
		`{"language":"en","two":null}`: {
			{Pointer: "/payload/two", Message: "must be of type object, not null"}},
	} {
		t.Run(payload, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want, p.ValidatePayload(parsePayload(t, payload))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStepsThatFindTheSameNameItOnce(t *testing.T) {
	t.Parallel()
	schema := "    payload_schema: {required: [language]}\n"
	p := loadText(t, smallProtocol("", schema+"  - step_id: two\n    step_type: TWO\n    service: svc\n"+schema))
	if got := p.ValidatePayload(parsePayload(t, `{}`)); len(got) != 1 {
		t.Errorf("violations %v, want one", got)
	}
}

// A short payload must not cause a long answer.
func TestViolationsAreBounded(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 150 {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	p := loadText(t, smallProtocol("", "    payload_schema: {required: ["+strings.Join(names, ", ")+"]}"))
	if got := p.ValidatePayload(parsePayload(t, "{}")); len(got) != commands.MaxViolations+1 {
		t.Errorf("%d violations of 150 missing properties, want %d", len(got), commands.MaxViolations+1)
	}
	p = loadText(t, smallProtocol("", "    payload_schema: {additionalProperties: {items: {type: string, pattern: '^y'}}}"))
	for name, payload := range map[string]string{
		"many": `{"a":[0` + strings.Repeat(",0", 5000) + `]}`,
		"long": `{"` + strings.Repeat("é", 50_000) + `":[0` + strings.Repeat(",0", 50) + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := p.ValidatePayload(parsePayload(t, payload))
			size := 0
			for _, violation := range got {
				size += len(violation.Pointer) + len(violation.Message)
			}
			if len(got) < 2 || len(got) > commands.MaxViolations+1 || size > 200<<10 {
				t.Errorf("%d violations of %d bytes", len(got), size)
			}
			if last := got[len(got)-1]; last.Pointer != "/payload" || last.Message != "has more violations than these" || last.Rest != -1 {
				t.Errorf("the last is %.200v", last)
			}
		})
	}
	got := p.ValidatePayload(parsePayload(t, `{"a":["`+strings.Repeat("é", 1000)+`"]}`))
	if len(got) != 1 || len(got[0].Message) > 310 || !strings.HasSuffix(got[0].Message, "é…") {
		t.Errorf("a quoted value is not cut: %v", got)
	}
}

func TestReasonsOfAlternativesAreBounded(t *testing.T) {
	t.Parallel()
	p := loadText(t, smallProtocol("", "    payload_schema: {anyOf: [{required: [a, b, c, d, e]}, {required: [e, f, g, h, i, j]}]}"))
	got := p.ValidatePayload(parsePayload(t, `{}`))
	if len(got) != 1 || strings.Count(got[0].Message, "is required") != 8 {
		t.Errorf("violations %v, want one with 8 reasons", got)
	}
}

func TestValidatePayloadFromManyGoroutines(t *testing.T) {
	t.Parallel()
	p := loadText(t, smallProtocol("", "    payload_schema: {required: [language], properties: {n: {minimum: 10000}}}"))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				if got := p.ValidatePayload(map[string]any{"n": true}); len(got) != 1 {
					t.Errorf("violations %v, want one", got)
				}
			}
		})
	}
	group.Wait()
}

func ExampleProtocol_ValidatePayload() {
	registry, err := commands.LoadProtocols("../../protocols")
	if err != nil {
		panic(err)
	}
	p, _ := registry.Lookup("doc.ingest")
	for _, violation := range p.ValidatePayload(map[string]any{"language": "e"}) {
		fmt.Println(violation.Pointer, violation.Message)
	}
	// Output: /payload/language is 1 characters long; at least 2 are required
}

func BenchmarkValidatePayload(b *testing.B) {
	registry, err := commands.LoadProtocols("../../protocols")
	if err != nil {
		b.Fatal(err)
	}
	p, _ := registry.Lookup("doc.ingest")
	payload := parsePayload(b, `{"language":"en"}`)
	b.ReportAllocs()
	for b.Loop() {
		p.ValidatePayload(payload)
	}
}
