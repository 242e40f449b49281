//go:build !race

package sim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMutants_FitTheCode checks that each patch applies to the current code, that the result
// passes the type checker, and that the test that it names exists. It compiles no mutant:
// the packages that are not patched are read from the export data of one build.
func TestMutants_FitTheCode(t *testing.T) { //nolint:tparallel // The mutants share one importer.
	t.Parallel()
	root, patches := mutantPatches(t)
	fset := token.NewFileSet()
	packages, imported := buildOnce(t, fset, root, patches)
	for name, patch := range patches {
		t.Run(name, func(t *testing.T) {
			if c := readClaim(t, patch); c.pkg != "" && !declares(t, filepath.Join(root, c.pkg), c.test) {
				t.Errorf("%s has no test %s", c.pkg, c.test)
			}
			patched, changed := apply(t, root, patch), 0
			for _, pkg := range packages {
				changed += typeCheck(t, fset, root, pkg, patched, imported)
			}
			if changed != len(patched) {
				t.Errorf("of %d patched files, %d belong to a package", len(patched), changed)
			}
		})
	}
}

// mutantPatches returns the root of the module, and each patch by its name.
func mutantPatches(t *testing.T) (root string, patches map[string]string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/mutants/*.patch")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	patches = map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		patches[strings.TrimSuffix(filepath.Base(file), ".patch")] = string(text)
	}
	return root, patches
}

// listed is a package as `go list` describes it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string

	parsed []*ast.File // parsed[i] is GoFiles[i] without a patch
}

// buildOnce builds the packages that the patches change and all that they import. It
// returns the former, parsed, and an importer of the export data of all.
func buildOnce(t *testing.T, fset *token.FileSet, root string, patches map[string]string) ([]listed, types.Importer) {
	t.Helper()
	changed := map[string]struct{}{}
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	for _, patch := range patches {
		for name := range apply(t, root, patch) {
			dir := filepath.Dir(filepath.Join(root, name))
			if _, known := changed[dir]; !known {
				changed[dir] = struct{}{}
				args = append(args, dir)
			}
		}
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Dir = root
	var failed bytes.Buffer
	list.Stderr = &failed
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, failed.String())
	}
	var packages []listed
	exports := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg listed
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[pkg.ImportPath] = pkg.Export
		if _, ok := changed[pkg.Dir]; ok {
			for _, name := range pkg.GoFiles {
				pkg.parsed = append(pkg.parsed, parse(t, fset, filepath.Join(pkg.Dir, name), nil))
			}
			packages = append(packages, pkg)
		}
	}
	return packages, importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
}

// typeCheck type-checks the package with the patched files in place of its own, if it has
// any, and returns how many it has.
func typeCheck(
	t *testing.T, fset *token.FileSet, root string, pkg listed, patched map[string]string, imported types.Importer,
) (changed int) {
	t.Helper()
	files := slices.Clone(pkg.parsed)
	for name, text := range patched {
		path := filepath.Join(root, name)
		if i := slices.Index(pkg.GoFiles, filepath.Base(path)); i >= 0 && filepath.Dir(path) == pkg.Dir {
			files[i], changed = parse(t, fset, path, text), changed+1
		}
	}
	if changed == 0 {
		return 0
	}
	config := types.Config{Importer: imported, Error: func(err error) { t.Errorf("the mutant does not build: %v", err) }}
	_, _ = config.Check(pkg.ImportPath, fset, files, nil) // Error was called with each error.
	return changed
}

// parse parses a file, or the text in its place.
func parse(t *testing.T, fset *token.FileSet, path string, text any) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("the mutant cannot be parsed: %v", err)
	}
	return file
}

// claim is what the first line of a patch says: the invariants by which the simulation
// detects the defect, and the test that detects it, if one does instead.
type claim struct {
	invariants []string
	pkg, test  string
}

var (
	byInvariant = regexp.MustCompile(`^[^()]*\(([^)]+)\)\.`)
	byTest      = regexp.MustCompile(`Seen by: go test (\S+) -run (\w+)`)
)

func readClaim(t *testing.T, patch string) claim {
	t.Helper()
	head, _, _ := strings.Cut(patch, "\n")
	found := byInvariant.FindStringSubmatch(head)
	if found == nil {
		t.Fatalf("the patch names no invariant: %s", head)
	}
	c := claim{invariants: strings.Split(found[1], ", ")}
	if test := byTest.FindStringSubmatch(head); test != nil {
		c.pkg, c.test = test[1], test[2]
	}
	return c
}

// declares reports whether a test file of the folder has the test.
func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+test+"(")
	})
}

// apply applies a unified diff, and returns the files that it changes. The lines that a
// hunk expects must occur exactly once. Line numbers are ignored, so that a patch still
// applies after changes elsewhere in the file.
func apply(t *testing.T, root, patch string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, part := range strings.Split(patch, "\n--- a/")[1:] {
		name, hunks, _ := strings.Cut(part, "\n")
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for _, hunk := range strings.Split(hunks, "\n@@ ")[1:] {
			before, after := sides(hunk)
			if n := strings.Count(text, before); n != 1 {
				t.Fatalf("%s: a hunk matches %d times: update the patch:\n%s", name, n, before)
			}
			text = strings.Replace(text, before, after, 1)
		}
		files[name] = text
	}
	return files
}

// sides returns the text that a hunk expects, and the text that replaces it.
func sides(hunk string) (before, after string) {
	var old, now strings.Builder
	_, body, _ := strings.Cut(hunk, "\n")
	for line := range strings.Lines(body) {
		switch line[0] {
		case '-':
			old.WriteString(line[1:])
		case '+':
			now.WriteString(line[1:])
		default:
			old.WriteString(line[1:])
			now.WriteString(line[1:])
		}
	}
	return strings.TrimSuffix(old.String(), "\n"), strings.TrimSuffix(now.String(), "\n")
}
