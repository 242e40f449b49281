package samplepipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// maxFile is the largest file that a service reads, in bytes.
const maxFile = 16 << 20

// The folders under Work.
const (
	textDir    = "text"
	vectorsDir = "vectors"
	indexDir   = "index"
	outputDir  = "output"
)

// Workspace is the folders that the services may touch. Both are absolute
// paths. It is safe for concurrent use, even by many processes.
type Workspace struct {
	// Documents has the inputs. Services only read it.
	Documents string
	// Work has the files that the services write. It is created if missing.
	Work string
}

// IndexDir returns the folder of the searchable index, for [Search].
func (w Workspace) IndexDir() string { return filepath.Join(w.Work, indexDir) }

// OutputPath returns the path of a document's result file, for the output_ref of its
// command. The document is named by its path in Documents.
func (w Workspace) OutputPath(document string) string {
	return filepath.Join(w.Work, outputDir, fileName(document))
}

// fileName returns the name of a document's file in each folder under Work. It
// escapes folders, so that documents of one name in different folders do not collide.
func fileName(document string) string {
	return url.PathEscape(filepath.ToSlash(document)) + ".json"
}

// readFile reads a file of the folder. It returns [ErrPermanent] if the file is
// missing, too large or not a regular file.
func readFile(folder, name string) ([]byte, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open a folder: %w", err)
	}
	defer func() { _ = root.Close() }() // It was only looked up in.
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: there is no file %q", ErrPermanent, name)
	case err != nil:
		return nil, fmt.Errorf("look at a file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: %q is not a regular file", ErrPermanent, name)
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open a file: %w", err)
	}
	defer func() { _ = file.Close() }() // It was only read.
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read a file: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("%w: %q has more than %d bytes", ErrPermanent, name, maxFile)
	}
	return data, nil
}

// readJSON decodes a JSON file of the folder into the value.
func readJSON(folder, name string, value any) error {
	data, err := readFile(folder, name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%w: %q: %w", ErrPermanent, name, err)
	}
	return nil
}

// WriteFile writes a file of the folder atomically and durably: no reader sees a
// partial file, not even after a power failure. It creates missing folders.
func WriteFile(folder, name string, data []byte) (err error) {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return fmt.Errorf("create a folder: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("open a folder: %w", err)
	}
	defer func() { _ = root.Close() }() // It was only looked up in.
	if err := root.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return fmt.Errorf("create a folder: %w", err)
	}
	// Two workers may write the same file at once, so each uses its own temporary name.
	temporary := filepath.Join(filepath.Dir(name), ".new-"+uuid.NewString())
	if err = writeSynced(root, temporary, data); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		_ = root.Remove(temporary) // It may not exist, and no reader looks for it.
		return fmt.Errorf("write a file: %w", err)
	}
	return nil
}

// writeSynced writes a new file and syncs it.
func writeSynced(root *os.Root, name string, data []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// ErrPermanent is returned if no retry can succeed: the directive, document or
// reference itself is wrong. Any other error may be transient.
var ErrPermanent = errors.New("cannot be done")

// FileRef returns the reference of a file by its absolute path.
func FileRef(path string) lucius.Reference {
	return lucius.URI((&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String())
}

// within returns the path of the referenced file inside the folder. It returns
// [ErrPermanent] for a reference to anything outside.
func within(folder string, raw lucius.Reference) (string, error) {
	var ref struct {
		URI string `json:"uri"`
	}
	if err := raw.Decode(&ref); err != nil {
		return "", fmt.Errorf("%w: reference %.100s: %w", ErrPermanent, raw, err)
	}
	u, err := url.Parse(ref.URI)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: reference: %w", ErrPermanent, err)
	case u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%w: %q is not the URI of a file on this host", ErrPermanent, ref.URI)
	case strings.ContainsRune(u.Path, 0):
		return "", fmt.Errorf("%w: %q is not the name of a file", ErrPermanent, ref.URI)
	}
	name, err := filepath.Rel(folder, filepath.FromSlash(u.Path))
	if err != nil || name == "." || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: %q lies outside of the workspace", ErrPermanent, ref.URI)
	}
	return name, nil
}
