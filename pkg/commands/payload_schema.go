package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// errNotLoaded is returned for every reference of a schema to another document.
var errNotLoaded = errors.New("references to other documents are not loaded")

// noLoader keeps the compiler from using the network and the file system.
type noLoader struct{}

// LoadProtocols implements [jsonschema.URLLoader].
func (noLoader) Load(string) (any, error) { return nil, errNotLoaded }

// schema compiles a payload_schema of draft 2020-12, unless it names another draft, or
// returns nil if there is none. It loads no other document, and asserts formats:
// "format: date" is a constraint.
func (c *protocolChecker) schema(at schemaPath, document any) *jsonschema.Schema {
	if document == nil {
		return nil
	}
	// The value as decoded from JSON: NaN is an error, and binary data becomes text.
	text, err := json.Marshal(document)
	if err != nil {
		c.fail(at, "is not JSON: %v", err)
		return nil
	}
	tree, err := ParseJSON(text)
	if err != nil {
		fault := apierror.From(err).Errors[0] // without the offset, which refers to text
		c.fail(at, "is not JSON: %q %s", fault.Pointer, fault.Message)
		return nil
	}
	const url = "schema:///payload_schema"
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(noLoader{})
	var schema *jsonschema.Schema
	if err = compiler.AddResource(url, tree); err == nil {
		schema, err = compiler.Compile(url)
	}
	if err == nil {
		if cycle := findCycle(schema); cycle != nil {
			_, place, _ := strings.Cut(cycle.Location, "#")
			c.fail(at, "refers from %q to itself for the same value, so that no payload can be checked", "#"+place)
		}
		return schema
	}
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		c.fail(at, "refers to %s: only references within the schema itself are allowed", load.URL)
		return nil
	}
	var validation *jsonschema.ValidationError
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); !ok || !errors.As(invalid.Err, &validation) {
		message, _, _ := strings.Cut(err.Error(), "\n")
		c.fail(at, "does not compile: %s", message)
		return nil
	}
	for finding := range explainSchema(validation) {
		c.fail(at.to(finding.location...), "%s", finding.message)
	}
	return nil
}

// findCycle returns a schema that applies to a value only if it applies to that value, by
// way of references and of schemas for the same value, or nil if there is none. The
// validator refuses every value that meets one.
func findCycle(root *jsonschema.Schema) *jsonschema.Schema {
	checked := map[*jsonschema.Schema]bool{} // false while the schemas below are followed
	parts := []*jsonschema.Schema{root}      // schemas for other values, still to be checked
	var follow func(s *jsonschema.Schema) *jsonschema.Schema
	follow = func(s *jsonschema.Schema) *jsonschema.Schema {
		if done, seen := checked[s]; seen && !done {
			return s
		} else if done {
			return nil
		}
		checked[s] = false
		dynamic := &jsonschema.DynamicRef{}
		if s.DynamicRef != nil {
			dynamic = s.DynamicRef
		}
		for _, next := range schemasIn(s.Ref, s.RecursiveRef, dynamic.Ref, s.Not, s.AllOf, s.AnyOf, s.OneOf, s.If, s.Then, s.Else,
			s.DependentSchemas, s.Dependencies) {
			if cycle := follow(next); cycle != nil {
				return cycle
			}
		}
		checked[s] = true
		parts = append(parts, schemasIn(s.PropertyNames, s.Properties, s.PatternProperties, s.AdditionalProperties,
			s.UnevaluatedProperties, s.Contains, s.Items, s.Items2020, s.PrefixItems, s.AdditionalItems, s.UnevaluatedItems,
			s.ContentSchema)...)
		return nil
	}
	for i := 0; i < len(parts); i++ {
		if cycle := follow(parts[i]); cycle != nil {
			return cycle
		}
	}
	return nil
}

// schemasIn returns the schemas in the values of keywords, ordered by location.
func schemasIn(values ...any) (found []*jsonschema.Schema) {
	for _, value := range values {
		switch v := value.(type) {
		case *jsonschema.Schema:
			if v != nil {
				found = append(found, v)
			}
		case []*jsonschema.Schema:
			found = append(found, v...)
		case map[string]*jsonschema.Schema:
			found = slices.AppendSeq(found, maps.Values(v))
		case map[jsonschema.Regexp]*jsonschema.Schema:
			found = slices.AppendSeq(found, maps.Values(v))
		case map[string]any: // Of dependencies; the others are lists of names.
			for _, member := range v {
				found = append(found, schemasIn(member)...)
			}
		}
	}
	slices.SortFunc(found, func(a, b *jsonschema.Schema) int { return strings.Compare(a.Location, b.Location) })
	return found
}

// The bounds of the violations of one payload: a short schema can refuse every
// element of a long array.
const (
	maxMessage    = 300       // bytes of one message
	maxExplaining = 128 << 10 // bytes of all pointers and messages together
)

// ValidatePayload applies every step's schema to its part of the payload, which
// is a tree of [ParseJSON] and is not changed. Each violation points
// into the command: /payload/language. A violation that several steps find is
// named once; they are ordered by pointer. The list is empty if the payload is valid.
// At most [MaxViolations] are named; one more says that some are left out.
//
// If a step's pointer finds nothing, that is a violation for a step with a schema; a
// step without a schema then gets no payload.
//
// Source: Option B spec, 5.2, Step payload validation.
func (p *Protocol) ValidatePayload(payload any) []apierror.Violation {
	return p.validate(payload, func(*ProtocolStep) bool { return true })
}

// validate is [Protocol.ValidatePayload] for some of the steps.
func (p *Protocol) validate(payload any, of func(*ProtocolStep) bool) []apierror.Violation {
	var v schemaViolations
	complete := true
	for i := 0; i < len(p.Steps) && complete; i++ {
		complete = !of(&p.Steps[i]) || p.Steps[i].validate(payload, &v)
	}
	// The validator walks objects in random order.
	slices.SortFunc(v.list, func(a, b apierror.Violation) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Message, b.Message))
	})
	if !complete {
		v.list = append(v.list, apierror.Violation{Pointer: "/payload", Message: "has more violations than these", Rest: -1})
	}
	return v.list
}

// validate adds the step's violations, and reports false if there is no room left.
func (s *ProtocolStep) validate(payload any, v *schemaViolations) bool {
	if s.schema == nil {
		return true
	}
	base := jsontext.Pointer("/payload" + s.PayloadPointer)
	part, found := ledger.Lookup(payload, s.PayloadPointer)
	if !found {
		return v.add(base, fmt.Sprintf("is required by the step %s", s.ID))
	}
	err := s.schema.Validate(part)
	if err == nil {
		return true
	}
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return v.add(base, err.Error())
	}
	for finding := range explainSchema(invalid) {
		pointer := base
		for _, token := range finding.location {
			pointer = pointer.AppendToken(token)
		}
		if !v.add(pointer, finding.message) {
			return false
		}
	}
	return true
}

// schemaViolations collects a bounded number of violations.
type schemaViolations struct {
	list []apierror.Violation
	size int
}

// add adds a violation unless it is there already, and reports false without room.
func (v *schemaViolations) add(pointer jsontext.Pointer, message string) bool {
	violation := apierror.Violation{Pointer: string(pointer), Message: truncateMessage(message)}
	if slices.Contains(v.list, violation) {
		return true
	}
	v.size += len(violation.Pointer) + len(violation.Message)
	if len(v.list) == MaxViolations || v.size > maxExplaining {
		return false
	}
	v.list = append(v.list, violation)
	return true
}

// truncateMessage cuts a message that quotes a long value.
func truncateMessage(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return strings.TrimSpace(message[:cut]) + "…"
}

// schemaFinding is one violation of a JSON Schema by a value.
type schemaFinding struct {
	// location is the path to the faulty part of the value.
	location []string
	// message says what is wrong with it.
	message string
}

// explainSchema flattens the tree of a validation error into independent findings: for example
// one for each missing property, instead of one for all of them at the object.
func explainSchema(err *jsonschema.ValidationError) iter.Seq[schemaFinding] {
	return func(yield func(schemaFinding) bool) { visitValue(err, yield) }
}

// visitValue yields the findings below err, and reports false if yield did.
func visitValue(err *jsonschema.ValidationError, yield func(schemaFinding) bool) bool {
	at := err.InstanceLocation
	switch k := err.ErrorKind.(type) {
	case *kind.Required:
		return eachSchema(at, k.Missing, "is required", yield)
	case *kind.DependentRequired:
		return eachSchema(at, k.Missing, fmt.Sprintf("is required where %q is present", k.Prop), yield)
	case *kind.Dependency:
		return eachSchema(at, k.Missing, fmt.Sprintf("is required where %q is present", k.Prop), yield)
	case *kind.AdditionalProperties:
		return eachSchema(at, k.Properties, "is not allowed here", yield)
	case *kind.FalseSchema:
		return yield(schemaFinding{at, "is not allowed here"})
	case *kind.Not:
		return yield(schemaFinding{at, "has the form that is ruled out here"})
	case *kind.PropertyNames:
		message := fmt.Sprintf("must not have a property of the name %q: %s", k.Property, schemaReasons(err.Causes, at))
		return yield(schemaFinding{at, message})
	case *kind.AnyOf:
		return yield(schemaFinding{at, "fits none of the alternatives: " + schemaReasons(err.Causes, at)})
	case *kind.OneOf:
		if len(err.Causes) > 0 {
			return yield(schemaFinding{at, "fits none of the alternatives: " + schemaReasons(err.Causes, at)})
		}
		return yield(schemaFinding{at, "fits more than one of the alternatives"})
	case *kind.Contains, *kind.MinContains:
		return yield(schemaFinding{at, schemaWording(k)})
	}
	if len(err.Causes) == 0 {
		return yield(schemaFinding{at, schemaWording(err.ErrorKind)})
	}
	for _, cause := range err.Causes {
		if !visitValue(cause, yield) {
			return false
		}
	}
	return true
}

// eachSchema yields the same finding for several members of an object.
func eachSchema(object, names []string, message string, yield func(schemaFinding) bool) bool {
	for _, name := range names {
		if !yield(schemaFinding{append(slices.Clip(object), name), message}) {
			return false
		}
	}
	return true
}

// maxReasons is how many reasons one finding lists.
const maxReasons = 8

// schemaReasons joins the findings of several alternatives into one text. Findings below
// the value itself name their place.
func schemaReasons(causes []*jsonschema.ValidationError, at []string) string {
	var texts []string
	for _, cause := range causes {
		for f := range explainSchema(cause) {
			text := f.message
			if len(f.location) > len(at) {
				text = schemaPath(f.location[len(at):]).String() + " " + text
			}
			texts = append(texts, text)
		}
	}
	slices.Sort(texts) // the validator walks objects in random order
	texts = slices.Compact(texts)
	return strings.Join(texts[:min(len(texts), maxReasons)], "; ")
}

var englishMessages = message.NewPrinter(language.English)

// schemaWording says what a keyword of a JSON Schema demands, in the style of package commands;
// for rare keywords it keeps the validator's message.
func schemaWording(keyword jsonschema.ErrorKind) string {
	switch k := keyword.(type) {
	case *kind.Type:
		return fmt.Sprintf("must be of type %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.MinLength:
		return fmt.Sprintf("is %d characters long; at least %d are required", k.Got, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("is %d characters long; at most %d are allowed", k.Got, k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("has %d entries; at least %d are required", k.Got, k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("has %d entries; at most %d are allowed", k.Got, k.Want)
	case *kind.Minimum:
		return "must be at least " + decimal(k.Want)
	case *kind.Maximum:
		return "must be at most " + decimal(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + decimal(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + decimal(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + decimal(k.Want)
	default:
		return keyword.LocalizedString(englishMessages)
	}
}

// decimal writes a number of a schema exactly; they all have finitely many
// digits.
func decimal(number *big.Rat) string {
	digits, _ := number.FloatPrec()
	return number.FloatString(digits)
}
