package commands_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

// Any text is either refused with a pointer, or has a canonical form that is
// valid JSON, can be parsed, and is its own canonical form.
func FuzzCanonicalFormIsAFixedPoint(f *testing.F) {
	vectors := readVectors(f)
	for _, vector := range vectors.Accepted {
		f.Add([]byte(vector.Input))
	}
	for _, vector := range vectors.Refused {
		f.Add([]byte(vector.Input))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := commands.ParseJSON(data)
		if err != nil {
			fault := apierror.From(err)
			if fault.Code != apierror.InvalidJSON && fault.Code != apierror.TooLarge || len(fault.Errors) != 1 {
				t.Fatalf("Parse(%q): %v, want one violation", data, err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("Parse accepted %q, which is not JSON", data)
		}
		canonical := commands.AppendCanonical(nil, tree)
		again, err := commands.ParseJSON(canonical)
		if err != nil {
			t.Fatalf("the canonical form %q of %q is refused: %v", canonical, data, err)
		}
		if twice := commands.AppendCanonical(nil, again); !bytes.Equal(canonical, twice) {
			t.Fatalf("%q has the canonical form %q, whose canonical form is %q", data, canonical, twice)
		}
	})
}
