package api

import (
	"encoding/json"
	"reflect"
)

// UnmarshalJSON reads an object of strings. Anything else is a [json.UnmarshalTypeError] of the
// object as a whole: the decoder does not name the key of a value that is no string.
func (t *Tags) UnmarshalJSON(data []byte) error {
	var tags map[string]string
	if err := json.Unmarshal(data, &tags); err != nil {
		return &json.UnmarshalTypeError{Value: "tags", Type: reflect.TypeFor[Tags]()}
	}
	*t = tags
	return nil
}
