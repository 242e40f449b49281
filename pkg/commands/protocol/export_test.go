package protocol

import (
	"reflect"
	"strings"
)

// Keys returns every key that a file may hold, with dots between levels, and
// where: "file", "step" or "both".
func Keys() map[string]string {
	keys := map[string]string{}
	collect(keys, reflect.TypeFor[definition](), "", "file")
	collect(keys, reflect.TypeFor[stepDefinition](), "", "step")
	return keys
}

// collect adds the keys of a mapping.
func collect(keys map[string]string, mapping reflect.Type, prefix, where string) {
	for field := range mapping.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			collect(keys, field.Type, prefix, where)
		case field.Type == reflect.TypeFor[retryDefinition]():
			collect(keys, field.Type, prefix+name+".", where)
		case keys[prefix+name] != "":
			keys[prefix+name] = "both"
		default:
			keys[prefix+name] = where
		}
	}
}
