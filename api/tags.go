package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// ParseTags returns tags that are given as "key=value". The error says which one is wrong.
func ParseTags(texts []string) (Tags, error) {
	tags, err := statemachine.ParseTags(texts)
	return tags.Map(), err
}

// List returns the tags as "key=value", in the order of the keys.
func (t Tags) List() []string { return slices.Collect(statemachine.NewTags(t).All()) }

// String returns the list with commas between the tags.
func (t Tags) String() string { return strings.Join(t.List(), ", ") }

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
