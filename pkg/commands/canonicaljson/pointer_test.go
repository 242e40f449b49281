package canonicaljson_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands/canonicaljson"
)

// The document and the pointers of RFC 6901, section 5, with some white space.
const pointerDocument = `{ "foo": ["bar", "baz" ], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4,
 "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8, "deep": {"list": [ {"x": 1.50}, null ]}, "1": {"0": "names may be digits"} }`

func TestPointerAndLookup(t *testing.T) {
	t.Parallel()
	tree := mustParse(t, pointerDocument)
	for pointer, want := range map[string]string{
		"": pointerDocument, "/foo": `["bar", "baz" ]`, "/foo/0": `"bar"`, "/foo/1": `"baz"`, "/": "0", "/a~1b": "1", "/c%d": "2",
		"/e^f": "3", "/g|h": "4", `/i\j`: "5", `/k"l`: "6", "/ ": "7", "/m~0n": "8",
		"/deep": `{"list": [ {"x": 1.50}, null ]}`, "/deep/list/0": `{"x": 1.50}`, "/deep/list/0/x": "1.50", "/deep/list/1": "null",
		"/1/0": `"names may be digits"`,
	} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			raw, ok := canonicaljson.Pointer(json.RawMessage(pointerDocument), pointer)
			if !ok || string(raw) != want {
				t.Errorf("Pointer = %s, %t, want %s", raw, ok, want)
			}
			found, ok := canonicaljson.Lookup(tree, pointer)
			if diff := cmp.Diff(mustParse(t, want), found); !ok || diff != "" {
				t.Errorf("Lookup: %t (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func TestPointersThatNameNoValue(t *testing.T) {
	t.Parallel()
	tree := mustParse(t, pointerDocument)
	for _, pointer := range []string{
		"foo", "#/foo", "/missing", "/foo/2", "/foo/-", "/foo/-1", "/foo/+1", "/foo/01", "/foo/", "/foo/x", "/foo/0/0",
		"/deep/list/1/x", "/deep/list/0/x/y", "/m~n", "/m~2n", "/m~", "/foo/99999999999999999999", "/\xff",
	} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			if raw, ok := canonicaljson.Pointer(json.RawMessage(pointerDocument), pointer); ok {
				t.Errorf("Pointer found %s", raw)
			}
			if found, ok := canonicaljson.Lookup(tree, pointer); ok {
				t.Errorf("Lookup found %v", found)
			}
		})
	}
}

func TestPointerIntoTextThatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", `{"b":`, `{"b":x,"a":1}`, `{"a"`, `{"a":`, "[1,", "[x]", "nul"} {
		for _, pointer := range []string{"/a", "/1"} {
			if raw, ok := canonicaljson.Pointer(json.RawMessage(text), pointer); ok {
				t.Errorf("Pointer(%s, %s) found %s", text, pointer, raw)
			}
		}
	}
}

func TestMembersKeepsTheTextOfEachMember(t *testing.T) {
	t.Parallel()
	got, ok := canonicaljson.Members(json.RawMessage("\n{ \"a\" : {\"n\": 1.50 } , \"\\u0062\":[ ],\"c\":\"x\" } "))
	want := map[string]json.RawMessage{"a": json.RawMessage(`{"n": 1.50 }`), "b": json.RawMessage(`[ ]`), "c": json.RawMessage(`"x"`)}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("Members: %t (-want +got):\n%s", ok, diff)
	}
	if got, ok := canonicaljson.Members(json.RawMessage(`{}`)); !ok || len(got) != 0 {
		t.Errorf("Members({}) = %v, %t, want none, true", got, ok)
	}
}

func TestMembersOfOtherValues(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "null", "1", `"{}"`, "[]", "{", `{"a"`, `{"a":`, `{"a":1`, `{"a":x}`} {
		if got, ok := canonicaljson.Members(json.RawMessage(text)); ok {
			t.Errorf("Members(%s) = %v", text, got)
		}
	}
}
