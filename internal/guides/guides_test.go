package guides_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/guides"
)

func TestParse(t *testing.T) {
	t.Parallel()
	document := strings.ReplaceAll(`# Title

<!-- hidden
touch a
-->

<!-- hidden serve: up
touch b
-->

'''sh
ls
'''

<!-- serve: lucius serves -->

'''sh
lucius serve
'''

1. In a list:

   <!-- file: w.py -->

   '''python
   if x:
       y
   '''

<!-- prints -->
'''text
done …
'''

'''
a ──▶ b
'''
`, "'''", "```")
	got, err := guides.Parse(document)
	if err != nil {
		t.Fatal(err)
	}
	want := []guides.Block{
		{Line: 3, Language: "sh", Verb: guides.Run, Text: "touch a\n"},
		{Line: 7, Language: "sh", Verb: guides.Serve, Argument: "up", Text: "touch b\n"},
		{Line: 11, Language: "sh", Verb: guides.Run, Text: "ls\n"},
		{Line: 17, Language: "sh", Verb: guides.Serve, Argument: "lucius serves", Text: "lucius serve\n"},
		{Line: 25, Language: "python", Verb: guides.File, Argument: "w.py", Text: "if x:\n    y\n"},
		{Line: 31, Language: "text", Verb: guides.Prints, Text: "done …\n"},
		{Line: 35, Text: "a ──▶ b\n"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParse_ABlockThatCannotBeHeldIsRefused(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		"'''yaml\na: 1\n'''":                             "line 1: say in a comment before the block of yaml",
		"<!-- run -->\n'''python\nx\n'''":                "line 2: a block of python cannot be run",
		"<!-- not run -->\n'''sh\nx\n'''":                `line 2: the comment "not run" needs an argument`,
		"<!-- file: a.yaml -->\nWords.\n'''yaml\nx\n'''": `line 2: no block follows the comment "file"`,
	} {
		_, err := guides.Parse(strings.ReplaceAll(document, "'''", "```"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", document, err, want)
		}
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	printed := "begin\nJOB    STATE\n1234   SUCCEEDED  now\n\nend\n"
	for text, want := range map[string]bool{
		"JOB STATE":              true,
		"… SUCCEEDED now":        true,
		"begin\n…\nend\n":        true,
		"begin\nend\n":           false,
		"STATE":                  false,
		"… FAILED …":             false,
		"1234   SUCCEEDED   now": true,
	} {
		if block := (guides.Block{Text: text}); block.Matches(printed) != want {
			t.Errorf("%q: not %v", text, want)
		}
	}
}

func TestIsIn(t *testing.T) {
	t.Parallel()
	source := "func main() {\n\tif a {\n\t\tb()\n\t}\n}\n"
	for text, want := range map[string]bool{"if a {\n\tb()\n}\n": true, "if b {\n": false} {
		if block := (guides.Block{Text: text}); block.IsIn(source) != want {
			t.Errorf("%q: not %v", text, want)
		}
	}
}
