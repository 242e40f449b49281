package docpipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// ErrPermanent is returned if no retry can succeed: the directive, document or
// reference itself is wrong. Any other error may be transient.
var ErrPermanent = errors.New("cannot be done")

// Ref is a reference to a file in directives and results.
type Ref struct {
	URI string `json:"uri"`
}

// FileRef returns the reference of a file by its absolute path.
func FileRef(path string) Ref {
	return Ref{URI: (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()}
}

// within returns the path of the referenced file inside the folder. It returns
// [ErrPermanent] for a reference to anything outside.
func within(folder string, raw json.RawMessage) (string, error) {
	var ref Ref
	if err := json.Unmarshal(raw, &ref); err != nil {
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
