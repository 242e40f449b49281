package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
)

// maxDepth limits the nesting of an example that is composed of others.
const maxDepth = 8

// exampleOf returns the example of a schema, or one composed of its parts' examples. There
// may be none.
func (d *document) exampleOf(s *schema, depth int) (any, error) {
	if s.Example != nil || depth > maxDepth {
		return s.Example, nil
	}
	_, meant, err := component(d.Components.Schemas, s.Ref, *s)
	switch {
	case err != nil:
		return nil, err
	case s.Ref != "":
		return d.exampleOf(&meant, depth+1)
	case s.Items != nil:
		item, err := d.exampleOf(s.Items, depth+1)
		return []any{item}, err
	case len(s.Enum) > 0:
		return s.Enum[0], nil
	}
	made := yaml.MapSlice{}
	for i := range s.AllOf {
		part, err := d.exampleOf(&s.AllOf[i], depth+1)
		if err != nil {
			return nil, err
		}
		if fields, ok := part.(yaml.MapSlice); ok {
			made = append(made, fields...)
		}
	}
	for i := range s.Properties {
		value, err := d.exampleOf(&s.Properties[i].Value, depth+1)
		if err != nil {
			return nil, err
		}
		if value != nil {
			made = append(made, yaml.MapItem{Key: s.Properties[i].Name, Value: value})
		}
	}
	if len(made) == 0 {
		return nil, nil //nolint:nilnil // A schema may have no example.
	}
	return made, nil
}

// shownExample returns the example of a schema as indented JSON, empty if there is
// none.
func (d *document) shownExample(s *schema) (string, error) {
	example, err := d.exampleOf(s, 0)
	if err != nil || example == nil {
		return "", err
	}
	if text, ok := example.(string); ok {
		return text, nil
	}
	line, err := compact(example)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(line), "", "  "); err != nil {
		return "", fmt.Errorf("example %s: %w", line, err)
	}
	return out.String(), nil
}

// compact formats a value as JSON on one line, with its fields in order.
func compact(value any) (string, error) {
	var out bytes.Buffer
	if err := write(&out, value); err != nil {
		return "", err
	}
	return out.String(), nil
}

// write writes a value as JSON.
func write(out *bytes.Buffer, value any) error {
	switch value := value.(type) {
	case yaml.MapSlice:
		return list(out, '{', '}', len(value), func(i int) error {
			if err := write(out, fmt.Sprint(value[i].Key)); err != nil {
				return err
			}
			out.WriteByte(':')
			return write(out, value[i].Value)
		})
	case []any:
		return list(out, '[', ']', len(value), func(i int) error { return write(out, value[i]) })
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("example %v: %w", value, err)
	}
	out.Truncate(out.Len() - 1) // The encoder ends the value with a newline.
	return nil
}

// list writes n values between brackets.
func list(out *bytes.Buffer, begin, end byte, n int, each func(int) error) error {
	out.WriteByte(begin)
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := each(i); err != nil {
			return err
		}
	}
	out.WriteByte(end)
	return nil
}
