package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// onUnknown handles an unknown field: it returns the error of the request, or nil to
// ignore the field.
type onUnknown func(name string, err error) error

// refuseUnknown makes an unknown field an error.
func refuseUnknown(name string, err error) error {
	return &problem.Error{
		Code:   problem.InvalidEnvelope,
		Errors: []problem.Violation{{Pointer: api.Pointer(name), Message: "is unknown"}},
		Err:    err,
	}
}

// decodeJSON decodes exactly one JSON value. The error is a problem that says where
// the fault is.
func decodeJSON(data []byte, into any, unknown onUnknown) error {
	if err := api.CheckText(data); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if name, is := unknownField(err); is {
		if err := unknown(name, err); err != nil {
			return err
		}
		// The decoder reports an unknown field before faults that come after it.
		decoder = json.NewDecoder(bytes.NewReader(data))
		err = decoder.Decode(into)
	}
	if err != nil {
		return api.DecodeFault(data, err)
	}
	end := decoder.InputOffset()
	rest := bytes.TrimLeft(data[end:], " \t\r\n")
	if len(rest) > 0 {
		return problem.NotJSONAt(data, len(data)-len(rest), "text after the value", nil)
	}
	return nil
}

// unknownField reports whether the error is about an unknown field, and returns the
// field's name. The decoder has no type for this error.
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
