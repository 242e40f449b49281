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

	"github.com/lucius-project/lucius/pkg/ledger"
)

// examplePayload returns a payload that the protocol accepts, as JSON, made from the schemas of its
// steps. It is nil if an empty payload is valid, and if none of a readable size is found: only the
// common keywords are known, so that a pattern, for instance, has no example.
func (p *Protocol) examplePayload() json.RawMessage {
	payload := map[string]any{}
	// A step's part replaces what the example of an enclosing part has there, so it comes later.
	outermost := slices.SortedFunc(slices.Values(p.Steps), func(a, b ProtocolStep) int {
		return cmp.Compare(len(a.PayloadPointer), len(b.PayloadPointer))
	})
	made := example{left: maxExampleSize}
	for i := range outermost {
		if step := &outermost[i]; step.schema != nil {
			placeExample(payload, jsontext.Pointer(step.PayloadPointer), made.of(step.schema, 0))
		}
	}
	if at := jsontext.Pointer(p.Order.Key); p.Order.Required && at != orderByDocument && at != "" {
		if _, found := ledger.Lookup(payload, p.Order.Key); !found {
			placeExample(payload, at, "key")
		}
	}
	if made.left < 0 || len(payload) == 0 || len(p.ValidatePayload(payload)) > 0 {
		return nil
	}
	text, err := json.Marshal(payload)
	if err != nil {
		return nil // A schema may hold what JSON cannot express.
	}
	return text
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

const (
	// maxExampleDepth is how deep an example goes into a schema, which may contain itself.
	maxExampleDepth = 16
	// maxExampleSize bounds the size of an example and the work for it: a schema that refers to the
	// next one twice, which does the same, grows exponentially with its depth.
	maxExampleSize = 8 << 10
)

// example is the budget of one example: one unit for each value and each byte of text.
type example struct {
	left int // negative once the budget is exceeded
}

// spend takes units from the budget, and reports whether there were enough.
func (e *example) spend(size int) bool {
	e.left -= size
	return e.left >= 0
}

// of returns a value that probably fits the schema.
func (e *example) of(s *jsonschema.Schema, depth int) any {
	switch {
	case s == nil || !e.spend(1):
		return nil
	case depth > maxExampleDepth:
		e.left = -1
		return nil
	case s.Const != nil:
		return e.copied(*s.Const)
	case s.Enum != nil && len(s.Enum.Values) > 0:
		return e.copied(s.Enum.Values[0])
	case len(s.Examples) > 0:
		return e.copied(s.Examples[0])
	case s.Default != nil:
		return e.copied(*s.Default)
	}
	object, other := e.together(s, depth)
	for _, name := range s.Required {
		if !e.spend(1 + len(name)) {
			return nil
		}
		if object[name] == nil {
			object[name] = e.of(s.Properties[name], depth+1)
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
		return e.text(s)
	case kind == "integer" || kind == "number":
		return e.number(s)
	case kind == "boolean":
		return true
	case kind == "array":
		return e.list(s, depth)
	case kind == "object" || len(object) > 0:
		return object
	case kind == "null":
		return nil
	case other == nil && depth > 0:
		return "text"
	}
	return other
}

// together returns what the schemas for the same value make of it: the members of objects, which
// add up, and the last value that is no object. Of alternatives the first one is taken.
func (e *example) together(s *jsonschema.Schema, depth int) (object map[string]any, other any) {
	object = map[string]any{}
	same := append([]*jsonschema.Schema{s.Ref}, s.AllOf...)
	for _, alternatives := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		same = append(same, alternatives[:min(1, len(alternatives))]...)
	}
	for _, schema := range same {
		if value := e.of(schema, depth+1); value != nil {
			if members, ok := value.(map[string]any); ok {
				maps.Copy(object, members)
			} else {
				other = value
			}
		}
	}
	return object, other
}

// copied returns a copy of a value of the schema, which holds all of it and must not change.
func (e *example) copied(value any) any {
	switch value := value.(type) {
	case map[string]any:
		members := map[string]any{}
		for name, member := range value {
			if !e.spend(1 + len(name)) {
				return nil
			}
			members[name] = e.copied(member)
		}
		return members
	case []any:
		entries := []any{}
		for _, entry := range value {
			if !e.spend(1) {
				return nil
			}
			entries = append(entries, e.copied(entry))
		}
		return entries
	case string:
		e.spend(len(value))
	case json.Number:
		e.spend(len(value))
	}
	return value
}

// text returns a text of the format and the length that the schema asks for.
func (e *example) text(s *jsonschema.Schema) string {
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
	e.spend(len(text))
	return text
}

// number returns a number within the bounds of the schema, a whole one where there is room.
func (e *example) number(s *jsonschema.Schema) json.Number {
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
	digits := decimal(number)
	e.spend(len(digits))
	return json.Number(digits)
}

// list returns a list with as few entries as the schema allows.
func (e *example) list(s *jsonschema.Schema, depth int) []any {
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
		list = append(list, e.of(entry, depth+1))
	}
	return list
}
