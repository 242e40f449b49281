package canonicaljson_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/canonicaljson"
	"github.com/lucius-project/lucius/pkg/problem"
)

func TestParseMakesATreeForSchemaValidators(t *testing.T) {
	t.Parallel()
	tree, err := canonicaljson.Parse([]byte(`{"o":{},"a":[],"n":1.50,"s":"x","t":true,"f":false,"z":null}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"o": map[string]any{}, "a": []any{}, "n": json.Number("1.5"), "s": "x", "t": true, "f": false,
		"z": nil, // only the canonical form leaves nulls out
	}
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		input string
		want  problem.Violation
	}{
		{"", problem.Violation{Pointer: "", Message: "is empty"}},
		{`{"a":[1,{"b":1,"b":2}]}`, problem.Violation{Pointer: "/a/1/b", Message: "is there twice: a name may occur only once in an object"}},
		{`{"a":{"b":1e1000}}`, problem.Violation{Pointer: "/a/b", Message: "is a number that needs more than 1000 digits"}},
		{`{"a":` + strings.Repeat("[", 64), problem.Violation{Pointer: "/a" + strings.Repeat("/0", 63), Message: "is nested deeper than 64 levels"}},
		{`{"a":1} {}`, problem.Violation{Pointer: "", Message: "has more text after its value, from byte 7 on"}},
		{`{"a":`, problem.Violation{Pointer: "/a", Message: "ends too early, after byte 5"}},
		{`{"a":x}`, problem.Violation{Pointer: "/a", Message: "has a syntax error at byte 5: invalid character 'x' at start of value"}},
	} {
		t.Run(test.input, func(t *testing.T) {
			t.Parallel()
			_, err := canonicaljson.Parse([]byte(test.input))
			want := &problem.Error{Code: problem.InvalidJSON, Errors: []problem.Violation{test.want}}
			if diff := cmp.Diff(want, problem.From(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseNeitherChangesNorKeepsItsInput(t *testing.T) {
	t.Parallel()
	const text = `{"name":"a value","list":["one",12.50]}`
	data := []byte(text)
	tree, err := canonicaljson.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != text {
		t.Errorf("the input became %s", data)
	}
	before := string(canonicaljson.Append(nil, tree))
	for i := range data {
		data[i] = 'x'
	}
	if after := string(canonicaljson.Append(nil, tree)); after != before {
		t.Errorf("the tree changed with the input: %s became %s", before, after)
	}
}

// Parsers are reused: a fault in one text must not show in another.
func TestParseFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				if _, err := canonicaljson.Parse([]byte(`{"a":{"b":[1,{"c":`)); err == nil {
					t.Error("half a text was accepted")
				}
				tree, err := canonicaljson.Parse([]byte(`{"b":2,"a":[1]}`))
				if err != nil {
					t.Errorf("Parse: %v", err)
				} else if got := string(canonicaljson.Append(nil, tree)); got != `{"a":[1],"b":2}` {
					t.Errorf("canonical form is %s", got)
				}
			}
		})
	}
	group.Wait()
}
