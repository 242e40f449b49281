package ledger_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// The document and the pointers of RFC 6901, section 5, with some white space.
const pointerDocument = `{ "foo": ["bar", "baz" ], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4,
 "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8, "deep": {"list": [ {"x": 1.50}, null ]}, "1": {"0": "names may be digits"} }`

// parsed returns the tree of a text.
func parsed(t *testing.T, text string) any {
	t.Helper()
	tree, err := commands.ParseJSON([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%s): %v", text, err)
	}
	return tree
}

func TestPointerAndLookup(t *testing.T) {
	t.Parallel()
	tree := parsed(t, pointerDocument)
	for pointer, want := range map[string]string{
		"": pointerDocument, "/foo": `["bar", "baz" ]`, "/foo/0": `"bar"`, "/foo/1": `"baz"`, "/": "0", "/a~1b": "1", "/c%d": "2",
		"/e^f": "3", "/g|h": "4", `/i\j`: "5", `/k"l`: "6", "/ ": "7", "/m~0n": "8",
		"/deep": `{"list": [ {"x": 1.50}, null ]}`, "/deep/list/0": `{"x": 1.50}`, "/deep/list/0/x": "1.50", "/deep/list/1": "null",
		"/1/0": `"names may be digits"`,
	} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			raw, ok := ledger.Pointer(json.RawMessage(pointerDocument), pointer)
			if !ok || string(raw) != want {
				t.Errorf("Pointer = %s, %t, want %s", raw, ok, want)
			}
			found, ok := ledger.Lookup(tree, pointer)
			if diff := cmp.Diff(parsed(t, want), found); !ok || diff != "" {
				t.Errorf("Lookup: %t (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func TestPointersThatNameNoValue(t *testing.T) {
	t.Parallel()
	tree := parsed(t, pointerDocument)
	for _, pointer := range []string{
		"foo", "#/foo", "/missing", "/foo/2", "/foo/-", "/foo/-1", "/foo/+1", "/foo/01", "/foo/", "/foo/x", "/foo/0/0",
		"/deep/list/1/x", "/deep/list/0/x/y", "/m~n", "/m~2n", "/m~", "/foo/99999999999999999999", "/\xff",
	} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			if raw, ok := ledger.Pointer(json.RawMessage(pointerDocument), pointer); ok {
				t.Errorf("Pointer found %s", raw)
			}
			if found, ok := ledger.Lookup(tree, pointer); ok {
				t.Errorf("Lookup found %v", found)
			}
		})
	}
}

func TestPointerIntoTextThatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", `{"b":`, `{"b":x,"a":1}`, `{"a"`, `{"a":`, "[1,", "[x]", "nul"} {
		for _, pointer := range []string{"/a", "/1"} {
			if raw, ok := ledger.Pointer(json.RawMessage(text), pointer); ok {
				t.Errorf("Pointer(%s, %s) found %s", text, pointer, raw)
			}
		}
	}
}

// Pointer over the text and Lookup over the tree find the same value.
func FuzzPointer(f *testing.F) {
	for _, pointer := range []string{"", "/foo/1", "/a~1b", "/deep/list/0/x", "/foo/-", "~"} {
		f.Add([]byte(pointerDocument), pointer)
	}
	f.Fuzz(func(t *testing.T, data []byte, pointer string) {
		raw, found := ledger.Pointer(data, pointer)
		tree, err := commands.ParseJSON(data)
		if err != nil {
			return // Pointer must not panic on such a text; its result is undefined.
		}
		part, there := ledger.Lookup(tree, pointer)
		if found != there {
			t.Fatalf("%q in %q: Pointer says %t, Lookup %t", pointer, data, found, there)
		}
		if !found {
			return
		}
		want := commands.AppendCanonical(nil, part)
		if got := commands.AppendCanonical(nil, parsed(t, string(raw))); !bytes.Equal(got, want) {
			t.Fatalf("%q in %q: Pointer finds %q, Lookup %q", pointer, data, got, want)
		}
	})
}

func ExamplePointer() {
	payload := json.RawMessage(`{"ocr": { "dpi": 300.0 }, "index": {}}`)
	part, found := ledger.Pointer(payload, "/ocr")
	fmt.Println(string(part), found)
	// Output: { "dpi": 300.0 } true
}
