package main

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// document is the part of an OpenAPI document that the page shows. It keeps the order of
// the document.
type document struct {
	Info struct {
		Title       string
		Version     string
		Description string
	}
	Tags []struct {
		Name        string
		Description string
	}
	Paths      ordered[pathItem]
	Components struct {
		Parameters    ordered[parameter]
		Headers       ordered[parameter]
		RequestBodies ordered[body] `yaml:"requestBodies"`
		Responses     ordered[response]
		Schemas       ordered[schema]
	}
}

// pathItem is a path with its operations. The contract has no other methods.
type pathItem struct {
	Parameters []parameter
	Get        *operation
	Put        *operation
	Post       *operation
	Delete     *operation
}

type operation struct {
	ID          string `yaml:"operationId"`
	Tags        []string
	Summary     string
	Description string
	Parameters  []parameter
	RequestBody *body `yaml:"requestBody"`
	Responses   ordered[response]
}

// parameter is a parameter, or a header of a response.
type parameter struct {
	Ref         string `yaml:"$ref"`
	Name        string
	In          string
	Description string
	Required    bool
	Schema      schema
	Example     any
}

type body struct {
	Ref         string `yaml:"$ref"`
	Description string
	Required    bool
	Content     ordered[media]
}

type response struct {
	Ref         string `yaml:"$ref"`
	Description string
	Headers     ordered[parameter]
	Content     ordered[media]
}

type media struct{ Schema schema }

type schema struct {
	Ref         string `yaml:"$ref"`
	Type        string
	Format      string
	Description string
	Required    []string
	Properties  ordered[schema]
	Items       *schema
	AllOf       []schema `yaml:"allOf"`
	Enum        []any
	Pattern     string
	Default     any
	Example     any
	Nullable    bool
	Minimum     *float64
	Maximum     *float64
	MinLength   *int `yaml:"minLength"`
	MaxLength   *int `yaml:"maxLength"`
	MinItems    *int `yaml:"minItems"`
	MaxItems    *int `yaml:"maxItems"`
	// Additional is false if unlisted fields are refused.
	Additional any `yaml:"additionalProperties"`
}

// parse reads a document.
func parse(text []byte) (*document, error) {
	var parsed document
	if err := yaml.UnmarshalWithOptions(text, &parsed, yaml.UseOrderedMap()); err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	return &parsed, nil
}

// named is an entry of a map.
type named[T any] struct {
	Name  string
	Value T
}

// ordered is a map that keeps the order of the document.
type ordered[T any] []named[T]

// UnmarshalYAML implements [yaml.InterfaceUnmarshaler].
func (o *ordered[T]) UnmarshalYAML(unmarshal func(any) error) error {
	var keys yaml.MapSlice
	if err := unmarshal(&keys); err != nil {
		return err
	}
	values := map[string]T{}
	if err := unmarshal(&values); err != nil {
		return err
	}
	for _, item := range keys {
		name := fmt.Sprint(item.Key)
		*o = append(*o, named[T]{name, values[name]})
	}
	return nil
}

// get returns the entry of that name.
func (o ordered[T]) get(name string) (T, bool) {
	for i := range o {
		if o[i].Name == name {
			return o[i].Value, true
		}
	}
	var none T
	return none, false
}

// component resolves a reference, and returns its target and name; if ref is empty, the
// value itself.
func component[T any](from ordered[T], ref string, value T) (string, T, error) {
	if ref == "" {
		return "", value, nil
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	found, ok := from.get(name)
	if !ok {
		return "", value, fmt.Errorf("there is no %s", ref)
	}
	return name, found, nil
}
