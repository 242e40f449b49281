package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// MaxDepth is how deep objects and arrays in a request may be nested. Commands have
// a lower limit: see package commands.
const MaxDepth = 128

// CheckText refuses what the decoder accepts but readers of the stored value may
// not: text that is not UTF-8, and values that are nested too deep. The error is a
// [*apierror.Error].
func CheckText(body []byte) error {
	if !utf8.Valid(body) {
		at := 0
		for {
			r, size := utf8.DecodeRune(body[at:])
			if r == utf8.RuneError && size <= 1 {
				return apierror.NotJSONAt(body, at, "not UTF-8", nil)
			}
			at += size
		}
	}
	depth, quoted, escaped := 0, false, false
	for i, c := range body {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if depth++; depth > MaxDepth {
				return apierror.Newf(apierror.TooLarge, "The body is beyond a limit at %s: it is nested deeper than %d levels.",
					apierror.Place(body, i), MaxDepth)
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return nil
}

// DecodeFault returns the problem of a body that package encoding/json could not
// decode into a type of the contract, given the decoder's error. It says where the
// fault is and what must be there; the decoder's own message would repeat the body.
func DecodeFault(body []byte, err error) *apierror.Error {
	wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return apierror.NotJSON(body, err)
	}
	pointer := ""
	if wrongType.Field != "" {
		pointer = Pointer(strings.Split(wrongType.Field, ".")...)
	}
	return &apierror.Error{
		Code:   apierror.InvalidEnvelope,
		Errors: []apierror.Violation{{Pointer: pointer, Message: "must be " + typeName(wrongType.Type)}},
		Err:    wrongType,
	}
}

// typeName returns the JSON term for a Go type.
func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Time]():
		return "a time as in RFC 3339"
	case reflect.TypeFor[Tags]():
		return "an object of strings"
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
