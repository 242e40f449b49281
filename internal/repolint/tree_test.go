package repolint_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the top of the repository, seen from this package's directory.
const root = "../.."

// file is one text file of the repository.
type file struct {
	path string // relative to the top, with slashes
	text []byte
}

// textFiles are the names of the files that the rules check: those that people write by
// hand or read in review, unlike binary fixtures and module checksums.
var textFiles = regexp.MustCompile(`\.(?:go|md|ya?ml|json|sh|html|css|js|ts|txt|mod|pml)$` +
	`|(?:^|/)(?:Makefile|Dockerfile|LICENSE|\.ci/run|\.[a-z]+ignore|\.editorconfig)$`)

// notOurs are directories that a build, a run or an editor creates.
var notOurs = []string{".git", ".idea", ".vscode", "bin", "lucius-data", "lucius-demo", "node_modules"}

// readTree returns the text files of the repository, ordered by path.
func readTree(t *testing.T) []file {
	t.Helper()
	var files []file
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(notOurs, entry.Name()):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !textFiles.MatchString(name):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		files = append(files, file{path: name, text: text})
		return err
	})
	if err != nil {
		t.Fatalf("reading the repository: %v", err)
	}
	if len(files) == 0 {
		t.Fatal("no files found: is this test still two directories below the top?")
	}
	return files
}

// goFiles returns the hand-written Go files.
func goFiles(t *testing.T) []file {
	t.Helper()
	return slices.DeleteFunc(readTree(t), func(f file) bool {
		return !strings.HasSuffix(f.path, ".go") || f.isGenerated()
	})
}

var generatedMark = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func (f file) isGenerated() bool {
	return strings.HasSuffix(f.path, ".gen.go") || generatedMark.Match(f.text)
}

func (f file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) dir() string { return path.Dir(f.path) }

// lines counts the lines of the file.
func (f file) lines() int { return bytes.Count(f.text, []byte("\n")) }
