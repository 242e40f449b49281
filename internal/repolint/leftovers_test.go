package repolint_test

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"
)

// Only at the top, where .gitignore has it, a folder of data may lie: a program that a test runs
// elsewhere in the tree leaves one that is committed.
func TestNoTestLeavesData(t *testing.T) {
	t.Parallel()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir() || path.Dir(name) == "." && !slices.Contains(notOurs, name):
			return nil
		case path.Dir(name) == "." || entry.Name() == "node_modules":
			return fs.SkipDir
		case entry.Name() == "lucius-data" || entry.Name() == "lucius-demo":
			t.Errorf("%s is the data of a server: delete it, and run the server in a folder of its own", name)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
