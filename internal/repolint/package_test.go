package repolint_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path"
	"strings"
	"testing"
)

// packageDoc holds the package comments of one directory.
type packageDoc struct {
	name string
	docs []string // the package comments found
	home string   // the file that holds the last of them
}

// packageDocs reads the package clauses of all directories with source files.
func packageDocs(t *testing.T) map[string]*packageDoc {
	t.Helper()
	packages := make(map[string]*packageDoc)
	for _, f := range goFiles(t) {
		if f.isTest() {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.path, f.text, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatalf("parsing the package clause: %v", err)
		}
		pkg := packages[f.dir()]
		if pkg == nil {
			pkg = &packageDoc{name: parsed.Name.Name}
			packages[f.dir()] = pkg
		}
		if parsed.Doc != nil {
			pkg.docs, pkg.home = append(pkg.docs, parsed.Doc.Text()), f.path
		}
	}
	return packages
}

// A reader first asks what a package is for. Exactly one comment answers that: `go doc`
// shows it, and two would drift apart.
func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	for dir, pkg := range packageDocs(t) {
		opening := "Package " + pkg.name + " "
		if pkg.name == "main" {
			opening = "Command " + path.Base(dir) + " "
		}
		switch {
		case len(pkg.docs) == 0:
			t.Errorf("%s has no package comment: write one that begins with %q", dir, opening)
		case len(pkg.docs) > 1:
			t.Errorf("%s has %d package comments: keep one", dir, len(pkg.docs))
		case !strings.HasPrefix(pkg.docs[0], opening):
			t.Errorf("%s: the package comment should begin with %q", pkg.home, opening)
		}
	}
}

// Dependencies point inwards. The linter enforces that only if a rule names the package, so
// a new package must choose its layer first.
func TestEveryPackageHasALayer(t *testing.T) {
	t.Parallel()
	const config = ".golangci.yml"
	rules, err := os.ReadFile(path.Join(root, config))
	if err != nil {
		t.Fatalf("reading the layer rules: %v", err)
	}
	for dir := range packageDocs(t) {
		if !strings.HasPrefix(dir, "pkg/") {
			continue // main packages are above all layers
		}
		if glob := `"**/` + dir + `/*.go"`; !bytes.Contains(rules, []byte(glob)) {
			t.Errorf("%s is in no layer: add %s to a depguard rule in %s, and a word to CONTRIBUTING.md", dir, glob, config)
		}
	}
}
