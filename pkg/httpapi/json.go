package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// onUnknown is told of an unknown field, and returns the error of the request
// or nil to ignore the field.
type onUnknown func(name string, err error) error

// refuseUnknown makes an unknown field an error.
func refuseUnknown(name string, err error) error {
	return &problem.Error{
		Code:   problem.InvalidEnvelope,
		Errors: []problem.Violation{{Pointer: "/" + escapePointer(name), Message: "is unknown"}},
		Err:    err,
	}
}

// decodeJSON decodes exactly one JSON value. Errors are problems that say where
// the fault is.
func decodeJSON(data []byte, into any, unknown onUnknown) error {
	if err := checkText(data); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if name, is := unknownField(err); is {
		if err := unknown(name, err); err != nil {
			return err
		}
		// An unknown field hides faults behind it.
		decoder = json.NewDecoder(bytes.NewReader(data))
		err = decoder.Decode(into)
	}
	if err != nil {
		return decodeFault(data, err)
	}
	end := decoder.InputOffset()
	rest := bytes.TrimLeft(data[end:], " \t\r\n")
	if len(rest) > 0 {
		return problem.NotJSONAt(data, len(data)-len(rest), "text after the value", nil)
	}
	return nil
}

// unknownField reports whether the error is about an unknown field, and its
// name. The decoder has no type for it.
func unknownField(err error) (name string, is bool) {
	if err == nil {
		return "", false
	}
	quoted, is := strings.CutPrefix(err.Error(), "json: unknown field ")
	if !is {
		return "", false
	}
	name, unquoteErr := strconv.Unquote(quoted)
	return name, unquoteErr == nil
}

// decodeFault makes a problem of a decoder's error.
func decodeFault(data []byte, err error) error {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typeFault(wrongType)
	}
	return problem.NotJSON(data, err)
}

// typeFault is the problem of a value of another type than its field's.
func typeFault(err *json.UnmarshalTypeError) error {
	pointer := ""
	if err.Field != "" {
		pointer = "/" + strings.ReplaceAll(escapePointer(err.Field), ".", "/")
	}
	return &problem.Error{
		Code:   problem.InvalidEnvelope,
		Errors: []problem.Violation{{Pointer: pointer, Message: "must be " + typeName(err.Type)}},
		Err:    err,
	}
}

// typeName is what a Go type is called in JSON.
func typeName(t reflect.Type) string {
	if t == reflect.TypeFor[api.Time]() {
		return "a time as in RFC 3339"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number of at most " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	default:
		return "an object"
	}
}

// escapePointer escapes a name for a JSON pointer (RFC 6901).
func escapePointer(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}
