package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/problem"
)

// DecodeFault returns the problem of a body that package encoding/json could not
// decode into a type of the contract, given the decoder's error. It says where the
// fault is and what must be there; the decoder's own message would repeat the body.
func DecodeFault(body []byte, err error) *problem.Error {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typeFault(wrongType)
	}
	return problem.NotJSON(body, err)
}

// typeFault returns the problem of a value that has the wrong type for its field.
func typeFault(err *json.UnmarshalTypeError) *problem.Error {
	pointer := ""
	if err.Field != "" {
		pointer = Pointer(strings.Split(err.Field, ".")...)
	}
	return &problem.Error{
		Code:   problem.InvalidEnvelope,
		Errors: []problem.Violation{{Pointer: pointer, Message: "must be " + typeName(err.Type)}},
		Err:    err,
	}
}

// typeName returns the JSON term for a Go type.
func typeName(t reflect.Type) string {
	if t == reflect.TypeFor[Time]() {
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

// pointerEscapes escapes the characters that are special in a JSON pointer.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer returns the JSON pointer (RFC 6901) for this path of names.
func Pointer(names ...string) string {
	var pointer strings.Builder
	for _, name := range names {
		pointer.WriteString("/" + pointerEscapes.Replace(name))
	}
	return pointer.String()
}
