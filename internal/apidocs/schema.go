package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// field is a row of a schema's table, or a parameter.
type field struct {
	Name     string
	In       string
	Type     typeText
	Required bool
	Text     string
	Limits   []string
	Example  string
}

// typeText describes a type. Link is the named schema that it refers to, if any.
type typeText struct{ Before, Link, After string }

// typeOf returns the type of a schema.
func typeOf(s *schema) typeText {
	switch {
	case s.Ref != "":
		return typeText{Link: nameOf(s.Ref)}
	case len(s.AllOf) == 1:
		return typeOf(&s.AllOf[0])
	case s.Type == "array" && s.Items != nil:
		of := typeOf(s.Items)
		of.Before = "list of " + of.Before
		return of
	}
	text := s.Type
	if text == "" {
		text = "any"
	}
	if s.Format != "" {
		text += ", " + s.Format
	}
	return typeText{Before: text}
}

// nameOf returns the last part of a reference.
func nameOf(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }

// limitsOf describes the limits of a schema's values.
func limitsOf(s *schema) []string {
	var limits []string
	add := func(text string) {
		if text != "" {
			limits = append(limits, text)
		}
	}
	add(between(decimal(s.Minimum), decimal(s.Maximum), ""))
	add(between(whole(s.MinLength), whole(s.MaxLength), " characters"))
	add(between(whole(s.MinItems), whole(s.MaxItems), " entries"))
	if len(s.Enum) > 0 {
		values := make([]string, len(s.Enum))
		for i, value := range s.Enum {
			values[i] = fmt.Sprintf("`%v`", value)
		}
		add("one of " + strings.Join(values, ", "))
	}
	if s.Pattern != "" {
		add("matches `" + s.Pattern + "`")
	}
	if s.Default != nil {
		add(fmt.Sprintf("`%v` unless given", s.Default))
	}
	if s.Nullable {
		add("may be null")
	}
	if s.Items != nil {
		for _, limit := range limitsOf(s.Items) {
			add("each " + limit)
		}
	}
	return limits
}

// between describes a range, empty if neither end is given.
func between(from, to, of string) string {
	switch {
	case from == "" && to == "":
		return ""
	case to == "":
		return "at least " + from + of
	case from == "":
		return "at most " + to + of
	case from == to:
		return "exactly " + from + of
	}
	return from + " to " + to + of
}

func whole(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func decimal(n *float64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatFloat(*n, 'f', -1, 64)
}

// fieldsOf returns the fields of an object, first those of the schemas that it is composed
// of.
func (d *document) fieldsOf(s *schema) ([]field, error) {
	var fields []field
	for i := range s.AllOf {
		_, part, err := component(d.Components.Schemas, s.AllOf[i].Ref, s.AllOf[i])
		if err != nil {
			return nil, err
		}
		more, err := d.fieldsOf(&part)
		if err != nil {
			return nil, err
		}
		fields = append(fields, more...)
	}
	for i := range s.Properties {
		property := &s.Properties[i]
		_, meant, err := component(d.Components.Schemas, property.Value.Ref, property.Value)
		if err != nil {
			return nil, err
		}
		made := field{
			Name: property.Name, Type: typeOf(&property.Value), Required: slices.Contains(s.Required, property.Name),
			Text: meant.Description, Limits: limitsOf(&property.Value),
		}
		if example := property.Value.Example; example != nil {
			if made.Example, err = compact(example); err != nil {
				return nil, err
			}
		}
		fields = append(fields, made)
	}
	return fields, nil
}

// strict reports whether fields that are not listed are refused.
func (s *schema) strict() bool {
	allowed, ok := s.Additional.(bool)
	return ok && !allowed
}
