package repolint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testDeclaration = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	// namedTest is a test with or without its package: `pkg/search.TestList`, `TestList`.
	namedTest = regexp.MustCompile("`(?:((?:pkg|cmd|internal|api)[\\w/]*)\\.)?(Test\\w+)`")
	namedPath = regexp.MustCompile("`((?:pkg|cmd|internal|api)/[\\w/.]+)`")
)

// sources is the document that lists the requirements of the sources.
const sources = "docs/understand/seeds.md"

// declarations are the directories in which each test is declared.
func declarations(files []file) map[string][]string {
	declared := map[string][]string{}
	for _, f := range files {
		if !f.isTest() {
			continue
		}
		for _, found := range testDeclaration.FindAllSubmatch(f.text, -1) {
			declared[string(found[1])] = append(declared[string(found[1])], f.dir())
		}
	}
	return declared
}

// misnamed returns what is wrong with the tests that a document names.
func misnamed(document file, declared map[string][]string) []string {
	var wrong []string
	for _, named := range namedTest.FindAllSubmatch(document.text, -1) {
		dir, name := string(named[1]), string(named[2])
		switch dirs := declared[name]; {
		case name == "TestMain": // not a test
		case len(dirs) == 0 || dir != "" && !slices.Contains(dirs, dir):
			wrong = append(wrong, fmt.Sprintf("names %s, which does not exist there", named[0]))
		case dir == "" && document.path == sources:
			wrong = append(wrong, fmt.Sprintf("names %s without its package, %s", name, dirs[0]))
		case dir == "" && len(dirs) > 1:
			wrong = append(wrong, fmt.Sprintf("names %s, which is in %s: name its package too", name, strings.Join(dirs, ", ")))
		}
	}
	if document.path != sources {
		return wrong
	}
	for line := range strings.Lines(string(document.text)) {
		cells := strings.Split(line, " | ")
		if len(cells) == 3 && namedPath.MatchString(cells[1]) && !namedTest.MatchString(cells[2]) {
			wrong = append(wrong, fmt.Sprintf("has no test for %q", strings.TrimPrefix(cells[0], "| ")))
		}
	}
	return wrong
}

// Documents cite tests and files as proof: each must exist.
func TestDocumentsNameExistingTestsAndFiles(t *testing.T) {
	t.Parallel()
	files := readTree(t)
	declared := declarations(files)
	for _, f := range files {
		if !strings.HasSuffix(f.path, ".md") {
			continue
		}
		for _, sentence := range misnamed(f, declared) {
			t.Errorf("%s %s", f.path, sentence)
		}
		for _, named := range namedPath.FindAllSubmatch(f.text, -1) {
			if namedTest.Match(named[0]) {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, string(named[1]))); err != nil {
				t.Errorf("%s names %s: %v", f.path, named[1], err)
			}
		}
	}
}

func TestNamesOfTestsAreHeldToTheirPackages(t *testing.T) {
	t.Parallel()
	declared := map[string][]string{"TestList": {"pkg/search", "pkg/commands"}, "TestWait": {"pkg/search"}, "TestSpec": {"api"}}
	for _, test := range []struct{ path, text, want string }{
		{"docs/a.md", "`TestWait`, `pkg/search.TestList`, `api.TestSpec`", ""},
		{"docs/a.md", "`TestGone`", "names `TestGone`, which does not exist there"},
		{"docs/a.md", "`pkg/commands.TestWait`", "names `pkg/commands.TestWait`, which does not exist there"},
		{"docs/a.md", "`TestList`", "names TestList, which is in pkg/search, pkg/commands: name its package too"},
		{sources, "`TestWait`", "names TestWait without its package, pkg/search"},
		{sources, "| Lists | `pkg/search` | `pkg/search.TestList` |", ""},
		{sources, "| Lists | `pkg/search` | by hand |", `has no test for "Lists"`},
	} {
		got := strings.Join(misnamed(file{path: test.path, text: []byte(test.text)}, declared), "; ")
		if got != test.want {
			t.Errorf("%s with %s: %q, want %q", test.path, test.text, got, test.want)
		}
	}
}
