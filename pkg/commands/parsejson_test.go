package commands_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func TestParseReturnsATreeForSchemaValidators(t *testing.T) {
	t.Parallel()
	tree := musttest.Make(t, commands.ParseJSON, []byte(`{"o":{},"a":[],"n":1.50,"s":"x","t":true,"f":false,"z":null}`))
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
		at    string
		want  apierror.Violation
	}{
		{"", "line 1, column 1: it is empty.", apierror.Violation{Pointer: "", Message: "is empty"}},
		{
			`{"a":[1,{"b":1,"b":2}]}`, "line 1, column 18: a name that its object has already.",
			apierror.Violation{Pointer: "/a/1/b", Message: "is there twice: a name may occur only once in an object"},
		},
		{
			`{"a":1} {}`, "line 1, column 8: text after the value.",
			apierror.Violation{Pointer: "", Message: "has more text after its value"},
		},
		{`{"a":`, "line 1, column 6: it ends too early.", apierror.Violation{Pointer: "/a", Message: "is not valid JSON"}},
		{
			"{\n\"a\":x}", "line 2, column 5: a character that must not be there.",
			apierror.Violation{Pointer: "/a", Message: "is not valid JSON"},
		},
		{"{\"a\":\"\xff\"}", "line 1, column 7: not UTF-8.", apierror.Violation{Pointer: "/a", Message: "is not valid JSON"}},
	} {
		t.Run(test.input, func(t *testing.T) {
			t.Parallel()
			_, err := commands.ParseJSON([]byte(test.input))
			found := apierror.From(err)
			if want := "The body is not valid JSON at " + test.at; found.Code != apierror.InvalidJSON || found.Detail != want {
				t.Errorf("got %s %q, want %q", found.Code, found.Detail, want)
			}
			if diff := cmp.Diff([]apierror.Violation{test.want}, found.Errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseNamesTheLimitThatIsExceeded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ input, detail, pointer, message string }{
		{
			`{"a":` + strings.Repeat("[", commands.MaxDepth), "The body is beyond a limit at line 1, column 69: it is nested deeper than 64 levels.",
			"/a" + strings.Repeat("/0", 63), "is nested deeper than 64 levels",
		},
		{
			`{"a":{"b":1e1000}}`, "The body is beyond a limit at line 1, column 16: it is a number that needs more than 1000 digits.",
			"/a/b", "is a number that needs more than 1000 digits",
		},
	} {
		t.Run(test.message, func(t *testing.T) {
			t.Parallel()
			_, err := commands.ParseJSON([]byte(test.input))
			want := &apierror.Error{
				Code: apierror.TooLarge, Detail: test.detail,
				Errors: []apierror.Violation{{Pointer: test.pointer, Message: test.message}},
			}
			if diff := cmp.Diff(want, apierror.From(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// Errors must not quote the text, which may hold anything.
func TestParseErrorsDoNotQuoteTheText(t *testing.T) {
	t.Parallel()
	for _, input := range []string{
		`{"ßecret":ß}`, `{"ßecret":1,"ßecret":2}`, `{"ßecret":"\ß"}`, `{"ßecret":1}ß`, `{"ßecret":`, `{"ßecret":1e1000}`,
		`{"ßecret":` + strings.Repeat("[", commands.MaxDepth), `{"ßecret" ß`, "{\"ßecret\":\"\xff\"}",
	} {
		_, err := commands.ParseJSON([]byte(input))
		if detail := apierror.From(err).Summary(); err == nil || strings.Contains(detail, "ß") || strings.Contains(detail, "'") {
			t.Errorf("%.40s: %s", input, detail)
		}
	}
}

func TestParseNeitherChangesNorKeepsItsInput(t *testing.T) {
	t.Parallel()
	const text = `{"name":"a value","list":["one",12.50]}`
	data := []byte(text)
	tree := musttest.Make(t, commands.ParseJSON, data)
	if string(data) != text {
		t.Errorf("the input became %s", data)
	}
	before := string(commands.AppendCanonical(nil, tree))
	for i := range data {
		data[i] = 'x'
	}
	if after := string(commands.AppendCanonical(nil, tree)); after != before {
		t.Errorf("the tree changed with the input: %s became %s", before, after)
	}
}

// Parsers are reused: a fault in one text must not affect another.
func TestParseFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				if _, err := commands.ParseJSON([]byte(`{"a":{"b":[1,{"c":`)); err == nil {
					t.Error("half a text was accepted")
				}
				tree, err := commands.ParseJSON([]byte(`{"b":2,"a":[1]}`))
				if err != nil {
					t.Errorf("Parse: %v", err)
				} else if got := string(commands.AppendCanonical(nil, tree)); got != `{"a":[1],"b":2}` {
					t.Errorf("canonical form is %s", got)
				}
			}
		})
	}
	group.Wait()
}
