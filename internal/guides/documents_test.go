package guides_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/guides"
)

// root is the top of the repository.
const root = "../.."

// document is a document of the project with its blocks.
type document struct {
	path, text string // The path is relative to the root.
	blocks     []guides.Block
}

// documents returns all documents of the project.
func documents(t *testing.T) (found []document) {
	t.Helper()
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules" || entry.Name() == "bin"):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		blocks, err := guides.Parse(string(text))
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, document{path: name, text: string(text), blocks: blocks})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Each block of a document runs, is a part of a file that is tested, or says why not.
func TestDocuments_SayHowTheirBlocksAreChecked(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, d := range documents(t) {
		for _, block := range d.blocks {
			if block.Verb == guides.Run || block.Verb == guides.Serve {
				ran++
			}
			if block.Verb != guides.PartOf {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(block.Argument)))
			if err != nil || !block.IsIn(string(text)) {
				t.Errorf("%s:%d: this is no part of %s (%v):\n%s", d.path, block.Line, block.Argument, err, block.Text)
			}
		}
	}
	if ran < 20 {
		t.Errorf("%d blocks run in all", ran)
	}
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	link      = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// noAnchor is what a heading's anchor leaves out.
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Each link leads to a file of the project, and to a heading of it if it names one.
func TestDocuments_LinkToWhatIsThere(t *testing.T) {
	t.Parallel()
	anchors := map[string]bool{} // path#anchor
	all := documents(t)
	for _, d := range all {
		for _, found := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(d.text, ""), -1) {
			anchors[d.path+"#"+strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")] = true
		}
	}
	for _, d := range all {
		for _, found := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(d.text, ""), -1) {
			name, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(name, "://") {
				continue
			}
			target := d.path
			if name != "" {
				target = path.Join(path.Dir(d.path), name)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", d.path, found[1], err)
			} else if anchor != "" && !anchors[target+"#"+anchor] {
				t.Errorf("%s links to %s, which has no such heading", d.path, found[1])
			}
		}
	}
}
