package repocheck_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of the sources names tests: each must be there.
func TestTheTestsOfTheSourcesAreThere(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	table, err := os.ReadFile(filepath.Join(root, "docs", "seeds.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range declaration.FindAllSubmatch(source, -1) {
			declared[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, named := range regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(table, -1) {
		if name := string(named[1]); !declared[name] {
			t.Errorf("docs/seeds.md names %s, which is nowhere", name)
		}
	}
	for _, named := range regexp.MustCompile("`((?:pkg|cmd|internal|api)/[\\w/.]+)`").FindAllSubmatch(table, -1) {
		if _, err := os.Stat(filepath.Join(root, string(named[1]))); err != nil {
			t.Errorf("docs/seeds.md names %s: %v", named[1], err)
		}
	}
}
