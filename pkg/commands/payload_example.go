package commands

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// ExamplePayload returns a payload that the protocol accepts, made from the schemas of its steps,
// or nil if an empty one will do, or if it finds none: it knows the common keywords, and a
// pattern, for example, needs a person. People learn from it what a command looks like.
func (p *Protocol) ExamplePayload() map[string]any {
	payload := map[string]any{}
	// A part of another one comes later, and takes the place of what the other has there.
	outermost := slices.SortedFunc(slices.Values(p.Steps), func(a, b ProtocolStep) int {
		return cmp.Compare(len(a.PayloadPointer), len(b.PayloadPointer))
	})
	for i := range outermost {
		if step := &outermost[i]; step.schema != nil {
			placeExample(payload, jsontext.Pointer(step.PayloadPointer), exampleOf(step.schema, 0))
		}
	}
	if len(payload) == 0 || len(p.ValidatePayload(payload)) > 0 {
		return nil
	}
	return payload
}

// placeExample puts the value at the pointer, within objects that it makes, and adds it to an
// object that is there.
func placeExample(object map[string]any, at jsontext.Pointer, value any) {
	if at == "" {
		if members, ok := value.(map[string]any); ok {
			maps.Copy(object, members)
		}
		return
	}
	tokens := slices.Collect(at.Tokens())
	last := len(tokens) - 1
	for _, token := range tokens[:last] {
		next, ok := object[token].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[token] = next
		}
		object = next
	}
	if there, ok := object[tokens[last]].(map[string]any); ok {
		placeExample(there, "", value)
		return
	}
	object[tokens[last]] = value
}

// maxExampleDepth is how deep an example goes into a schema, which may contain itself.
const maxExampleDepth = 16

// exampleOf returns a value that probably fits the schema.
func exampleOf(s *jsonschema.Schema, depth int) any {
	switch {
	case s == nil || depth > maxExampleDepth:
		return nil
	case s.Const != nil:
		return *s.Const
	case s.Enum != nil && len(s.Enum.Values) > 0:
		return s.Enum.Values[0]
	case len(s.Examples) > 0:
		return s.Examples[0]
	case s.Default != nil:
		return *s.Default
	}
	// Schemas for the same value: members add up, and of alternatives the first one is taken.
	object, other := map[string]any{}, any(nil)
	same := append([]*jsonschema.Schema{s.Ref}, s.AllOf...)
	for _, alternatives := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		same = append(same, alternatives[:min(1, len(alternatives))]...)
	}
	for _, schema := range same {
		if value := exampleOf(schema, depth+1); value != nil {
			if members, ok := value.(map[string]any); ok {
				maps.Copy(object, members)
			} else {
				other = value
			}
		}
	}
	for _, name := range s.Required {
		if object[name] == nil {
			object[name] = exampleOf(s.Properties[name], depth+1)
		}
		if object[name] == nil && s.Properties[name] == nil {
			object[name] = "text"
		}
	}
	kind := ""
	if s.Types != nil {
		kind = s.Types.ToStrings()[0]
	}
	switch {
	case kind == "string":
		return exampleText(s)
	case kind == "integer" || kind == "number":
		return exampleNumber(s)
	case kind == "boolean":
		return true
	case kind == "array":
		return exampleList(s, depth)
	case kind == "object" || len(object) > 0:
		return object
	case kind == "null":
		return nil
	case other == nil && depth > 0:
		return "text"
	}
	return other
}

// exampleText returns a text of the format and the length that the schema asks for.
func exampleText(s *jsonschema.Schema) string {
	if s.Format != nil {
		if text, ok := map[string]string{
			"date": "2026-01-27", "date-time": "2026-01-27T12:00:00Z", "time": "12:00:00Z", "duration": "PT1H",
			"email": "person@example.com", "hostname": "example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
			"uri": "https://example.com/document", "uuid": "6f0d2a52-0c1f-4d0a-9f0e-3b7c1d2e4f5a",
		}[s.Format.Name]; ok {
			return text
		}
	}
	text := "text"
	if s.MinLength != nil && *s.MinLength > len(text) {
		text = strings.Repeat("x", min(*s.MinLength, 1000))
	}
	if s.MaxLength != nil && *s.MaxLength < len(text) {
		text = text[:max(*s.MaxLength, 0)]
	}
	return text
}

// exampleNumber returns a number within the bounds of the schema, a whole one where there is room.
func exampleNumber(s *jsonschema.Schema) json.Number {
	one := big.NewRat(1, 1)
	number := one
	switch {
	case s.Minimum != nil:
		number = s.Minimum
	case s.ExclusiveMinimum != nil:
		number = new(big.Rat).Add(s.ExclusiveMinimum, one)
	case s.Maximum != nil && s.Maximum.Cmp(one) < 0:
		number = s.Maximum
	case s.ExclusiveMaximum != nil && s.ExclusiveMaximum.Cmp(one) <= 0:
		number = new(big.Rat).Sub(s.ExclusiveMaximum, one)
	}
	step := s.MultipleOf
	if step == nil && s.Types.ToStrings()[0] == "integer" {
		step = one
	}
	if step != nil { // The next multiple from there on.
		times := new(big.Rat).Quo(number, step)
		whole, rest := new(big.Int).DivMod(times.Num(), times.Denom(), new(big.Int))
		if rest.Sign() > 0 {
			whole.Add(whole, big.NewInt(1))
		}
		number = new(big.Rat).Mul(new(big.Rat).SetInt(whole), step)
	}
	return json.Number(decimal(number))
}

// exampleList returns a list with as few entries as the schema allows.
func exampleList(s *jsonschema.Schema, depth int) []any {
	list := []any{}
	least := 0
	if s.MinItems != nil {
		least = min(*s.MinItems, 10)
	}
	for i := range least {
		entry := s.Items2020
		if i < len(s.PrefixItems) {
			entry = s.PrefixItems[i]
		}
		list = append(list, exampleOf(entry, depth+1))
	}
	return list
}
