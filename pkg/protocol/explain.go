package protocol

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// finding is one violation of a JSON Schema by a value.
type finding struct {
	// location is the path to the faulty part of the value.
	location []string
	// message says what is wrong with it.
	message string
}

// explain flattens the tree of a validation error into independent findings: for
// example one for each missing property at its place, instead of one for all of them
// at the object.
func explain(err *jsonschema.ValidationError) iter.Seq[finding] {
	return func(yield func(finding) bool) { visit(err, yield) }
}

// visit yields the findings below err, and reports false if yield did.
func visit(err *jsonschema.ValidationError, yield func(finding) bool) bool {
	at := err.InstanceLocation
	switch k := err.ErrorKind.(type) {
	case *kind.Required:
		return each(at, k.Missing, "is required", yield)
	case *kind.DependentRequired:
		return each(at, k.Missing, fmt.Sprintf("is required where %q is present", k.Prop), yield)
	case *kind.Dependency:
		return each(at, k.Missing, fmt.Sprintf("is required where %q is present", k.Prop), yield)
	case *kind.AdditionalProperties:
		return each(at, k.Properties, "is not allowed here", yield)
	case *kind.FalseSchema:
		return yield(finding{at, "is not allowed here"})
	case *kind.Not:
		return yield(finding{at, "has the form that is ruled out here"})
	case *kind.PropertyNames:
		return yield(finding{at, fmt.Sprintf("must not have a property of the name %q: %s", k.Property, reasons(err.Causes, at))})
	case *kind.AnyOf:
		return yield(finding{at, "fits none of the alternatives: " + reasons(err.Causes, at)})
	case *kind.OneOf:
		if len(err.Causes) > 0 {
			return yield(finding{at, "fits none of the alternatives: " + reasons(err.Causes, at)})
		}
		return yield(finding{at, "fits more than one of the alternatives"})
	case *kind.Contains, *kind.MinContains:
		return yield(finding{at, wording(k)})
	}
	if len(err.Causes) == 0 {
		return yield(finding{at, wording(err.ErrorKind)})
	}
	for _, cause := range err.Causes {
		if !visit(cause, yield) {
			return false
		}
	}
	return true
}

// each yields the same finding for several members of an object.
func each(object, names []string, message string, yield func(finding) bool) bool {
	for _, name := range names {
		if !yield(finding{append(slices.Clip(object), name), message}) {
			return false
		}
	}
	return true
}

// maxReasons is how many reasons one finding lists.
const maxReasons = 8

// reasons joins the findings of several alternatives into one text. Findings below
// the value itself name their place.
func reasons(causes []*jsonschema.ValidationError, at []string) string {
	var texts []string
	for _, cause := range causes {
		for f := range explain(cause) {
			text := f.message
			if len(f.location) > len(at) {
				text = path(f.location[len(at):]).String() + " " + text
			}
			texts = append(texts, text)
		}
	}
	slices.Sort(texts) // the validator walks objects in random order
	texts = slices.Compact(texts)
	return strings.Join(texts[:min(len(texts), maxReasons)], "; ")
}
