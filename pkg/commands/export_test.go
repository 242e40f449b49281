package commands

import (
	"reflect"
	"strings"
)

// ProtocolKeys returns every key that a file may hold, with dots between levels, and
// where: "file", "step" or "both".
func ProtocolKeys() map[string]string {
	keys := map[string]string{}
	collectViolations(keys, reflect.TypeFor[protocolDefinition](), "", "file")
	collectViolations(keys, reflect.TypeFor[stepDefinition](), "", "step")
	return keys
}

// collectViolations adds the keys of a mapping.
func collectViolations(keys map[string]string, mapping reflect.Type, prefix, where string) {
	for field := range mapping.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			collectViolations(keys, field.Type, prefix, where)
		case field.Type == reflect.TypeFor[retryDefinition](), field.Type == reflect.TypeFor[orderDefinition]():
			collectViolations(keys, field.Type, prefix+name+".", where)
		case keys[prefix+name] != "":
			keys[prefix+name] = "both"
		default:
			keys[prefix+name] = where
		}
	}
}
