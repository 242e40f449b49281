package contracttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// undocumentedFields returns an error that names a field of the response that is not
// in the document. Schemas allow such fields, because clients must ignore unknown
// ones, but the server must document every field that it sends.
func undocumentedFields(operation *openapi3.Operation, e *Exchange) error {
	response := operation.Responses.Status(e.Status)
	if response == nil {
		return nil
	}
	mediaType, _, _ := strings.Cut(e.Header.Get("Content-Type"), ";")
	content := response.Value.Content.Get(mediaType)
	if !strings.HasSuffix(mediaType, "json") || content == nil || content.Schema == nil {
		return nil
	}
	var value any
	if err := json.Unmarshal(e.Received, &value); err != nil {
		return fmt.Errorf("the response is no JSON: %w", err)
	}
	if pointer := unknown(content.Schema.Value, value, ""); pointer != "" {
		return fmt.Errorf("the response has %s, which is not documented", pointer)
	}
	return nil
}

// unknown returns the JSON pointer of a field that the schema does not have, empty if
// there is none.
func unknown(s *openapi3.Schema, value any, at string) string {
	switch value := value.(type) {
	case map[string]any:
		fields, open := fieldsOf(s)
		for _, name := range slices.Sorted(maps.Keys(value)) {
			field, known := fields[name]
			switch {
			case !known && !open:
				return at + "/" + name
			case !known:
			default:
				if found := unknown(field.Value, value[name], at+"/"+name); found != "" {
					return found
				}
			}
		}
	case []any:
		if s.Items == nil {
			return ""
		}
		for i := range value {
			if found := unknown(s.Items.Value, value[i], fmt.Sprintf("%s/%d", at, i)); found != "" {
				return found
			}
		}
	}
	return ""
}

// fieldsOf returns the fields of an object, including those of its allOf schemas, and
// whether it may have others.
func fieldsOf(s *openapi3.Schema) (fields openapi3.Schemas, open bool) {
	fields = maps.Clone(s.Properties)
	if fields == nil {
		fields = openapi3.Schemas{}
	}
	open = s.AdditionalProperties.Has != nil && *s.AdditionalProperties.Has
	for _, part := range s.AllOf {
		more, also := fieldsOf(part.Value)
		maps.Copy(fields, more)
		open = open || also
	}
	return fields, open || len(fields) == 0
}
