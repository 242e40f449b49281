package docpipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// ErrPermanent marks work that no other attempt can do.
var ErrPermanent = errors.New("cannot be done")

// Ref is a reference to a file.
type Ref struct {
	URI string `json:"uri"`
}

// FileRef is the reference of a file by its path.
func FileRef(path string) Ref { return Ref{URI: (&url.URL{Scheme: "file", Path: path}).String()} }

// Workspace is the folders that the services may touch.
type Workspace struct {
	// Documents holds the inputs; it is only read.
	Documents string
	// Work holds what the services write.
	Work string
}

// IndexDir is the folder of the searchable index.
func (w Workspace) IndexDir() string { return filepath.Join(w.Work, "index") }

// OutputPath is where a document's result file belongs.
func (w Workspace) OutputPath(name string) string {
	return filepath.Join(w.Work, "output", stem(name)+".json")
}

// stem is a file's name without its folder and ending.
func stem(path string) string {
	name := filepath.Base(path)
	return strings.TrimSuffix(name, filepath.Ext(name))
}

// path is the file that a reference names. One outside of the folders is
// refused: a directive must not make a service read other files.
func path(raw json.RawMessage, folders ...string) (string, error) {
	var ref Ref
	if err := json.Unmarshal(raw, &ref); err != nil {
		return "", fmt.Errorf("%w: reference %s: %w", ErrPermanent, raw, err)
	}
	u, err := url.Parse(ref.URI)
	if err != nil || u.Scheme != "file" || u.Host != "" {
		return "", fmt.Errorf("%w: %q is not the URI of a local file", ErrPermanent, ref.URI)
	}
	clean := filepath.Clean(u.Path)
	for _, folder := range folders {
		if rel, err := filepath.Rel(folder, clean); err == nil && filepath.IsLocal(rel) {
			return clean, nil
		}
	}
	return "", fmt.Errorf("%w: %q lies outside of the workspace", ErrPermanent, ref.URI)
}

// readJSON reads what writeJSON wrote.
func readJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read an input: %w", err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%w: input %s: %w", ErrPermanent, filepath.Base(path), err)
	}
	return nil
}

// writeJSON puts the value in place in one step, so that nobody reads half a
// file and a repeated directive changes nothing.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode a result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("write a result: %w", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write a result: %w", err)
	}
	_, err = temp.Write(append(data, '\n'))
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write a result: %w", err), os.Remove(temp.Name()))
	}
	return nil
}
