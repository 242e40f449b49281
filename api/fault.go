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
// decode into a type of the contract, with the error that it returned. It says where
// the fault is and what has to be there; the decoder's own words repeat the body.
func DecodeFault(body []byte, err error) *problem.Error {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typeFault(wrongType)
	}
	return problem.NotJSON(body, err)
}

// typeFault is the problem of a value of another type than its field's.
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

// typeName is what a Go type is called in JSON.
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

// pointerEscapes are what a name in a JSON pointer must not hold.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer returns the JSON pointer (RFC 6901) to what these names lead to.
func Pointer(names ...string) string {
	var pointer strings.Builder
	for _, name := range names {
		pointer.WriteString("/" + pointerEscapes.Replace(name))
	}
	return pointer.String()
}
