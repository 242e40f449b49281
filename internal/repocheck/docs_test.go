package repocheck_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testDeclaration = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	namedTest       = regexp.MustCompile("`(Test\\w+)`")
	namedPath       = regexp.MustCompile("`((?:pkg|cmd|internal|api)/[\\w/.]+)`")
)

// The documents name tests and files as proof: each must exist.
func TestWhatTheDocumentsNameIsThere(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	files := readTree(t)
	for _, f := range files {
		if !f.isTest() {
			continue
		}
		for _, found := range testDeclaration.FindAllSubmatch(f.text, -1) {
			declared[string(found[1])] = true
		}
	}
	for _, f := range files {
		if !strings.HasSuffix(f.path, ".md") {
			continue
		}
		for _, named := range namedTest.FindAllSubmatch(f.text, -1) {
			if name := string(named[1]); !declared[name] {
				t.Errorf("%s names %s, which does not exist", f.path, name)
			}
		}
		for _, named := range namedPath.FindAllSubmatch(f.text, -1) {
			if _, err := os.Stat(filepath.Join(root, string(named[1]))); err != nil {
				t.Errorf("%s names %s: %v", f.path, named[1], err)
			}
		}
	}
}
