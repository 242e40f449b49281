package demo

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

//go:embed documents/*.txt documents/*.html protocols
var files embed.FS

// Unpack writes the demo's own documents and protocol into the folders documents and
// protocols of dir, which it creates. It keeps the files that are there: a user may have
// changed them.
func Unpack(dir string) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		path := filepath.FromSlash(name)
		if _, err := os.Lstat(filepath.Join(dir, path)); !errors.Is(err, fs.ErrNotExist) {
			return err // nil if the file is there
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if err := samplepipeline.WriteFile(dir, path, content); err != nil {
			return fmt.Errorf("files of the demo: %w", err)
		}
		return nil
	})
}
